//! The recipe as it is typed: serde structs whose field names are the keys, whose doc comments become the JSON schema and
//! whose `range` and `length` attributes are the limits that [`super::structure`] checks. Defaults that do not depend on
//! another key stand here; the others are filled in by [`super::resolve`].

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Dtype, FeedbackInit, Form, Gate, Group, LoraVariant, Mode, Overlong, Prefix, Schedule};

/// What to fine-tune, on what, and how: the recipe of `fullband train`. Only `model`, `data` and `output` are required;
/// at least one of `lora` and `feedback` must be there.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "fullband recipe", rename = "Recipe")]
pub struct Written {
    /// Name of the run in reports. Default: the recipe's file name without `.toml`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Everything drawn at random (order, passes, dropout, prefix cuts, jitter, new weights) derives from it.
    #[serde(default = "seed")]
    pub seed: u64,
    pub model: Model,
    pub data: Data,
    /// LoRA adapters. Without this section the feedback weights alone are trained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<Lora>,
    /// Latent feedback. Without this section this is plain LoRA fine-tuning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feedback: Option<Feedback>,
    #[serde(default)]
    pub train: Train,
    #[serde(default)]
    pub eval: Eval,
    pub output: Output,
}

fn seed() -> u64 {
    42
}

/// The pretrained checkpoint; its weights stay frozen.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Folder, `.gguf` file, hub id `org/name@revision`, or a name that `fullband fetch` knows.
    #[schemars(length(min = 1))]
    pub base: String,
    /// Type of the frozen base in memory. What is trained is always f32.
    #[serde(default)]
    pub dtype: Dtype,
    /// `cpu`, `cuda:N` or `metal`.
    #[serde(default = "device")]
    #[schemars(extend("pattern" = "^(cpu|metal|cuda(:[0-9]+)?)$"))]
    pub device: String,
}

fn device() -> String {
    "cpu".into()
}

/// The corpus and how its rows become documents: exactly one of `prompt_completion`, `text` and `chat`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Parquet files, folders of them, or names with `*` in the last part. Relative to the recipe's folder, then to the
    /// working folder.
    #[schemars(length(min = 1))]
    pub train: Vec<String>,
    /// As `train`, for validation. Without this and `validation_fraction` nothing is validated.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    #[schemars(extend("x-instead-of" = ["validation_fraction"]))]
    pub validation: Option<Vec<String>>,
    /// Instead of `validation`: share of the training rows that is held out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0, "exclusiveMaximum" = 1))]
    #[schemars(extend("x-instead-of" = ["validation"]))]
    pub validation_fraction: Option<f64>,
    /// Longest document in tokens.
    #[serde(default = "max_seq_len")]
    #[schemars(range(min = 2))]
    pub max_seq_len: usize,
    /// What happens to longer ones: left out and counted, cut at the end, or an error.
    #[serde(default)]
    pub overlong: Overlong,
    /// Several documents in a micro-batch (never seeing each other); false: one.
    #[serde(default = "packing")]
    pub packing: bool,
    /// Column that names rows in reports. Default: file and row number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-instead-of" = ["text", "chat"]))]
    pub prompt_completion: Option<PromptCompletion>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-instead-of" = ["prompt_completion", "chat"]))]
    pub text: Option<Text>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-instead-of" = ["prompt_completion", "text"]))]
    pub chat: Option<Chat>,
}

fn max_seq_len() -> usize {
    1024
}

fn packing() -> bool {
    true
}

/// The completion is trained; the prompt as `train.prompt_loss_weight` says. Both are minijinja templates over the row's
/// columns.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PromptCompletion {
    #[schemars(length(min = 1))]
    pub prompt: String,
    #[schemars(length(min = 1))]
    pub completion: String,
}

/// Plain text of which every token is trained.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Text {
    /// Minijinja template over the row's columns.
    #[schemars(length(min = 1))]
    pub template: String,
}

/// Turns in the base's own chat template; the assistant's are trained. Either `messages`, or `user` and `assistant` (and
/// `system`).
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Chat {
    /// Name of a column with a list of `{role, content}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    #[schemars(extend("x-instead-of" = ["system", "user", "assistant"]))]
    pub messages: Option<String>,
    /// Minijinja template over the row's columns, as the two below.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    #[schemars(extend("x-instead-of" = ["messages"]))]
    pub system: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    #[schemars(extend("x-instead-of" = ["messages"]))]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    #[schemars(extend("x-instead-of" = ["messages"]))]
    pub assistant: Option<String>,
}

/// LoRA, in PEFT's terms.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Lora {
    #[schemars(range(min = 1, max = 1024))]
    pub rank: usize,
    /// The update is scaled by `alpha / rank`. Default: twice the rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub alpha: Option<f64>,
    /// On the input of the adapter, training only.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub dropout: f64,
    /// `"all-linear"` (every linear layer but the head), or a list of module names such as `["q_proj", "v_proj"]`.
    pub targets: TargetsWritten,
    /// `rslora` scales by `alpha / sqrt(rank)`; `dora` trains the magnitude of each output apart.
    pub variant: LoraVariant,
}

