//! Recipes: what loads, what is refused and in which words, overrides, the round trip, the schema, the shipped files.

mod refused;

use std::path::{Path, PathBuf};

use fullband::Error;
use fullband::recipe::{
    Checkpoints, Dtype, EarlyStopping, Form, Format, Group, Length, Mode, Recipe, Scaffold, ScaffoldFormat, Targets,
    Validation, scaffold, schema,
};

/// A folder with two (empty) corpus files; recipes never read them.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.file("train.parquet");
        folder.file("val.parquet");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        path
    }

    fn recipe(&self, text: &str) -> PathBuf {
        let path = self.path("recipe.toml");
        std::fs::write(&path, text).unwrap();
        path
    }

    fn load(&self, text: &str, overrides: &[&str]) -> Result<Recipe, Error> {
        let overrides: Vec<_> = overrides.iter().map(|text| text.to_string()).collect();
        Recipe::load(self.recipe(text), &overrides)
    }

    /// The error's text, with the folder taken out of it.
    fn refused(&self, text: &str, overrides: &[&str]) -> String {
        let error = self.load(text, overrides).expect_err("the recipe should be refused");
        assert_eq!(error.exit_code(), 2);
        error.to_string().replace(&format!("{}/", self.0.path().display()), "")
    }
}

const SMALL: &str = r#"[model]
base = "org/name"
[data]
train = ["train.parquet"]
[data.text]
template = "{{ title }}"
[lora]
[output]
adapter = "adapters/x"
"#;

const FULL: &str = r#"name = "full"
seed = 7

[model]
base = "org/name@main"
dtype = "f32"
device = "cuda:1"

[data]
train = ["train.parquet"]
validation = ["val.parquet"]
id = "id"
max_seq_len = 256
overlong = "truncate"
packing = false
[data.prompt_completion]
prompt = "Product: {{ title }}"
completion = " {{ attributes }}"

[lora]
rank = 8
alpha = 20
dropout = 0.0
targets = ["q_proj", "v_proj"]
variant = "dora"

[feedback]
form = "replace"
gate = "signed"
init = "warm_start"
prefix = "prompt"
jitter = 0.01

[train]
epochs = 1.5
batch_tokens = 512
accumulate = 2
lr = 1e-4
feedback_lr = 2e-3
schedule = "wsd"
warmup = 0.1
weight_decay = 0.01
clip_norm = 0
prompt_loss_weight = 0.2
recompute = true
[[train.phases]]
until = 0.5
mix = { 1 = 1.0 }
update = ["lora"]
[[train.phases]]
until = 1.0
mix = { 2 = 0.9, 3 = 0.1 }
loss = [0.3, 1.0]
update = ["lora", "feedback"]

[eval]
every = 10
modes = ["standard", "soft", "fused"]
early_stopping = { metric = "fused", patience = 3 }

[output]
adapter = "adapters/full"
checkpoints = { every = 20, keep = 3 }
"#;

/// `FULL` with one piece replaced, and the line on which the replacement begins.
fn edited(from: &str, to: &str) -> (String, usize) {
    assert_eq!(FULL.matches(from).count(), 1, "{from:?} must occur once");
    let at = FULL.find(from).unwrap();
    (FULL.replacen(from, to, 1), FULL[..at].lines().count() + usize::from(FULL[..at].ends_with('\n') || at == 0))
}

