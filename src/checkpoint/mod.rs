//! Base checkpoints: a Hugging Face folder, a GGUF file or a hub id, read to one form: a [`Config`] to compute with,
//! named tensors in Hugging Face's names, layout and row order, and a [`Tokenizer`].

mod chat;
mod config;
pub mod fetch;
mod gguf;
mod hf_config;
pub mod hub;
mod tokenizer;
mod weights;

pub use chat::ChatTemplate;
pub use config::{Config, Family, Rope, RopeScaling};
pub use tokenizer::Tokenizer;
pub use weights::{Summary, safetensors_summary};

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use candle_core::Tensor;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use gguf::Gguf;
use weights::Safetensors;

/// An opened base checkpoint. Tensors are read when asked for.
pub struct Checkpoint {
    /// The folder or file that was opened.
    pub path: PathBuf,
    pub config: Config,
    /// Recorded in adapters, compared when one is loaded.
    pub identity: Identity,
    source: Source,
}

enum Source {
    Folder(Safetensors),
    Gguf(Box<Gguf>),
}

/// What tells one base from another.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// As the recipe names it.
    pub base: String,
    /// Over the weight files in the order of their names.
    pub sha256: String,
    /// Tensor types as stored, for example `BF16` or `Q4_1+F32`, the one with the most elements first.
    pub stored: String,
}

impl Checkpoint {
    /// Opens a folder, a `.gguf` file, a hub id `org/name@revision` (fetched into the hub's cache), or a name that
    /// `fullband fetch` knows (looked for in `models/`). Checks that every tensor that `config` asks for is there in
    /// its shape and that none is left over.
    pub fn open(base: &str) -> Result<Self> {
        Self::open_path(base, &locate(base)?)
    }

    /// Opens what lies at `path`; `base` is recorded as its name.
    pub fn open_path(base: &str, path: &Path) -> Result<Self> {
        let path = match lone_gguf(path)? {
            Some(file) => file,
            None => path.to_path_buf(),
        };
        let (config, source, files, stored) = if path.is_dir() {
            let config = hf_config::read(&path)?;
            let weights = Safetensors::open(&path, &config)?;
            let (files, stored) = (weights.paths(), weights.stored());
            (config, Source::Folder(weights), files, stored)
        } else if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            let gguf = Gguf::open(&path)?;
            let stored = gguf.stored();
            (gguf.config().clone(), Source::Gguf(Box::new(gguf)), vec![path.clone()], stored)
        } else {
            return Err(Error::model(&path, "neither a folder nor a .gguf file"));
        };
        let mut stored: Vec<_> = stored.into_iter().collect();
        stored.sort_by_key(|(name, n)| (std::cmp::Reverse(*n), name.clone()));
        let stored = stored.into_iter().map(|(name, _)| name).collect::<Vec<_>>().join("+");
        let identity = Identity { base: base.to_string(), sha256: sha256_files(&files)?, stored };
        Ok(Self { path, config, identity, source })
    }

    /// A tensor by its Hugging Face name (`model.layers.0.self_attn.q_proj.weight`, `[out, in]`), on the CPU, in f32,
    /// bf16 or f16 as stored (quantised ones are dequantised to f32).
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let tensor = match &self.source {
            Source::Folder(weights) => weights.tensor(name)?,
            Source::Gguf(gguf) => gguf.tensor(name)?,
        };
        tensor.ok_or_else(|| Error::model(&self.path, format!("there is no tensor '{name}'")))
    }

    /// Names and shapes of all tensors, sorted.
    pub fn tensors(&self) -> BTreeMap<String, Vec<usize>> {
        match &self.source {
            Source::Folder(weights) => weights.shapes(),
            Source::Gguf(gguf) => gguf.shapes(),
        }
    }

    /// The tokenizer; refused when it has more tokens than the embedding has rows.
    pub fn tokenizer(&self) -> Result<Tokenizer> {
        match &self.source {
            Source::Folder(_) => Tokenizer::from_folder(&self.path, &self.config),
            Source::Gguf(gguf) => Tokenizer::from_gguf(&gguf.tokenizer_files()?, &self.config, &self.path),
        }
    }

    /// Files that a copy of the checkpoint carries beside its weights and config: tokenizer, chat template, generation
    /// config. A folder's are given unchanged; a GGUF file's are made from its metadata.
    pub fn companion_files(&self) -> Result<Vec<(String, Vec<u8>)>> {
        match &self.source {
            Source::Folder(_) => folder_companions(&self.path),
            Source::Gguf(gguf) => {
                let files = gguf.tokenizer_files()?;
                let tokenizer = serde_json::to_vec(&files.tokenizer);
                let config = serde_json::to_vec_pretty(&files.config);
                let broken = |e: serde_json::Error| Error::Internal(e.to_string());
                Ok(vec![
                    ("tokenizer.json".into(), tokenizer.map_err(broken)?),
                    ("tokenizer_config.json".into(), config.map_err(broken)?),
                ])
            }
        }
    }
}

fn folder_companions(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut out = Vec::new();
    for name in hub::COMPANIONS {
        let path = folder.join(name);
        if path.exists() {
            out.push((name.to_string(), std::fs::read(&path).map_err(Error::io(&path))?));
        }
    }
    Ok(out)
}

/// The folder or file that a recipe's `base` names.
fn locate(base: &str) -> Result<PathBuf> {
    let path = PathBuf::from(base);
    if path.exists() {
        return Ok(path);
    }
    if let Some(found) = fetch::locate_known(base)? {
        return Ok(found);
    }
    match hub::parse_id(base) {
        Some(id) => hub::Hub::from_env().snapshot(&id, &mut |_| {}),
        None => {
            Err(Error::model(&path, "there is no such folder or .gguf file, and it is no hub id (org/name@revision)"))
        }
    }
}

/// The only `.gguf` file of a folder without `config.json`.
fn lone_gguf(path: &Path) -> Result<Option<PathBuf>> {
    if !path.is_dir() || path.join("config.json").exists() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(Error::io(path))? {
        let file = entry.map_err(Error::io(path))?.path();
        if file.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")) {
            found.push(file);
        }
    }
    match found.len() {
        0 => Err(Error::model(path, "the folder has neither config.json nor a .gguf file")),
        1 => Ok(found.pop()),
        n => Err(Error::model(path, format!("the folder has {n} .gguf files; name one of them"))),
    }
}

/// Sha256 of a file, as lower-case hex.
pub fn sha256_file(path: &Path) -> Result<String> {
    sha256_files(&[path.to_path_buf()])
}

/// Over the contents one after the other.
fn sha256_files(paths: &[PathBuf]) -> Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; 1 << 20];
    for path in paths {
        let mut file = std::fs::File::open(path).map_err(Error::io(path))?;
        loop {
            let n = file.read(&mut buffer).map_err(Error::io(path))?;
            if n == 0 {
                break;
            }
            hash.update(&buffer[..n]);
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
