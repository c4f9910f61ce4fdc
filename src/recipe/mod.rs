//! Recipes: what a run is asked to do. [`Recipe`] is the resolved form (defaults filled in, overrides applied, paths
//! found, checked); nothing downstream re-interprets what was typed.

//!
//! A recipe goes through two stages. `written` holds what can be typed; `document` keeps the place of every key (file line
//! or `--set`), `structure` checks keys, types and ranges against the JSON schema of the written types, and `resolve` turns
//! the written recipe into a [`Recipe`] or says, with the place, why it does not hold together. Not checked here, because it
//! takes the base or the corpus: module names of `lora.targets`, and the columns that templates use
//! ([`Recipe::template_columns`]).

mod document;
mod paths;
mod phases;
mod render;
mod resolve;
mod scaffold;
mod schema;
mod structure;
mod templates;
mod written;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use document::Document;
use paths::Places;

pub use scaffold::{Scaffold, ScaffoldFormat, scaffold};
pub use schema::schema;

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

impl Recipe {
    /// Reads the recipe at `path`, applies `overrides` (`train.lr=1e-4`, see `--set`), fills in the defaults and checks
    /// all that needs neither the base nor the rows, files included. Input files are looked for relative to the recipe's
    /// folder, then to the working folder. The error is [`Error::Recipe`], or [`Error::Usage`] where an override is at
    /// fault, and names everything that is wrong, each with line, key and what was expected.
    pub fn load(path: impl AsRef<Path>, overrides: &[String]) -> Result<Self> {
        let path = path.as_ref();
        let places = Places::of(path).map_err(Error::io(path))?;
        Self::read(path, overrides, Some(&places))
    }

    /// Reads a resolved recipe as [`Recipe::to_toml`] wrote it, for example from an adapter's folder. The corpus and the
    /// base that it names need not be there any more.
    pub fn load_resolved(path: impl AsRef<Path>) -> Result<Self> {
        Self::read(path.as_ref(), &[], None)
    }

    fn read(path: &Path, overrides: &[String], places: Option<&Places>) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| Error::recipe(path, 0, format!("cannot read the recipe: {e}")))?;
        let schema = schema();
        let mut document = Document::parse(path, &text)?;
        document.set(overrides, &schema)?;
        let problems = structure::check(&document, &schema);
        if !problems.is_empty() {
            return Err(document.error(problems));
        }
        let written = serde_json::from_value(document.to_json()).map_err(|e| Error::recipe(path, 0, e.to_string()))?;
        resolve::resolve(&document, written, places).map_err(|problems| document.error(problems))
    }

    /// The columns that the recipe reads, each with the key that (first) names it: `title` ->
    /// `data.prompt_completion.prompt`.
    pub fn template_columns(&self) -> Result<BTreeMap<String, &'static str>> {
        let mut columns = BTreeMap::new();
        for (key, template) in self.data.format.templates() {
            let used = templates::columns(template).map_err(|message| Error::Usage(format!("{key}: {message}")))?;
            for column in used {
                columns.entry(column).or_insert(key);
            }
        }
        if let Format::ChatMessages { messages } = &self.data.format {
            columns.insert(messages.clone(), "data.chat.messages");
        }
        if let Some(id) = &self.data.id {
            columns.entry(id.clone()).or_insert("data.id");
        }
        Ok(columns)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct ModelRecipe {
    /// Folder, `.gguf` file, hub id `org/name@revision`, or a name that `fullband fetch` knows.
    pub base: String,
    pub dtype: Dtype,
    /// `cpu`, `cuda:N` or `metal`.
    pub device: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    F32,
    #[default]
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlong {
    #[default]
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

impl Format {
    /// The templates with their keys.
    pub fn templates(&self) -> Vec<(&'static str, &str)> {
        match self {
            Self::Text { template } => vec![("data.text.template", template)],
            Self::PromptCompletion { prompt, completion } => {
                vec![("data.prompt_completion.prompt", prompt), ("data.prompt_completion.completion", completion)]
            }
            Self::ChatMessages { .. } => Vec::new(),
            Self::ChatTurns { system, user, assistant } => {
                let mut templates = vec![("data.chat.user", user.as_str()), ("data.chat.assistant", assistant)];
                templates.extend(system.as_deref().map(|system| ("data.chat.system", system)));
                templates
            }
        }
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// How the carried state enters the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// Added to the token's embedding; zero at the start.
    Residual,
    /// In place of the embedding: the paper's, made for pretraining from scratch.
    Replace,
}

/// What the token's embedding does to the carried state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// `sigma(z)`, the paper's.
    Sigmoid,
    /// `2 sigma(z) - 1`, which can turn a sign.
    Signed,
}

/// How the feedback weights start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FeedbackInit {
    Default,
    /// Fitted so that the fused pass reproduces the base; `replace` only.
    WarmStart,
}

/// Positions of a later pass that keep their plain embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Prefix {
    /// A cut drawn for each document and pass.
    Random,
    /// Exactly the prompt: what SOFT does.
    Prompt,
    /// Only the first position: what FUSED does.
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

/// The learning rate after warm-up, down to 0 at the end except for `constant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Schedule {
    Cosine,
    Linear,
    Constant,
    /// Warm-up, stable, decay: constant until the last stretch.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
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
