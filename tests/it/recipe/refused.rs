//! Recipes that are refused: the place, the key and the words of each message.

use fullband::recipe::Recipe;

use super::{FULL, Folder, SMALL, edited};

// pains 51 (unsloth #10452, Soup #627): a misspelt key is refused with its place and the nearest known key
#[test]
fn an_unknown_key_names_file_line_key_and_the_nearest_known() {
    let folder = Folder::new();
    for (from, to, key, near) in [
        ("schedule = \"wsd\"", "shedule = \"wsd\"", "train.shedule", "train.schedule"),
        ("[feedback]", "[feedbak]", "feedbak", "feedback"),
        ("dtype = \"f32\"", "dtpye = \"f32\"", "model.dtpye", "model.dtype"),
        ("until = 0.5", "untill = 0.5", "train.phases[0].untill", "train.phases[0].until"),
        (
            "{ metric = \"fused\", patience = 3 }",
            "{ metric = \"fused\", patiense = 3 }",
            "eval.early_stopping.patiense",
            "eval.early_stopping.patience",
        ),
        ("rank = 8", "lora_r = 8", "lora.lora_r", "lora.rank"),
        ("lr = 1e-4", "learning_rate = 1e-4", "train.learning_rate", "train.lr"),
        ("seed = 7", "jitter = 7", "jitter", "feedback.jitter"),
    ] {
        let (text, line) = edited(from, to);
        let error = folder.refused(&text, &[]);
        let wanted = format!("recipe.toml:{line}: {key}: unknown key; did you mean {near}?");
        assert!(error.lines().any(|found| found == wanted), "wanted {wanted}\nfound  {error}");
    }
    let (text, line) = edited("device = \"cuda:1\"", "quantizaton = \"4bit\"");
    let wanted = format!("recipe.toml:{line}: model.quantizaton: unknown key; known here: base, dtype, device");
    assert_eq!(folder.refused(&text, &[]), wanted);
}

