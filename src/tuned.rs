//! Opens what a user calls a model: a base, or an adapter folder together with the base that it records.

use std::path::{Path, PathBuf};

use crate::checkpoint::{Checkpoint, Identity};
use crate::error::{Error, Result};
use crate::feedback::{self, Tuned};
use crate::files::write_json;
use crate::lora;
use crate::model::{LoadOptions, Model};

/// Which base an adapter was trained on, beside PEFT's files.
pub const BASE: &str = "base.json";

pub struct Opened {
    pub checkpoint: Checkpoint,
    pub tuned: Tuned,
    /// Extra FUSED prefill passes that the adapter records.
    pub prefill_passes: Option<usize>,
    /// What a user should know, such as a base other than the one that was trained on.
    pub warnings: Vec<String>,
}

/// Whether `path` is a folder that training wrote.
pub fn is_adapter(path: &Path) -> bool {
    path.join(lora::CONFIG).is_file() || path.join(feedback::CONFIG).is_file()
}

/// Opens `model`: an adapter folder (with its recorded base, or `base` where given), else a base.
pub fn open(model: &str, base: Option<&str>, options: &LoadOptions) -> Result<Opened> {
    let folder = PathBuf::from(model);
    if !is_adapter(&folder) {
        if base.is_some() {
            return Err(Error::Usage(format!("--base goes with an adapter, and '{model}' is none")));
        }
        let checkpoint = Checkpoint::open(model)?;
        let base = Model::load(&checkpoint, options)?;
        let tuned = Tuned { base, lora: None, feedback: None };
        return Ok(Opened { checkpoint, tuned, prefill_passes: None, warnings: Vec::new() });
    }
    let recorded = read_base(&folder)?;
    let name = base.map(str::to_string).or_else(|| recorded.as_ref().map(|r| r.base.clone()));
    let name = name.ok_or_else(|| Error::model(&folder, format!("no {BASE}: name the adapter's base with --base")))?;
    let checkpoint = Checkpoint::open(&name)?;
    let mut warnings = Vec::new();
    if let Some(recorded) = recorded.filter(|recorded| recorded.sha256 != checkpoint.identity.sha256) {
        warnings.push(format!(
            "the adapter was trained on '{}' ({}, sha256 {}), this base is {} with sha256 {}: results will differ",
            recorded.base,
            recorded.stored,
            &recorded.sha256[..recorded.sha256.len().min(12)],
            checkpoint.identity.stored,
            &checkpoint.identity.sha256[..12]
        ));
    }
    let base = Model::load(&checkpoint, options)?;
    let (tuned, prefill_passes) = attach(base, &folder).map_err(|error| match (error, warnings.first()) {
        (Error::Model { path, message }, Some(warning)) => {
            Error::Model { path, message: format!("{message}; {warning}") }
        }
        (error, _) => error,
    })?;
    Ok(Opened { checkpoint, tuned, prefill_passes, warnings })
}

/// `base` with the adapter of `folder`, and the FUSED prefill passes that it records.
pub fn attach(base: Model, folder: &Path) -> Result<(Tuned, Option<usize>)> {
    let lora = if folder.join(lora::CONFIG).is_file() { Some(lora::load(folder, &base)?.0) } else { None };
    let (feedback, config) = feedback::load(folder, &base)?.unzip();
    Ok((Tuned { base, lora, feedback }, config.map(|c| c.prefill_passes)))
}

/// Writes the base's identity into an adapter folder.
pub fn write_base(folder: &Path, identity: &Identity) -> Result<()> {
    write_json(&folder.join(BASE), identity)
}

fn read_base(folder: &Path) -> Result<Option<Identity>> {
    let path = folder.join(BASE);
    if path.is_file() {
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        return serde_json::from_str(&text).map(Some).map_err(|e| Error::model(&path, e.to_string()));
    }
    // An adapter that PEFT wrote names its base in its own config, without a hash.
    let path = folder.join(lora::CONFIG);
    let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
    let json: serde_json::Value = serde_json::from_str(&text).map_err(|e| Error::model(&path, e.to_string()))?;
    let base = json["base_model_name_or_path"].as_str().map(str::to_string);
    if let Some(base) = base {
        // Without a hash there is nothing to compare: the base's own is taken.
        let checkpoint = Checkpoint::open(&base)?;
        return Ok(Some(checkpoint.identity));
    }
    Ok(None)
}