#[test]
fn every_key_is_read() {
    let recipe = Folder::new().load(FULL, &[]).unwrap();
    assert_eq!((recipe.name.as_str(), recipe.seed), ("full", 7));
    assert_eq!(recipe.model.base, "org/name@main");
    assert_eq!((recipe.model.dtype, recipe.model.device.as_str()), (Dtype::F32, "cuda:1"));
    assert!(matches!(&recipe.data.validation, Validation::Files(files) if files[0].ends_with("val.parquet")));
    assert_eq!((recipe.data.max_seq_len, recipe.data.packing, recipe.data.id.as_deref()), (256, false, Some("id")));
    let lora = recipe.lora.as_ref().unwrap();
    assert_eq!((lora.rank, lora.alpha, lora.dropout), (8, 20.0, 0.0));
    assert_eq!(lora.targets, Targets::Modules(vec!["q_proj".into(), "v_proj".into()]));
    assert_eq!(recipe.feedback.as_ref().unwrap().form, Form::Replace);
    assert_eq!(recipe.train.length, Length::Epochs(1.5));
    assert_eq!(recipe.train.clip_norm, None, "0 turns clipping off");
    assert!(recipe.train.recompute);
    assert_eq!(recipe.train.phases[0].loss, [1.0, 1.0]);
    assert_eq!(recipe.train.phases[1].mix.get(&3), Some(&0.1));
    assert_eq!(recipe.train.phases[1].update, [Group::Lora, Group::Feedback]);
    assert_eq!(recipe.eval.modes, [Mode::Standard, Mode::Soft, Mode::Fused]);
    assert_eq!(recipe.eval.early_stopping, Some(EarlyStopping { metric: Mode::Fused, patience: 3 }));
    assert_eq!(recipe.output.checkpoints, Some(Checkpoints { every: 20, keep: 3 }));
}

#[test]
fn defaults_without_feedback_are_plain_lora() {
    let recipe = Folder::new().load(SMALL, &[]).unwrap();
    assert_eq!((recipe.name.as_str(), recipe.seed), ("recipe", 42));
    assert_eq!((recipe.model.dtype, recipe.model.device.as_str()), (Dtype::Bf16, "cpu"));
    assert_eq!(recipe.data.validation, Validation::None);
    let lora = recipe.lora.unwrap();
    assert_eq!((lora.rank, lora.alpha, lora.dropout, lora.targets), (16, 32.0, 0.05, Targets::AllLinear));
    let train = recipe.train;
    assert_eq!((train.length, train.batch_tokens, train.accumulate), (Length::Epochs(2.0), 1024, 1));
    assert_eq!((train.lr, train.warmup, train.clip_norm), (5e-4, 0.05, Some(1.0)));
    assert_eq!(train.prompt_loss_weight, 0.0);
    assert_eq!(train.phases.len(), 1);
    assert_eq!(train.phases[0].mix.keys().collect::<Vec<_>>(), [&1]);
    assert_eq!(train.phases[0].update, [Group::Lora]);
    assert_eq!(recipe.eval.modes, [Mode::Standard]);
}

#[test]
fn feedback_has_a_late_schedule_unless_phases_are_given() {
    let folder = Folder::new();
    let both = folder.load(&SMALL.replace("[lora]", "[lora]\nrank = 4\n[feedback]"), &[]).unwrap();
    assert_eq!(both.lora.unwrap().alpha, 8.0, "twice the rank");
    assert_eq!(both.train.prompt_loss_weight, 0.3);
    assert_eq!(both.eval.modes, [Mode::Standard, Mode::Fused]);
    let ends: Vec<_> = both.train.phases.iter().map(|phase| phase.until).collect();
    assert_eq!(ends, [0.5, 0.6, 1.0]);
    assert_eq!(both.train.phases[1].update, [Group::Feedback]);
    assert_eq!(both.train.phases[1].loss, [0.0, 1.0]);
    let alone = folder.load(&SMALL.replace("[lora]", "[feedback]"), &[]).unwrap();
    assert_eq!(alone.train.phases.len(), 1);
    assert_eq!(alone.train.phases[0].update, [Group::Feedback]);
    assert!(alone.train.phases[0].mix.keys().all(|passes| *passes > 1));
}

#[test]
fn files_are_looked_for_beside_the_recipe_then_in_the_working_folder() {
    let folder = Folder::new();
    let (text, line) = edited("\"train.parquet\"", "\"absent.parquet\"");
    let error = Recipe::load(folder.recipe(&text), &[]).unwrap_err().to_string();
    let working = std::env::current_dir().unwrap();
    assert!(error.contains(&format!("recipe.toml:{line}: data.train[0]: \"absent.parquet\": no such file")), "{error}");
    assert!(error.contains(&format!("{} and absent.parquet", folder.path("absent.parquet").display())), "{error}");
    assert!(working.join("Cargo.toml").is_file(), "tests run in the package's folder");
    let here = folder.load(SMALL, &["data.train=[\"Cargo.toml\"]"]).unwrap();
    assert_eq!(here.data.train, [Path::new("Cargo.toml")], "the working folder, as seen from it");

    let b = folder.file("shards/train-1.parquet");
    let a = folder.file("shards/train-0.parquet");
    folder.file("shards/notes.txt");
    for typed in ["shards", "./shards/", "shards/train-*.parquet", "../shards"] {
        std::fs::create_dir_all(folder.path("recipes")).unwrap();
        let path = folder.path(if typed.starts_with("..") { "recipes/r.toml" } else { "r.toml" });
        std::fs::write(&path, SMALL.replace("train.parquet", typed)).unwrap();
        assert_eq!(Recipe::load(&path, &[]).unwrap().data.train, [a.clone(), b.clone()], "{typed}");
    }
    assert!(folder.refused(SMALL, &["data.train=[\"shards/x*\"]"]).contains("no file matches; tried shards/x* and "));
}

