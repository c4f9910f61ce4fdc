//! The run folder `<output.adapter>.run/`, beside the adapter's: what continues a run and what tells about it.
//!
//! ```text
//! recipe.toml  data_report.json  metrics.jsonl  tensorboard/  summary.json
//! best/                        an adapter folder: the best by validation so far
//! checkpoints/step-000100/     an adapter folder with optimizer.safetensors and state.json
//! ```
//!
//! A checkpoint is written beside its name and renamed, so one that is there is whole. It holds all that a run
//! remembers; the order of the data, K, prefixes, jitter and dropout derive from the seed and the step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::adamw::AdamW;
use super::adapter::{self, Losses, RECIPE, Training};
use super::folder::{entries, parent, write_folder};
use super::watch::Watch;
use crate::checkpoint::Identity;
use crate::corpus::Example;
use crate::error::{Error, Result};
use crate::feedback::Tuned;
use crate::files::write_json;
use crate::recipe::{Group, Recipe};

const STATE: &str = "state.json";
const OPTIMIZER: &str = "optimizer.safetensors";
pub const SUMMARY: &str = "summary.json";

/// What a run remembers from step to step, beside weights and moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Optimiser steps done.
    pub step: usize,
    pub total_steps: usize,
    /// Tokens that were trained on.
    pub tokens: u64,
    /// Time spent in steps and validations, over all sessions.
    pub seconds: f64,
    /// Validation before training.
    pub before: Losses,
    pub best: Option<Best>,
    /// Validations since the best one.
    pub without_improvement: usize,
    /// Updates that each group has had.
    pub updates: BTreeMap<Group, u64>,
    pub watch: Watch,
    pub fingerprint: Fingerprint,
}

/// The best validation by the metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub step: usize,
    #[serde(with = "exact")]
    pub loss: f64,
}

/// Numbers as text: JSON readers may be off by the last bit, and a resumed run compares with this one.
mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(x: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(x)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

/// What a run must find again to continue; the recipe lies beside it as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    pub base: Identity,
    /// Sha256 of the documents as the model sees them.
    pub train: String,
    pub validation: String,
}

impl Fingerprint {
    pub fn of(base: &Identity, train: &[Example], validation: &[Example]) -> Self {
        Self { base: base.clone(), train: digest(train), validation: digest(validation) }
    }

    /// What differs in `now`.
    fn differences(&self, now: &Self) -> Vec<String> {
        let mut out = Vec::new();
        if self.base.sha256 != now.base.sha256 {
            let (a, b) = (&self.base, &now.base);
            out.push(format!(
                "the base's weights: {} (sha256 {}) -> {} (sha256 {})",
                a.base, a.sha256, b.base, b.sha256
            ));
        }
        if self.train != now.train {
            out.push("the training documents (rows, template or tokenizer)".into());
        }
        if self.validation != now.validation {
            out.push("the validation documents (rows, template or tokenizer)".into());
        }
        out
    }
}