impl Default for Lora {
    fn default() -> Self {
        Self {
            rank: 16,
            alpha: None,
            dropout: 0.05,
            targets: TargetsWritten::Word(AllLinear::AllLinear),
            variant: LoraVariant::Lora,
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum TargetsWritten {
    Word(AllLinear),
    Modules(Vec<String>),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
pub enum AllLinear {
    #[serde(rename = "all-linear")]
    AllLinear,
}

/// Latent feedback: each position's input is fused with the state of the one before.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Feedback {
    pub form: Form,
    pub gate: Gate,
    pub init: FeedbackInit,
    pub prefix: Prefix,
    /// Noise on the carried state, uniform in `[-jitter, jitter]`, training only.
    #[schemars(range(min = 0, max = 1))]
    pub jitter: f64,
}

impl Default for Feedback {
    fn default() -> Self {
        Self {
            form: Form::Residual,
            gate: Gate::Sigmoid,
            init: FeedbackInit::Default,
            prefix: Prefix::Random,
            jitter: 0.02,
        }
    }
}

/// The loop. Steps are optimiser steps.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Train {
    /// Times through the training rows; may be a fraction. Default 2, unless `max_steps` is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 1000), extend("exclusiveMinimum" = 0))]
    #[schemars(extend("x-instead-of" = ["max_steps"]))]
    pub epochs: Option<f64>,
    /// Instead of `epochs`: steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    #[schemars(extend("x-instead-of" = ["epochs"]))]
    pub max_steps: Option<usize>,
    /// Tokens in a micro-batch, trained and context together; at least `data.max_seq_len`.
    /// Default: 1024, or `data.max_seq_len` where that is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2))]
    pub batch_tokens: Option<usize>,
    /// Micro-batches in a step. The loss is normalised over the trained tokens of all of them.
    #[schemars(range(min = 1))]
    pub accumulate: usize,
    /// Peak learning rate of the LoRA weights. Default 5e-4.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub lr: Option<f64>,
    /// Peak learning rate of the feedback weights. Default 1e-3.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub feedback_lr: Option<f64>,
    pub schedule: Schedule,
    /// Share of the steps in which the learning rate rises from 0.
    #[schemars(range(min = 0), extend("exclusiveMaximum" = 1))]
    pub warmup: f64,
    #[schemars(range(min = 0))]
    pub weight_decay: f64,
    /// Largest norm of the gradient over all trained tensors; 0: not clipped.
    #[schemars(range(min = 0))]
    pub clip_norm: f64,
    /// Weight of a prompt token in the loss; a completion token weighs 1. Default 0.3 with feedback (it gives the feedback
    /// weights enough signal where rows are scarce), 0 without.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub prompt_loss_weight: Option<f64>,
    /// Re-run each layer in its backward instead of keeping what it computed: less memory, more time.
    pub recompute: bool,
    /// Stages of training in their order. Default with LoRA and feedback: LoRA alone to 0.5, the feedback weights alone to
    /// 0.6, then both with two or three passes. With one of them: that one throughout.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub phases: Option<Vec<PhaseWritten>>,
}

impl Default for Train {
    fn default() -> Self {
        Self {
            epochs: None,
            max_steps: None,
            batch_tokens: None,
            accumulate: 1,
            lr: None,
            feedback_lr: None,
            schedule: Schedule::Cosine,
            warmup: 0.05,
            weight_decay: 0.0,
            clip_norm: 1.0,
            prompt_loss_weight: None,
            recompute: false,
            phases: None,
        }
    }
}

/// A stage of training.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Phase")]
pub struct PhaseWritten {
    /// Share of all steps at which the phase ends; the last phase's is 1.
    #[schemars(range(max = 1), extend("exclusiveMinimum" = 0))]
    pub until: f64,
    /// Passes over a batch (1 to 8) and the probability that a step has so many, for example `{ 2 = 0.9, 3 = 0.1 }`.
    #[schemars(extend(
        "propertyNames" = { "enum": ["1", "2", "3", "4", "5", "6", "7", "8"] },
        "additionalProperties" = { "type": "number", "minimum": 0, "maximum": 1 }
    ))]
    pub mix: BTreeMap<String, f64>,
    /// Weight of pass 1 and of the mean of the later passes.
    #[serde(default = "loss")]
    #[schemars(inner(range(min = 0)))]
    pub loss: [f64; 2],
    /// What the phase trains.
    #[schemars(length(min = 1))]
    pub update: Vec<Group>,
}

fn loss() -> [f64; 2] {
    [1.0, 1.0]
}

/// Validation while training.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Eval {
    /// Steps between validations. Default: before the first step and after the last only.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub every: Option<usize>,
    /// Default: `["standard"]`, with feedback `["standard", "fused"]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1))]
    pub modes: Option<Vec<Mode>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub early_stopping: Option<EarlyStoppingWritten>,
}

/// Stop when the validation loss of a mode has not fallen for `patience` validations.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EarlyStopping")]
pub struct EarlyStoppingWritten {
    pub metric: Mode,
    #[serde(default = "patience")]
    #[schemars(range(min = 1))]
    pub patience: usize,
}

fn patience() -> usize {
    5
}

/// Where results go. Relative to the working folder.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Output {
    /// Folder of the adapter.
    #[schemars(length(min = 1))]
    pub adapter: String,
    /// Checkpoints to resume from. Default: none but the one that an interrupted run leaves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<CheckpointsWritten>,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Checkpoints")]
pub struct CheckpointsWritten {
    /// Steps between checkpoints.
    #[schemars(range(min = 1))]
    pub every: usize,
    /// How many of the newest stay.
    #[serde(default = "keep")]
    #[schemars(range(min = 1))]
    pub keep: usize,
}

fn keep() -> usize {
    2
}
