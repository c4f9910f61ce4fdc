//! The weight files of a Hugging Face folder: one `model.safetensors` or shards with an index, memory-mapped. Checks
//! names and shapes when opened; gives tensors in their stored type.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;

use super::config::Config;
use super::hf_config::read_object;
use crate::error::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const HEAD: &str = "lm_head.weight";
const EMBEDDING: &str = "model.embed_tokens.weight";

pub struct Safetensors {
    /// In the order of their names.
    files: Vec<Mapped>,
    tensors: BTreeMap<String, Entry>,
}

struct Mapped {
    path: PathBuf,
    map: Mmap,
}

#[derive(Clone)]
struct Entry {
    file: usize,
    dtype: DType,
    shape: Vec<usize>,
    /// Byte range in the file.
    start: usize,
    end: usize,
}

impl Safetensors {
    /// Maps the weight files of `folder` and checks them against `config`.
    pub fn open(folder: &Path, config: &Config) -> Result<Self> {
        let mut this = Self::read(folder)?;
        this.drop_known_buffers();
        if config.tie_word_embeddings {
            this.drop_equal_head()?;
        }
        check(folder, config, &this.shapes())?;
        Ok(this)
    }

    fn read(folder: &Path) -> Result<Self> {
        let (paths, index) = weight_files(folder)?;
        let mut this = Self { files: Vec::new(), tensors: BTreeMap::new() };
        for path in paths {
            this.add(&path)?;
        }
        for (name, shard) in index {
            let found = this.tensors.get(&name).map(|entry| &this.files[entry.file].path);
            if found.and_then(|p| p.file_name()).is_none_or(|file| file != shard.as_str()) {
                let message = format!("tensor '{name}' is not in {shard}, where the index puts it");
                return Err(Error::model(folder.join(INDEX), message));
            }
        }
        Ok(this)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let map = map(path)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|e| unreadable(path, map.len(), &e))?;
        let index = self.files.len();
        for (name, info) in metadata.tensors() {
            let Some(dtype) = float_type(info.dtype) else {
                if is_buffer(&name) {
                    continue;
                }
                let message = format!("tensor '{name}' is {:?}; known are F32, BF16, F16", info.dtype);
                return Err(Error::model(path, message));
            };
            let (start, end) = (info.data_offsets.0 + header + 8, info.data_offsets.1 + header + 8);
            let entry = Entry { file: index, dtype, shape: info.shape.clone(), start, end };
            if let Some(earlier) = self.tensors.insert(name.clone(), entry) {
                let other = self.files[earlier.file].path.display();
                return Err(Error::model(path, format!("tensor '{name}' is also in {other}")));
            }
        }
        self.files.push(Mapped { path: path.to_path_buf(), map });
        Ok(())
    }

    /// Rotary frequencies that older writers stored; they follow from the config.
    fn drop_known_buffers(&mut self) {
        self.tensors.retain(|name, _| !is_buffer(name));
    }

    /// A tied model may store its head once more. Equal bytes are the embedding; others would be silently lost.
    fn drop_equal_head(&mut self) -> Result<()> {
        let (Some(head), Some(embedding)) = (self.tensors.get(HEAD), self.tensors.get(EMBEDDING)) else {
            return Ok(());
        };
        if head.shape != embedding.shape || head.dtype != embedding.dtype || self.bytes(head) != self.bytes(embedding) {
            return Err(Error::model(
                &self.files[head.file].path,
                format!(
                    "config.json says tie_word_embeddings, but {HEAD} differs from {EMBEDDING}; \
                     set tie_word_embeddings to false there if the model was trained with its own head"
                ),
            ));
        }
        self.tensors.remove(HEAD);
        Ok(())
    }

    fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.files[entry.file].map[entry.start..entry.end]
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.files.iter().map(|f| f.path.clone()).collect()
    }

    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        self.tensors.iter().map(|(name, entry)| (name.clone(), entry.shape.clone())).collect()
    }

    /// Types with the number of elements stored in each.
    pub fn stored(&self) -> BTreeMap<String, usize> {
        let mut out = BTreeMap::new();
        for entry in self.tensors.values() {
            let name = format!("{:?}", entry.dtype).to_uppercase();
            *out.entry(name).or_insert(0) += entry.shape.iter().product::<usize>();
        }
        out
    }

    pub fn tensor(&self, name: &str) -> Result<Option<Tensor>> {
        let Some(entry) = self.tensors.get(name) else { return Ok(None) };
        Ok(Some(Tensor::from_raw_buffer(self.bytes(entry), entry.dtype, &entry.shape, &Device::Cpu)?))
    }
}

