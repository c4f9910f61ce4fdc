//! Training: from a base, a recipe and documents to an adapter folder.
//!
//! [`run`] is the loop. A step's nature comes from [`schedule`] (rates, phase, passes), its documents from the corpus's
//! plan, its gradients from [`step`], its update from [`adamw`]; [`watch`] stops what does not learn. [`state`] is the
//! run folder and exact resume, [`adapter`] the result's folder, [`metrics`] what is recorded. Nothing here prints: an
//! [`Observer`] is told.

pub mod adamw;
pub mod adapter;
pub mod folder;
pub mod memory;
pub mod metrics;
mod run;
pub mod schedule;
pub mod state;
pub mod step;
mod tensorboard;
pub mod watch;

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::checkpoint::Identity;
use crate::corpus::Example;
use crate::error::Result;
use crate::feedback::{Feedback, Fit, Tuned};
use crate::lora::{self, LoraConfig};
use crate::model::Model;
use crate::recipe::Recipe;
pub use adapter::Losses;
pub use metrics::{EvalRecord, StepRecord};
pub use run::{run, steps};

/// What [`run`] is given.
pub struct Job<'a> {
    pub recipe: &'a Recipe,
    pub base: &'a Identity,
    /// As [`initial`] makes it. Holds the weights of the saved adapter after a finished run.
    pub tuned: &'a mut Tuned,
    pub train: &'a [Example],
    /// May be empty: then nothing is validated and the last step's weights are the result.
    pub validation: &'a [Example],
    /// Written as `data_report.json`.
    pub data_report: Option<serde_json::Value>,
    /// Continue the recipe's newest checkpoint.
    pub resume: bool,
    /// Replace an unfinished run or another recipe's adapter.
    pub force: bool,
}

/// A base with the weights that a recipe trains, as training starts. A warm start is part of the run: it takes the
/// corpus.
pub fn initial(base: Model, recipe: &Recipe) -> Result<Tuned> {
    let adapters = recipe.lora.as_ref().map(|lora| lora::init(&base, &LoraConfig::resolve(lora)?, recipe.seed));
    let lora = adapters.transpose()?;
    let feedback = recipe.feedback.as_ref().map(|feedback| Feedback::init(&base, feedback, recipe.seed)).transpose()?;
    Ok(Tuned { base, lora, feedback })
}

/// Is told how a run goes.
pub trait Observer {
    fn on_start(&mut self, _start: &Start) {}
    fn on_warm_start(&mut self, _fit: &Fit) {}
    fn on_step(&mut self, _record: &StepRecord) {}
    fn on_eval(&mut self, _record: &EvalRecord) {}
    fn on_checkpoint(&mut self, _step: usize, _folder: &Path) {}
    fn on_end(&mut self, _summary: &Summary) {}
}

/// Observes nothing.
pub struct Silent;

impl Observer for Silent {}

/// Derived sizes, known before the first step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Start {
    pub documents: usize,
    pub validation_documents: usize,
    pub epochs: usize,
    pub total_steps: usize,
    pub warmup_steps: usize,
    /// Step after the last one of each phase.
    pub phase_ends: Vec<usize>,
    /// Trained values.
    pub lora_values: usize,
    pub feedback_values: usize,
    /// Steps that were done before, in a resumed run.
    pub resumed: Option<usize>,
    pub run: PathBuf,
}

impl Start {
    /// `values`: trained values of LoRA and of the feedback.
    pub fn new(recipe: &Recipe, train: &[Example], validation: &[Example], values: (usize, usize)) -> Self {
        let plan = steps(recipe, train);
        let total = plan.total_steps();
        Self {
            documents: train.len(),
            validation_documents: validation.len(),
            epochs: plan.epochs(),
            total_steps: total,
            warmup_steps: schedule::warmup_steps(total, recipe.train.warmup),
            phase_ends: recipe.train.phases.iter().map(|phase| schedule::phase_end(phase, total)).collect(),
            lora_values: values.0,
            feedback_values: values.1,
            resumed: None,
            run: state::RunFolder::of(recipe).path().to_path_buf(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Finished,
    /// Validation did not improve any more.
    StoppedEarly,
    /// A checkpoint was saved; the run can be resumed. No adapter was written.
    Interrupted,
}

/// How a run ended; written as `summary.json` unless it was interrupted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub status: Status,
    pub steps: usize,
    pub total_steps: usize,
    pub epochs: usize,
    /// Tokens trained on, each counted once a step whatever the passes.
    pub tokens: u64,
    /// Over all sessions.
    pub seconds: f64,
    /// Validation losses before the first step, and those of the saved adapter.
    pub before: Losses,
    pub after: Losses,
    /// The step whose weights were saved.
    pub adapter_step: Option<usize>,
    pub adapter: Option<PathBuf>,
    pub run: PathBuf,
}