#[test]
fn a_base_that_is_a_path_must_exist_and_a_name_need_not() {
    let folder = Folder::new();
    let gguf = folder.file("models/tiny.gguf");
    let base = |typed: &str| folder.load(SMALL, &[&format!("model.base={typed}")]);
    assert_eq!(base("models/tiny.gguf").unwrap().model.base, gguf.to_str().unwrap());
    for name in ["org/name", "org/name@v1.0", "smollm2-135m-instruct"] {
        assert_eq!(base(name).unwrap().model.base, name);
    }
    for path in ["./absent", "../absent", "/absent", "absent.gguf", "a/b/c"] {
        let error = base(path).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--set model.base={path}: model.base: no such file or folder")), "{error}");
    }
}

#[test]
fn overrides_reach_every_key() {
    let folder = Folder::new();
    let recipe = folder
        .load(
            FULL,
            &[
                "train.lr=3e-4",
                "name=2024",
                "train.phases.0.until=0.4",
                "train.phases[1].mix={2=1.0}",
                "train.phases[1].loss[0]=0.5",
                "feedback.gate=sigmoid",
                "lora.targets=all-linear",
                "train.max_steps=20",
                "data.validation_fraction=0.2",
                "eval.early_stopping.patience = 9",
                "data.chat.messages=messages",
            ],
        )
        .unwrap();
    assert_eq!((recipe.train.lr, recipe.name.as_str()), (3e-4, "2024"));
    assert_eq!((recipe.train.phases[0].until, recipe.train.phases[1].loss), (0.4, [0.5, 1.0]));
    assert_eq!(recipe.train.phases[1].mix.len(), 1);
    assert_eq!(recipe.lora.as_ref().unwrap().targets, Targets::AllLinear);
    assert_eq!(recipe.train.length, Length::Steps(20), "takes the file's epochs away");
    assert_eq!(recipe.data.validation, Validation::Fraction(0.2));
    assert_eq!(recipe.eval.early_stopping.as_ref().unwrap().patience, 9);
    assert_eq!(recipe.data.format, Format::ChatMessages { messages: "messages".into() });

    let created = ["train.phases[0].until=1", "train.phases[0].mix.1=1.0", "train.phases[0].update=[\"lora\"]"];
    let recipe = folder.load(SMALL, &created).unwrap();
    assert_eq!((recipe.train.phases.len(), recipe.train.phases[0].mix[&1]), (1, 1.0));

    let plain = ["feedback=", "train.phases=", "train.feedback_lr=", "eval="];
    let recipe = folder.load(FULL, &plain).unwrap();
    assert!(recipe.feedback.is_none() && recipe.train.phases.len() == 1);
}