#[test]
fn wrong_types_ranges_and_words_say_what_was_expected() {
    let folder = Folder::new();
    for (from, to, wanted) in [
        ("lr = 1e-4", "lr = \"fast\"", "train.lr: expected a number, found the string \"fast\""),
        ("accumulate = 2", "accumulate = 2.5", "train.accumulate: expected an integer, found the number 2.5"),
        ("recompute = true", "recompute = 1", "train.recompute: expected true or false, found the integer 1"),
        (
            "[\"train.parquet\"]",
            "\"train.parquet\"",
            "data.train: expected a list of strings such as [\"a\", \"b\"], found the string \"train.parquet\"",
        ),
        (
            "[\"q_proj\", \"v_proj\"]",
            "3",
            "lora.targets: expected \"all-linear\" or a list of strings such as [\"a\", \"b\"], found the integer 3",
        ),
        (
            "[\"q_proj\", \"v_proj\"]",
            "\"all-linaer\"",
            "lora.targets: \"all-linaer\" is not allowed; did you mean \"all-linear\"? allowed: all-linear",
        ),
        ("[\"q_proj\", \"v_proj\"]", "[\"q_proj\", 3]", "lora.targets[1]: expected a string, found the integer 3"),
        ("dropout = 0.0", "dropout = 1.0", "lora.dropout: 1.0 is out of range, allowed: 0 <= value < 1"),
        ("rank = 8", "rank = 0", "lora.rank: 0 is out of range, allowed: 1 <= value <= 1024"),
        ("lr = 1e-4", "lr = 0", "train.lr: 0 is out of range, allowed: 0 < value"),
        ("lr = 1e-4", "lr = inf", "train.lr: inf is not a finite number"),
        ("weight_decay = 0.01", "weight_decay = nan", "train.weight_decay: NaN is not a finite number"),
        ("seed = 7", "seed = -1", "seed: -1 is out of range, allowed: 0 <= value"),
        ("warmup = 0.1", "warmup = 1", "train.warmup: 1 is out of range, allowed: 0 <= value < 1"),
        (
            "prompt_loss_weight = 0.2",
            "prompt_loss_weight = 2",
            "train.prompt_loss_weight: 2 is out of range, allowed: 0 <= value <= 1",
        ),
        ("epochs = 1.5", "epochs = 0.0", "train.epochs: 0.0 is out of range, allowed: 0 < value <= 1000"),
        // Each epoch is planned before the first step: this one never began.
        ("epochs = 1.5", "epochs = 2e3", "train.epochs: 2000.0 is out of range, allowed: 0 < value <= 1000"),
        ("max_seq_len = 256", "max_seq_len = 1", "data.max_seq_len: 1 is out of range, allowed: 2 <= value"),
        ("until = 0.5", "until = 1.5", "train.phases[0].until: 1.5 is out of range, allowed: 0 < value <= 1"),
        (
            "loss = [0.3, 1.0]",
            "loss = [-0.3, 1.0]",
            "train.phases[1].loss[0]: -0.3 is out of range, allowed: 0 <= value",
        ),
        ("loss = [0.3, 1.0]", "loss = [0.3]", "train.phases[1].loss: expected a list of 2, found 1"),
        ("{ 1 = 1.0 }", "{ 9 = 1.0 }", "train.phases[0].mix.9: not allowed here; allowed: 1, 2, 3, 4, 5, 6, 7, 8"),
        ("{ 1 = 1.0 }", "{ 1 = 1.5 }", "train.phases[0].mix.1: 1.5 is out of range, allowed: 0 <= value <= 1"),
        (
            "form = \"replace\"",
            "form = \"residul\"",
            "feedback.form: \"residul\" is not allowed; did you mean \"residual\"? allowed: residual, replace",
        ),
        (
            "schedule = \"wsd\"",
            "schedule = \"cosin\"",
            "train.schedule: \"cosin\" is not allowed; did you mean \"cosine\"? allowed: cosine, linear, constant, wsd",
        ),
        (
            "prefix = \"prompt\"",
            "prefix = \"promt\"",
            "feedback.prefix: \"promt\" is not allowed; did you mean \"prompt\"? allowed: random, prompt, none",
        ),
        (
            "\"soft\"",
            "\"sotf\"",
            "eval.modes[1]: \"sotf\" is not allowed; did you mean \"soft\"? allowed: standard, soft, fused",
        ),
        (
            "device = \"cuda:1\"",
            "device = \"cuda:x\"",
            "model.device: \"cuda:x\" is not allowed; did you mean \"cuda:0\"? allowed: cpu, cuda:0, metal",
        ),
        ("adapter = \"adapters/full\"", "adapter = \"\"", "output.adapter: must not be empty"),
        ("id = \"id\"", "id = 2026-01-01", "data.id: expected a string, found the date 2026-01-01"),
        ("modes = [\"standard\", \"soft\", \"fused\"]", "modes = []", "eval.modes: must not be empty"),
    ] {
        let (text, line) = edited(from, to);
        let error = folder.refused(&text, &[]);
        assert_eq!(error.lines().next(), Some(format!("recipe.toml:{line}: {wanted}").as_str()));
    }
}

#[test]
fn missing_keys_are_named() {
    let folder = Folder::new();
    let error = folder.refused("name = \"x\"\n[data]\npacking = true\n[lora]\n", &[]);
    for wanted in [
        "recipe.toml: model: this required section is missing",
        "recipe.toml: output: this required section is missing",
        "recipe.toml:2: data.train: this required key is missing",
    ] {
        assert!(error.lines().any(|line| line == wanted), "wanted {wanted}\nfound  {error}");
    }
}

#[test]
fn all_that_is_wrong_is_said_at_once_in_the_order_of_the_lines() {
    let text = FULL.replace("seed = 7", "sede = 7").replace("rank = 8", "rank = 0").replace("every = 20", "evry = 20");
    let error = Folder::new().refused(&text, &[]);
    let keys: Vec<_> = error.lines().map(|line| line.split(": ").nth(1).unwrap()).collect();
    assert_eq!(keys, ["sede", "lora.rank", "output.checkpoints.evry", "output.checkpoints.every"]);
}

