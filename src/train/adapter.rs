//! Adapter folders as training writes them: PEFT's two files, the feedback weights with their config, the base's
//! identity (`base.json`), the resolved recipe, and `training.json`, which says how the adapter came about and how well
//! it does.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::folder::{entries, write_folder};
use super::schedule::most_passes;
use crate::checkpoint::Identity;
use crate::error::{Error, Result};
use crate::feedback::{self, FeedbackConfig, Tuned};
use crate::files::{write_json, write_text};
use crate::lora::{self, LoraConfig};
use crate::recipe::{Mode, Recipe};
use crate::tuned::{is_adapter, write_base};

pub const RECIPE: &str = "recipe.toml";
pub const TRAINING: &str = "training.json";

/// Extra prefill passes of FUSED that validation measures and adapters ask for.
pub const PREFILL_PASSES: usize = 1;

/// Validation losses, nats per trained token.
pub type Losses = BTreeMap<Mode, f64>;

/// `training.json`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// Name of the recipe.
    pub name: String,
    /// Optimiser steps that made the adapter, of how many in all.
    pub step: usize,
    pub total_steps: usize,
    /// What the adapter was chosen by; none where nothing was validated and it is the last.
    pub metric: Option<Mode>,
    pub losses: Losses,
}

/// Writes the adapter's files into `folder`, which exists.
pub fn save(tuned: &Tuned, recipe: &Recipe, base: &Identity, training: &Training, folder: &Path) -> Result<()> {
    if let (Some(adapters), Some(lora)) = (&tuned.lora, &recipe.lora) {
        lora::save(adapters, &LoraConfig::resolve(lora)?, &base.base, folder)?;
    }
    if let Some(feedback) = &tuned.feedback {
        let config = FeedbackConfig {
            form: feedback.form,
            gate: feedback.gate,
            passes_trained: most_passes(&recipe.train.phases),
            prefill_passes: PREFILL_PASSES,
            rms_norm_eps: tuned.base.config().rms_norm_eps,
            base: base.clone(),
        };
        feedback::save(feedback, &config, folder)?;
    }
    write_base(folder, base)?;
    write_text(&folder.join(RECIPE), &recipe.to_toml())?;
    write_json(&folder.join(TRAINING), training)
}

/// Reads the weights that [`save`] wrote back into `tuned`.
pub fn load(tuned: &mut Tuned, folder: &Path) -> Result<()> {
    if tuned.lora.is_some() {
        tuned.lora = Some(lora::load(folder, &tuned.base)?.0);
    }
    if tuned.feedback.is_some() {
        let loaded = feedback::load(folder, &tuned.base)?;
        let (feedback, _) = loaded.ok_or_else(|| Error::model(folder, "has no feedback weights"))?;
        tuned.feedback = Some(feedback);
    }
    Ok(())
}

pub fn read_training(folder: &Path) -> Result<Training> {
    let path = folder.join(TRAINING);
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    serde_json::from_str(&text).map_err(|e| Error::model(&path, e.to_string()))
}

/// Replaces the folder `to` by a copy of the adapter in `from`.
pub fn publish(from: &Path, to: &Path) -> Result<()> {
    write_folder(to, |folder| super::folder::copy_files(from, folder))
}

/// Whether training may put its result at `folder`: it is not there, empty, or holds an earlier result of a recipe of
/// this name. With `force` any adapter may be replaced, but never a folder that holds something else.
pub fn check_replaceable(folder: &Path, name: &str, force: bool) -> Result<()> {
    if folder.exists() && !folder.is_dir() {
        return Err(Error::Usage(format!("{}: output.adapter is a file, expected a folder", folder.display())));
    }
    if entries(folder)?.is_empty() || read_training(folder).is_ok_and(|training| training.name == name) {
        return Ok(());
    }
    match (is_adapter(folder), force) {
        (true, true) => Ok(()),
        (true, false) => Err(Error::Usage(format!(
            "{}: holds an adapter that recipe '{name}' has not made; choose another output.adapter, or replace it with \
             --force",
            folder.display()
        ))),
        (false, _) => Err(Error::Usage(format!(
            "{}: is not empty and holds no adapter; choose another output.adapter",
            folder.display()
        ))),
    }
}
