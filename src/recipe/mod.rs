//! Recipes: what a run is asked to do. [`Recipe`] is the resolved form (defaults filled in, overrides applied, paths
//! found, checked); nothing downstream re-interprets what was typed.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// A resolved recipe.
#[derive(Clone, Debug, PartialEq)]
pub struct Recipe {
    pub name: String,
    pub seed: u64,
    pub model: ModelRecipe,
    pub data: DataRecipe,
    pub lora: Option<LoraRecipe>,
    pub feedback: Option<FeedbackRecipe>,
    pub train: TrainRecipe,
    pub eval: EvalRecipe,
    pub output: OutputRecipe,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelRecipe {
    /// Folder, `.gguf` file, hub id `org/name@revision`, or a name that `fullband fetch` knows.
    pub base: String,
    pub dtype: Dtype,
    /// `cpu`, `cuda:N` or `metal`.
    pub device: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dtype {
    F32,
    Bf16,
}

#[derive(Clone, Debug, PartialEq)]
pub struct DataRecipe {
    pub train: Vec<PathBuf>,
    pub validation: Validation,
    pub max_seq_len: usize,
    pub overlong: Overlong,
    pub packing: bool,
    /// Column that names rows in reports; none: file and row number.
    pub id: Option<String>,
    pub format: Format,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Validation {
    Files(Vec<PathBuf>),
    /// Share of the training rows that is held out, `0 < fraction < 1`.
    Fraction(f64),
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlong {
    Drop,
    Truncate,
    Error,
}

/// How a row becomes a document. The strings are minijinja templates over the row's columns.
#[derive(Clone, Debug, PartialEq)]
pub enum Format {
    /// Every token is trained.
    Text {
        template: String,
    },
    /// The completion is trained.
    PromptCompletion {
        prompt: String,
        completion: String,
    },
    /// `messages` names a column with a list of `{role, content}`.
    ChatMessages {
        messages: String,
    },
    ChatTurns {
        system: Option<String>,
        user: String,
        assistant: String,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct LoraRecipe {
    pub rank: usize,
    pub alpha: f64,
    pub dropout: f64,
    pub targets: Targets,
    pub variant: LoraVariant,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    AllLinear,
    /// Module names without prefix: `q_proj`, `down_proj`, ...
    Modules(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LoraVariant {
    Lora,
    Rslora,
    Dora,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FeedbackRecipe {
    pub form: Form,
    pub gate: Gate,
    pub init: FeedbackInit,
    pub prefix: Prefix,
    pub jitter: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    Residual,
    Replace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    Sigmoid,
    Signed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedbackInit {
    Default,
    WarmStart,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    Random,
    Prompt,
    None,
}

#[derive(Clone, Debug, PartialEq)]
pub struct TrainRecipe {
    pub length: Length,
    /// Tokens in a micro-batch, trained and context together.
    pub batch_tokens: usize,
    /// Micro-batches in an optimiser step.
    pub accumulate: usize,
    pub lr: f64,
    pub feedback_lr: f64,
    pub schedule: Schedule,
    /// Share of the steps, `0 <= warmup < 1`.
    pub warmup: f64,
    pub weight_decay: f64,
    pub clip_norm: Option<f64>,
    pub prompt_loss_weight: f64,
    pub recompute: bool,
    /// Rising `until`, the last one 1. Never empty.
    pub phases: Vec<Phase>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Length {
    Epochs(f64),
    Steps(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    Cosine,
    Linear,
    Constant,
    Wsd,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Share of all steps at which the phase ends.
    pub until: f64,
    /// Passes K -> probability; sums to 1.
    pub mix: BTreeMap<usize, f64>,
    /// Weight of pass 1 and of the mean of the later passes.
    pub loss: [f64; 2],
    pub update: Vec<Group>,
}

/// A group of trained tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    Lora,
    Feedback,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EvalRecipe {
    /// Optimiser steps between validations; none: at the end only.
    pub every: Option<usize>,
    pub modes: Vec<Mode>,
    pub early_stopping: Option<EarlyStopping>,
}

/// Decode modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Standard,
    Soft,
    Fused,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EarlyStopping {
    pub metric: Mode,
    pub patience: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct OutputRecipe {
    pub adapter: PathBuf,
    pub checkpoints: Option<Checkpoints>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoints {
    pub every: usize,
    pub keep: usize,
}