#[test]
fn what_is_not_toml_names_the_line() {
    let error = Folder::new().refused("[model]\nbase = \n", &[]);
    assert!(error.starts_with("recipe.toml:2: not valid TOML: "), "{error}");
    let error = Folder::new().refused("seed = 1\nseed = 2\n", &[]);
    assert!(error.starts_with("recipe.toml:2: not valid TOML: duplicate key"), "{error}");
    let missing = Recipe::load("/nowhere/recipe.toml", &[]).unwrap_err();
    assert_eq!(missing.exit_code(), 2);
    assert!(missing.to_string().starts_with("/nowhere/recipe.toml: cannot read the recipe"), "{missing}");
}

#[test]
fn keys_that_do_not_hold_together_are_refused() {
    let folder = Folder::new();
    for (from, to, wanted) in [
        (
            "validation = [\"val.parquet\"]",
            "validation = [\"val.parquet\"]\nvalidation_fraction = 0.1",
            "data.validation_fraction: give either data.validation or this, not both",
        ),
        ("epochs = 1.5", "epochs = 1.5\nmax_steps = 10", "train.max_steps: give either train.epochs or this, not both"),
        (
            "[data.prompt_completion]",
            "[data.text]\ntemplate = \"{{ title }}\"\n[data.prompt_completion]",
            "data: expected exactly one of [data.prompt_completion], [data.text] and [data.chat], \
             found [data.prompt_completion] and [data.text]",
        ),
        (
            "form = \"replace\"",
            "form = \"residual\"",
            "feedback.init: warm_start is for form = \"replace\"; \"residual\" starts equal to the base as it is",
        ),
        (
            "batch_tokens = 512",
            "batch_tokens = 128",
            "train.batch_tokens: 128 is less than data.max_seq_len = 256: a document may not fit",
        ),
        ("[\"q_proj\", \"v_proj\"]", "[]", "lora.targets: expected \"all-linear\" or names of modules, found none"),
        ("[\"q_proj\", \"v_proj\"]", "[\"q_proj\", \"q_proj\"]", "lora.targets: \"q_proj\" is listed twice"),
        ("until = 1.0", "until = 0.9", "train.phases[1].until: the last phase must end at 1, found 0.9"),
        ("until = 0.5", "until = 1.0", "train.phases[1].until: 1 does not rise: the phase before ends at 1"),
        (
            "{ 2 = 0.9, 3 = 0.1 }",
            "{ 2 = 0.9, 3 = 0.2 }",
            "train.phases[1].mix: the probabilities sum to 1.1, expected 1",
        ),
        ("{ 2 = 0.9, 3 = 0.1 }", "{}", "train.phases[1].mix: the probabilities sum to 0, expected 1"),
        ("loss = [0.3, 1.0]", "loss = [0, 0]", "train.phases[1].loss: both weights are 0, nothing would be trained"),
        (
            "{ 2 = 0.9, 3 = 0.1 }\nloss = [0.3, 1.0]",
            "{ 1 = 0.9, 3 = 0.1 }\nloss = [0.0, 1.0]",
            "train.phases[1].loss: the weight of pass 1 is 0, but mix draws steps of one pass: they would train nothing",
        ),
        (
            "loss = [0.3, 1.0]",
            "loss = [1.0, 0.0]",
            "train.phases[1].update: \"feedback\" gets no gradient: the loss weight of the later passes is 0",
        ),
        (
            "{ 2 = 0.9, 3 = 0.1 }",
            "{ 1 = 1.0 }",
            "train.phases[1].update: \"feedback\" gets no gradient: mix draws steps of one pass only",
        ),
        (
            "{ 2 = 0.9, 3 = 0.1 }\nloss = [0.3, 1.0]\nupdate = [\"lora\", \"feedback\"]",
            "{ 1 = 0.5, 2 = 0.5 }\nupdate = [\"feedback\"]",
            "train.phases[1].mix: steps of one pass give \"feedback\" no gradient, and the phase updates nothing else",
        ),
        ("update = [\"lora\"]", "update = [\"lora\", \"lora\"]", "train.phases[0].update: a group is listed twice"),
        ("update = [\"lora\"]", "update = []", "train.phases[0].update: must not be empty"),
        (
            "update = [\"lora\", \"feedback\"]",
            "update = [\"lora\"]",
            "train.phases: no phase updates \"feedback\", but there is a [feedback] section",
        ),
        ("\"soft\", \"fused\"", "\"fused\", \"fused\"", "eval.modes: a mode is listed twice"),
        (
            "modes = [\"standard\", \"soft\", \"fused\"]",
            "modes = [\"standard\"]",
            "eval.early_stopping.metric: this mode is not in eval.modes, so it is never measured",
        ),
        ("every = 10\n", "", "eval.early_stopping: needs eval.every, the steps between validations"),
        (
            "validation = [\"val.parquet\"]\n",
            "",
            "eval.early_stopping: needs data.validation or data.validation_fraction",
        ),
        ("validation = [\"val.parquet\"]\n", "", "eval.every: needs data.validation or data.validation_fraction"),
        ("\"Product: {{ title }}\"", "\"Product: {{ title }\"", "data.prompt_completion.prompt: syntax error"),
        (
            "\" {{ attributes }}\"",
            "\"\"\"{% for a in attributes %}\n{{ a }}\n{% endfro %}\"\"\"",
            "in line 3 of the template",
        ),
        (
            "\" {{ attributes }}\"",
            "\" { attributes }\"",
            "data.prompt_completion.completion: uses no column of the row; a column is written {{ name }}",
        ),
    ] {
        let (text, _) = edited(from, to);
        let error = folder.refused(&text, &[]);
        assert!(error.contains(wanted), "wanted {wanted}\nfound  {error}");
        let placed = |line: &str| {
            line.strip_prefix("recipe.toml:").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        assert!(error.lines().all(placed), "each has its line: {error}");
    }
}

#[test]
fn what_belongs_to_a_missing_section_is_refused() {
    let folder = Folder::new();
    let feedback = |extra: &str| folder.refused(&format!("{SMALL}{extra}"), &[]);
    let lines = SMALL.lines().count();
    assert_eq!(
        feedback("[train]\nfeedback_lr = 1e-3\n"),
        format!("recipe.toml:{}: train.feedback_lr: there is no [feedback] section", lines + 2)
    );
    assert_eq!(
        feedback("[eval]\nmodes = [\"standard\", \"fused\"]\n"),
        format!("recipe.toml:{}: eval.modes: without a [feedback] section the only mode is \"standard\"", lines + 2)
    );
    let error = feedback("[[train.phases]]\nuntil = 1\nmix = { 2 = 1.0 }\nupdate = [\"lora\", \"feedback\"]\n");
    assert!(error.contains("train.phases[0].mix: 2 passes need feedback weights, but there is no [feedback] section"));
    assert!(error.contains("train.phases[0].update: \"feedback\" cannot be updated without a [feedback] section"));
    let alone = SMALL.replace("[lora]", "[feedback]");
    let error = folder.refused(
        &format!("{alone}[train]\nlr = 1e-3\n[[train.phases]]\nuntil = 1\nmix = {{ 2 = 1.0 }}\nupdate = [\"lora\"]\n"),
        &[],
    );
    assert!(error.contains("train.phases[0].update: \"lora\" cannot be updated without a [lora] section"), "{error}");
    assert!(error.contains("train.lr: there is no [lora] section; the feedback weights have train.feedback_lr"));
    let neither = folder.refused(&SMALL.replace("[lora]\n", ""), &[]);
    assert_eq!(neither, "recipe.toml: nothing to train: there is neither a [lora] nor a [feedback] section");
}
