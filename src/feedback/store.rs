//! Feedback weights on disk: `latent_feedback.safetensors` and `feedback_config.json` in an adapter folder.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Feedback;
use crate::checkpoint::Identity;
use crate::error::{Error, Result};
use crate::files::{read_tensors, write_json, write_tensors};
use crate::model::Model;
use crate::recipe::{Form, Gate};

pub const WEIGHTS: &str = "latent_feedback.safetensors";
pub const CONFIG: &str = "feedback_config.json";

/// What a reader of the weights must know to use them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedbackConfig {
    pub form: Form,
    pub gate: Gate,
    /// Most passes that training ran.
    pub passes_trained: usize,
    /// Extra prefill passes of FUSED decoding.
    pub prefill_passes: usize,
    /// Epsilon of the state's and the embedding's norm: the base's.
    pub rms_norm_eps: f64,
    pub base: Identity,
}

pub fn save(feedback: &Feedback, config: &FeedbackConfig, folder: &Path) -> Result<()> {
    let values = feedback.params.values()?;
    let tensors = feedback.params.slots().iter().map(|s| (s.name.clone(), s.shape.clone(), &values[s.range.clone()]));
    write_tensors(&folder.join(WEIGHTS), tensors)?;
    write_json(&folder.join(CONFIG), config)
}

/// The feedback weights of an adapter folder; none if it has none. Half of the pair, or a tensor missing, left over or
/// of another shape, is an error.
pub fn load(folder: &Path, base: &Model) -> Result<Option<(Feedback, FeedbackConfig)>> {
    let (weights, config) = (folder.join(WEIGHTS), folder.join(CONFIG));
    match (weights.exists(), config.exists()) {
        (false, false) => return Ok(None),
        (true, false) => return Err(Error::model(config, format!("not found, but {WEIGHTS} is there"))),
        (false, true) => return Err(Error::model(weights, format!("not found, but {CONFIG} is there"))),
        (true, true) => {}
    }
    let text = std::fs::read_to_string(&config).map_err(Error::io(&config))?;
    let parsed: FeedbackConfig = serde_json::from_str(&text).map_err(|e| Error::model(&config, e.to_string()))?;
    let feedback = Feedback::zeros(base, parsed.form, parsed.gate)?;
    load_weights(&feedback, &weights)?;
    Ok(Some((feedback, parsed)))
}

/// Fills `feedback` from a safetensors file with exactly its tensors.
pub fn load_weights(feedback: &Feedback, path: &Path) -> Result<()> {
    let wanted = feedback.params.slots().iter().map(|s| (s.name.clone(), s.shape.clone())).collect();
    let mut tensors = read_tensors(path, &wanted)?;
    let mut values = vec![0.0; feedback.params.len()];
    for slot in feedback.params.slots() {
        values[slot.range.clone()].copy_from_slice(&tensors.remove(&slot.name).expect("checked by read_tensors"));
    }
    feedback.params.set(values)
}