#[test]
fn an_override_at_fault_is_named() {
    let folder = Folder::new();
    for (text, wanted) in [
        ("train.lr=fast", "train.lr: expected a number, found the string \"fast\""),
        ("train.lr=-1", "train.lr: -1 is out of range, allowed: 0 < value"),
        ("train.shedule=cosine", "train.shedule: unknown key; did you mean train.schedule?"),
        ("trian.lr=1e-4", "trian: unknown key; did you mean train?"),
        (
            "feedback.form=residul",
            "feedback.form: \"residul\" is not allowed; did you mean \"residual\"? allowed: residual, replace",
        ),
        ("train.phases[3].until=1", "train.phases.3: expected an index from 0 to 2, this is a list of 2"),
        ("train.phases.x=1", "train.phases.x: expected an index from 0 to 2, this is a list of 2"),
        ("train.lr.x=1", "train.lr.x: train.lr is the number 0.0001, it has no keys"),
        ("train.lr", "expected key=value, such as train.lr=1e-4"),
        ("=1", "expected key=value, such as train.lr=1e-4"),
        ("train..lr=1", "expected key=value, such as train.lr=1e-4"),
        ("train.absent=", "train.absent: there is no such key to remove"),
        ("data.train=[\"a", "the value is not valid TOML: "),
        ("train.epochs=inf", "train.epochs: inf is not a finite number"),
    ] {
        let error = folder.refused(FULL, &[text]);
        let wanted = format!("--set {text}: {wanted}");
        assert!(error.starts_with(&wanted), "wanted {wanted}\nfound  {error}");
    }
    let both = folder.refused(FULL, &["train.epochs=1", "train.max_steps=3"]);
    assert_eq!(both, "--set train.max_steps=3: train.max_steps: give either train.epochs or this, not both");
}

#[test]
fn a_resolved_recipe_loads_to_the_same_again() {
    let folder = Folder::new();
    let chat = SMALL.replace(
        "[data.text]\ntemplate = \"{{ title }}\"",
        "validation_fraction = 0.1\n[data.chat]\nsystem = \"\"\"a \"b\"\nc\"\"\"\nuser = \"{{ q }}\"\nassistant = \"{{ a }}\"",
    );
    let alone = SMALL.replace("[lora]", "[feedback]");
    for text in [SMALL, FULL, &chat, &alone] {
        let recipe = folder.load(text, &[]).unwrap();
        let written = folder.path("out.toml");
        std::fs::write(&written, recipe.to_toml()).unwrap();
        assert_eq!(Recipe::load(&written, &[]).unwrap(), recipe);
        assert_eq!(Recipe::load_resolved(&written).unwrap(), recipe);
    }
    let written = folder.path("out.toml");
    std::fs::remove_file(folder.path("train.parquet")).unwrap();
    assert!(Recipe::load(&written, &[]).is_err());
    Recipe::load_resolved(&written).expect("a resolved recipe outlives its corpus");
}

#[test]
fn a_difference_is_named_and_only_what_matters_forbids_to_resume() {
    let folder = Folder::new();
    let old = folder.load(FULL, &[]).unwrap();
    assert_eq!(old.diff(&old), [] as [&str; 0]);
    let moved = ["output.adapter=elsewhere", "output.checkpoints.keep=9", "eval.every=5", "name=other"];
    let new = folder.load(FULL, &moved).unwrap();
    assert_eq!(old.diff(&new).len(), 4);
    assert_eq!(old.resume_conflicts(&new), [] as [&str; 0]);
    let changed = ["train.lr=5e-4", "train.phases[1].mix.2=0.8", "train.phases[1].mix.3=0.2", "output.adapter=e"];
    let new = folder.load(FULL, &changed).unwrap();
    assert_eq!(
        old.resume_conflicts(&new),
        ["train.lr: 0.0001 -> 0.0005", "train.phases[1].mix.2: 0.9 -> 0.8", "train.phases[1].mix.3: 0.1 -> 0.2"]
    );
    let new = folder.load(FULL, &["train.max_steps=3"]).unwrap();
    assert_eq!(old.resume_conflicts(&new), ["train.epochs: 1.5 -> not set", "train.max_steps: not set -> 3"]);
}

#[test]
fn columns_are_known_with_the_key_that_uses_them() {
    let columns = Folder::new().load(FULL, &[]).unwrap().template_columns().unwrap();
    let columns: Vec<_> = columns.iter().map(|(column, key)| (column.as_str(), *key)).collect();
    let wanted = [
        ("attributes", "data.prompt_completion.completion"),
        ("id", "data.id"),
        ("title", "data.prompt_completion.prompt"),
    ];
    assert_eq!(columns, wanted);
}