/// A weight file in memory, page by page as it is read.
pub fn map(path: &Path) -> Result<Mmap> {
    let file = File::open(path).map_err(Error::io(path))?;
    // SAFETY: the map is read only; that nobody rewrites a base under a running program is the user's part, as in
    // every loader of these formats.
    unsafe { Mmap::map(&file) }.map_err(Error::io(path))
}

/// What a safetensors file holds.
pub struct Summary {
    pub tensors: usize,
    pub parameters: usize,
    /// Sorted.
    pub types: Vec<String>,
}

/// Reads the header of one safetensors file, whatever its tensors are.
pub fn safetensors_summary(path: &Path) -> Result<Summary> {
    let map = map(path)?;
    let (_, metadata) = SafeTensors::read_metadata(&map).map_err(|e| unreadable(path, map.len(), &e))?;
    let tensors = metadata.tensors();
    let types: BTreeSet<String> = tensors.values().map(|t| format!("{:?}", t.dtype)).collect();
    let parameters = tensors.values().map(|t| t.shape.iter().product::<usize>()).sum();
    Ok(Summary { tensors: tensors.len(), parameters, types: types.into_iter().collect() })
}

/// Refuses missing, superfluous and misshapen tensors, each by name. `path` is for messages.
pub fn check(path: &Path, config: &Config, found: &BTreeMap<String, Vec<usize>>) -> Result<()> {
    let expected: BTreeMap<_, _> = config.expected_tensors().into_iter().collect();
    let missing: Vec<_> = expected.keys().filter(|name| !found.contains_key(*name)).collect();
    if !missing.is_empty() {
        return Err(Error::model(path, format!("{} missing: {}", counted(missing.len()), listed(&missing))));
    }
    let extra: Vec<_> = found.keys().filter(|name| !expected.contains_key(*name)).collect();
    if !extra.is_empty() {
        let family = config.family.name();
        return Err(Error::model(
            path,
            format!("{} that a {family} model of this config does not have: {}", counted(extra.len()), listed(&extra)),
        ));
    }
    for (name, shape) in &expected {
        if &found[name] != shape {
            let message = format!("tensor '{name}' has the shape {:?}; the config asks for {shape:?}", found[name]);
            return Err(Error::model(path, message));
        }
    }
    Ok(())
}

fn counted(n: usize) -> String {
    if n == 1 { "1 tensor".to_string() } else { format!("{n} tensors") }
}

fn listed(names: &[&String]) -> String {
    const SHOWN: usize = 8;
    let mut text = names.iter().take(SHOWN).map(|n| n.as_str()).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

fn is_buffer(name: &str) -> bool {
    name.ends_with("rotary_emb.inv_freq")
}

fn float_type(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::BF16 => Some(DType::BF16),
        Dtype::F16 => Some(DType::F16),
        _ => None,
    }
}

/// Weight files, sorted, and what the index says of each tensor: its name and its file.
type Listed = (Vec<PathBuf>, Vec<(String, String)>);

fn weight_files(folder: &Path) -> Result<Listed> {
    let (single, index) = (folder.join(SINGLE), folder.join(INDEX));
    if single.exists() {
        return Ok((vec![single], Vec::new()));
    }
    if !index.exists() {
        let hint = if folder.join("pytorch_model.bin").exists() || folder.join("pytorch_model.bin.index.json").exists()
        {
            "; pytorch_model.bin is not read, save the model as safetensors"
        } else {
            ""
        };
        return Err(Error::model(folder, format!("neither {SINGLE} nor {INDEX} is there{hint}")));
    }
    let object = read_object(&index)?;
    let Some(Value::Object(map)) = object.get("weight_map") else {
        return Err(Error::model(&index, "no 'weight_map' from tensor names to files"));
    };
    let mut names = BTreeSet::new();
    let mut placed = Vec::with_capacity(map.len());
    for (tensor, file) in map {
        let plain = |f: &&str| Path::new(f).components().count() == 1 && !f.starts_with("..");
        let file = file
            .as_str()
            .filter(plain)
            .ok_or_else(|| Error::model(&index, format!("tensor '{tensor}': {file} is not a file name")))?;
        names.insert(file.to_string());
        placed.push((tensor.clone(), file.to_string()));
    }
    let mut paths = Vec::with_capacity(names.len());
    for name in names {
        let path = folder.join(&name);
        if !path.exists() {
            return Err(Error::model(&index, format!("the shard {name}, which it names, is missing")));
        }
        paths.push(path);
    }
    Ok((paths, placed))
}

fn unreadable(path: &Path, length: usize, e: &SafeTensorError) -> Error {
    let message = match e {
        SafeTensorError::MetadataIncompleteBuffer
        | SafeTensorError::InvalidHeaderLength
        | SafeTensorError::HeaderTooSmall => {
            format!("the file is cut short or damaged: {length} bytes are not what its header announces")
        }
        other => format!("not a readable safetensors file: {other}"),
    };
    Error::model(path, message)
}
