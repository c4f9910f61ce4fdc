//! A commented recipe to begin with.

/// What `fullband recipe new` was asked for.
pub struct Scaffold<'a> {
    /// Becomes the name of the run and of the adapter's folder.
    pub name: &'a str,
    pub format: ScaffoldFormat,
    pub base: &'a str,
    /// The training file, relative to the recipe's folder or the working folder.
    pub train: &'a str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaffoldFormat {
    PromptCompletion,
    Text,
    Chat,
}

/// The text of a recipe that loads as it is, once its training file is there.
pub fn scaffold(of: &Scaffold) -> String {
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let format = match of.format {
        ScaffoldFormat::PromptCompletion => PROMPT_COMPLETION,
        ScaffoldFormat::Text => TEXT,
        ScaffoldFormat::Chat => CHAT,
    };
    let adapter = format!("adapters/{}", of.name);
    [
        format!("name = {}\nseed = 42\n\n[model]\n", quoted(of.name)),
        "# Folder, .gguf file, hub id \"org/name@revision\", or a name that `fullband fetch` knows.\n".into(),
        format!("base = {}\n{MODEL}\n[data]\n", quoted(of.base)),
        "# Parquet files, folders, or names with *; from this file's folder, then from the working folder.\n".into(),
        format!("train = [{}]\n{DATA}\n{format}\n{METHOD}\n[output]\n", quoted(of.train)),
        format!("adapter = {}   # from the working folder\n", quoted(&adapter)),
        "checkpoints = { every = 100, keep = 2 }\n".into(),
    ]
    .concat()
}

const MODEL: &str = r#"dtype = "bf16"                  # of the frozen base: f32 | bf16
device = "cpu"                  # cpu | cuda:0 | metal
"#;

const DATA: &str = r#"validation_fraction = 0.1       # or validation = ["validation.parquet"]
max_seq_len = 512               # tokens
overlong = "drop"               # drop | truncate | error
packing = true
# id = "id"                     # column that names rows in reports
"#;

const PROMPT_COMPLETION: &str = r#"# Minijinja templates over the row's columns. The completion is trained.
[data.prompt_completion]
prompt = "{{ prompt }}"
completion = " {{ completion }}"
"#;

const TEXT: &str = r#"# A minijinja template over the row's columns. Every token is trained.
[data.text]
template = "{{ text }}"
"#;

const CHAT: &str = r#"# A column with a list of {role, content}; the assistant's turns are trained.
# Or, from other columns: user = "{{ question }}", assistant = "{{ answer }}" and, if wanted, system = "...".
[data.chat]
messages = "messages"
"#;

const METHOD: &str = r#"[lora]
rank = 16
alpha = 32
dropout = 0.05
targets = "all-linear"          # or a list such as ["q_proj", "v_proj"]
variant = "lora"                # lora | rslora | dora

# Latent feedback. Without this section (and "fused" below) this is plain LoRA fine-tuning.
[feedback]
form = "residual"               # residual | replace
gate = "sigmoid"                # sigmoid | signed
prefix = "random"               # random | prompt | none
jitter = 0.02

[train]
epochs = 2                      # or max_steps
batch_tokens = 1024             # tokens in a micro-batch, at least max_seq_len
accumulate = 1
lr = 5e-4
feedback_lr = 1e-3
schedule = "cosine"             # cosine | linear | constant | wsd
warmup = 0.05
prompt_loss_weight = 0.3        # weight of prompt tokens in the loss, 0 to 1
# Without [[train.phases]]: LoRA alone for half of the steps, then the feedback weights, then both.

[eval]
every = 50                      # steps
modes = ["standard", "fused"]
early_stopping = { metric = "fused", patience = 5 }
"#;