fn digest(examples: &[Example]) -> String {
    let mut hash = Sha256::new();
    for example in examples {
        hash.update((example.ids.len() as u64).to_le_bytes());
        hash.update((example.prompt_len as u64).to_le_bytes());
        example.ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
        hash.update(example.trained.iter().map(|&trained| trained as u8).collect::<Vec<u8>>());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The run folder of a recipe.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    pub fn of(recipe: &Recipe) -> Self {
        let adapter = &recipe.output.adapter;
        let mut name = adapter.file_name().unwrap_or_default().to_os_string();
        name.push(".run");
        Self { path: parent(adapter).join(name) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn best(&self) -> PathBuf {
        self.path.join("best")
    }

    fn checkpoints(&self) -> PathBuf {
        self.path.join("checkpoints")
    }

    pub fn checkpoint(&self, step: usize) -> PathBuf {
        self.checkpoints().join(format!("step-{step:06}"))
    }

    /// Checkpoints with their steps, oldest first.
    fn saved(&self) -> Result<Vec<(usize, PathBuf)>> {
        let step =
            |path: &PathBuf| -> Option<usize> { path.file_name()?.to_str()?.strip_prefix("step-")?.parse().ok() };
        let mut saved: Vec<(usize, PathBuf)> =
            entries(&self.checkpoints())?.into_iter().filter_map(|path| Some((step(&path)?, path))).collect();
        saved.sort();
        Ok(saved)
    }

    pub fn newest(&self) -> Result<Option<PathBuf>> {
        Ok(self.saved()?.pop().map(|(_, path)| path))
    }

    /// Makes an empty run folder. A run that was broken off is deleted with `force` alone.
    pub fn begin(&self, force: bool) -> Result<()> {
        let shown = self.path.display();
        if let (Some(checkpoint), false) = (self.newest()?, self.file(SUMMARY).is_file() || force) {
            return Err(Error::Usage(format!(
                "{shown}: holds an unfinished run ({}); continue it with --resume, or start anew with --force",
                checkpoint.file_name().unwrap_or_default().to_string_lossy()
            )));
        }
        let ours = [RECIPE, SUMMARY, "metrics.jsonl", "checkpoints", "best", "tensorboard"];
        if self.path.exists() {
            let left = entries(&self.path)?;
            if !left.is_empty() && !ours.iter().any(|name| self.path.join(name).exists()) {
                return Err(Error::Usage(format!("{shown}: is not empty and holds no run; move it away")));
            }
            std::fs::remove_dir_all(&self.path).map_err(Error::io(&self.path))?;
        }
        std::fs::create_dir_all(&self.path).map_err(Error::io(&self.path))
    }

    /// Saves a checkpoint; then deletes the oldest beyond the newest `keep`. `best/` is apart and stays.
    pub fn save(
        &self,
        tuned: &Tuned,
        optimizer: &AdamW,
        state: &State,
        recipe: &Recipe,
        training: &Training,
        keep: usize,
    ) -> Result<PathBuf> {
        let path = self.checkpoint(state.step);
        write_folder(&path, |folder| {
            adapter::save(tuned, recipe, &state.fingerprint.base, training, folder)?;
            optimizer.save(tuned, &folder.join(OPTIMIZER))?;
            write_json(&folder.join(STATE), state)
        })?;
        let saved = self.saved()?;
        let surplus = saved.len().saturating_sub(keep.max(1));
        for (_, old) in &saved[..surplus] {
            std::fs::remove_dir_all(old).map_err(Error::io(old))?;
        }
        Ok(path)
    }

    /// Loads the newest checkpoint into `tuned`. A recipe, base or corpus that would make it another run is refused with
    /// all that differs.
    pub fn resume(&self, tuned: &mut Tuned, recipe: &Recipe, now: &Fingerprint) -> Result<(AdamW, State)> {
        let Some(path) = self.newest()? else {
            let why = match self.file(SUMMARY).is_file() {
                true => "the run is finished: there is nothing to resume",
                false => "there is no checkpoint to resume from",
            };
            return Err(Error::Usage(format!("{}: {why}", self.path.display())));
        };
        let file = path.join(STATE);
        let text = std::fs::read_to_string(&file).map_err(Error::io(&file))?;
        let state: State = serde_json::from_str(&text).map_err(|e| Error::model(&file, e.to_string()))?;
        let mut differences = Recipe::load_resolved(path.join(RECIPE))?.resume_conflicts(recipe);
        differences.extend(state.fingerprint.differences(now));
        if !differences.is_empty() {
            return Err(Error::Usage(format!(
                "{}: cannot be resumed, this is another run: {}",
                path.display(),
                differences.join("; ")
            )));
        }
        adapter::load(tuned, &path)?;
        let optimizer = path.join(OPTIMIZER);
        let adamw = AdamW::load(tuned, recipe.train.weight_decay, state.updates.clone(), &optimizer)?;
        Ok((adamw, state))
    }
}