#[test]
fn the_schema_lists_words_ranges_and_defaults_and_allows_nothing_else() {
    let schema = schema();
    let at = |path: &str| {
        path.split('.').fold(&schema, |schema, name| match name {
            "[]" => &schema["items"],
            name => &schema["properties"][name],
        })
    };
    let words = |path: &str| -> Vec<String> {
        let text = at(path).to_string();
        let known = ["cosine", "linear", "constant", "wsd", "residual", "replace", "standard", "soft", "fused"];
        known.iter().filter(|word| text.contains(&format!("\"{word}\""))).map(|word| word.to_string()).collect()
    };
    assert_eq!(words("train.schedule"), ["cosine", "linear", "constant", "wsd"]);
    assert_eq!(words("feedback.form"), ["residual", "replace"]);
    assert_eq!(words("eval.modes.[]"), ["standard", "soft", "fused"]);
    for table in ["model", "data", "data.chat", "lora", "feedback", "train", "train.phases.[]", "eval", "output"] {
        assert_eq!(at(table)["additionalProperties"], false, "{table}");
        assert!(at(table)["description"].is_string(), "{table}");
    }
    assert_eq!(schema["additionalProperties"], false);
    assert_eq!(schema["required"], serde_json::json!(["model", "data", "output"]));
    assert_eq!(at("lora.rank")["default"], 16);
    assert_eq!((&at("lora.dropout")["minimum"], &at("lora.dropout")["exclusiveMaximum"]), (&0.into(), &1.into()));
    assert!(!schema.to_string().contains("null"), "TOML has no null");
}

#[test]
fn the_shipped_recipes_load_and_survive_the_round_trip() {
    let folder = Folder::new();
    let data = format!("data.train=[{:?}]", folder.path("train.parquet"));
    let validation = format!("data.validation=[{:?}]", folder.path("val.parquet"));
    let mut shipped: Vec<_> = Path::new("recipes").read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    shipped.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    assert!(shipped.len() >= 4);
    for path in shipped {
        let recipe = Recipe::load(&path, &[data.clone(), validation.clone()]).unwrap();
        assert_eq!(Some(recipe.name.as_str()), path.file_stem().and_then(|stem| stem.to_str()));
        let written = folder.path("out.toml");
        std::fs::write(&written, recipe.to_toml()).unwrap();
        assert_eq!(Recipe::load(&written, &[]).unwrap(), recipe, "{}", path.display());
        let feedback = recipe.feedback.expect("the shipped recipes train feedback");
        assert!(feedback.jitter > 0.0);
        let phases = &recipe.train.phases;
        assert!(phases.len() > 1 && phases[0].mix.keys().all(|passes| *passes == 1), "multi-pass training comes late");
    }
}

#[test]
fn the_recommend_recipe_renders_lists_as_lines() {
    let folder = Folder::new();
    let data = format!("data.train=[{:?}]", folder.path("train.parquet"));
    let validation = format!("data.validation=[{:?}]", folder.path("val.parquet"));
    let recipe = Recipe::load("recipes/recommend.toml", &[data, validation]).unwrap();
    let Format::PromptCompletion { prompt, completion } = &recipe.data.format else {
        panic!("not prompt and completion")
    };
    let row = minijinja::context! { history => ["red mug", "blue mug"], candidates => ["tea", "cup"], target => "tea" };
    let render = |template: &str| minijinja::Environment::new().render_str(template, &row).unwrap();
    let wanted = "Bought so far:\n- red mug\n- blue mug\nCandidates:\n1. tea\n2. cup\nBought next:";
    assert_eq!((render(prompt).as_str(), render(completion).as_str()), (wanted, " tea"));
}

#[test]
fn a_scaffold_loads_clean() {
    let folder = Folder::new();
    for format in [ScaffoldFormat::PromptCompletion, ScaffoldFormat::Text, ScaffoldFormat::Chat] {
        let scaffold = Scaffold { name: "my \"shop\"", format, base: "org/name", train: "train.parquet" };
        let recipe = folder.load(&fullband::recipe::scaffold(&scaffold), &[]).unwrap();
        assert_eq!(recipe.name, "my \"shop\"");
        assert_eq!(recipe.data.train.len(), 1);
    }
    let text = scaffold(&Scaffold { name: "x", format: ScaffoldFormat::Text, base: "b", train: "absent.parquet" });
    assert!(folder.refused(&text, &[]).contains("data.train[0]: \"absent.parquet\": no such file"));
}
