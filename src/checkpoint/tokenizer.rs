//! The base's tokenizer: text to ids and back, and the tokens that begin and end a document, resolved once from all
//! the files that name them.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

pub use super::chat::ChatTemplate;
use super::config::Config;
use super::gguf::TokenizerFiles;
use super::hf_config::{Keys, read_object};
use crate::error::{Error, Result};

pub struct Tokenizer {
    /// Put in front of a document; some only where the base's own tokenizer adds it.
    pub bos: Option<u32>,
    /// The token that ends a trained completion.
    pub eos: u32,
    /// All tokens that stop generation (config, generation config and tokenizer agree on them here, once).
    pub stop: Vec<u32>,
    pub chat_template: Option<ChatTemplate>,
    inner: tokenizers::Tokenizer,
    vocab_size: usize,
    path: PathBuf,
}

impl Tokenizer {
    /// Reads `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json` and the chat template of a folder.
    /// The config gives the ids that the tokenizer's files leave out and the size of the embedding.
    pub fn from_folder(folder: &Path, config: &Config) -> Result<Self> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            let hint = if folder.join("tokenizer.model").exists() || folder.join("vocab.json").exists() {
                "; the older files beside it are not read, save the tokenizer with transformers' fast tokenizer"
            } else {
                ""
            };
            return Err(Error::model(folder, format!("tokenizer.json is missing{hint}")));
        }
        let bytes = std::fs::read(&path).map_err(Error::io(&path))?;
        let mut names = optional_object(&folder.join("special_tokens_map.json"))?;
        names.extend(optional_object(&folder.join("tokenizer_config.json"))?);
        if let Some(template) = template_file(folder)? {
            names.insert("chat_template".into(), Value::String(template));
        }
        Self::new(&bytes, &names, &[], config, &path)
    }

    /// From a GGUF file's metadata; `path` is for messages.
    pub(super) fn from_gguf(files: &TokenizerFiles, config: &Config, path: &Path) -> Result<Self> {
        let bytes = serde_json::to_vec(&files.tokenizer).map_err(|e| Error::Internal(e.to_string()))?;
        Self::new(&bytes, &files.config, &files.stop, config, path)
    }

    /// `json`: the bytes of a `tokenizer.json`. `names`: the keys of `tokenizer_config.json`. `stop`: further tokens
    /// that stop generation.
    pub fn new(json: &[u8], names: &Map<String, Value>, stop: &[u32], config: &Config, path: &Path) -> Result<Self> {
        let mut inner = tokenizers::Tokenizer::from_bytes(json)
            .map_err(|e| Error::model(path, format!("not a readable tokenizer: {e}")))?;
        // A saved tokenizer may carry the lengths of whatever it was used for last.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Error::model(path, e.to_string()))?;
        let vocab_size = inner.get_vocab(true).values().max().map_or(0, |id| *id as usize + 1);
        if vocab_size > config.vocab_size {
            return Err(Error::model(
                path,
                format!(
                    "the tokenizer has ids up to {}, {vocab_size} in all, but the embedding has {} rows; \
                     tokens were added without resizing the model",
                    vocab_size - 1,
                    config.vocab_size
                ),
            ));
        }
        let keys = Keys { map: names, path };
        let eos = match special(&keys, &inner, "eos_token")? {
            Some(id) => id,
            None => *config.eos.first().ok_or_else(|| {
                Error::model(path, "no end-of-text token: neither the tokenizer nor the config names one")
            })?,
        };
        let mut all_stops = Vec::new();
        for id in [eos].iter().chain(&config.eos).chain(stop) {
            if *id as usize >= config.vocab_size {
                let message = format!("the end token {id} is outside of the embedding of {} rows", config.vocab_size);
                return Err(Error::model(path, message));
            }
            if !all_stops.contains(id) {
                all_stops.push(*id);
            }
        }
        let bos = bos(&keys, &inner, config)?;
        let chat_template = chat_template(&keys)?;
        Ok(Self { bos, eos, stop: all_stops, chat_template, inner, vocab_size, path: path.to_path_buf() })
    }

    /// Token ids of `text`, nothing added. Special tokens written out in the text are read as such.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|e| Error::model(&self.path, e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        self.inner.decode(ids, skip_special).map_err(|e| Error::model(&self.path, e.to_string()))
    }

    /// The text of one token, for display. A token that is a part of a character is given as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        let spelled = self.inner.id_to_token(id)?;
        match self.inner.decode(&[id], false) {
            Ok(text) if !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER) => Some(text),
            _ => Some(spelled),
        }
    }

    /// The id of a token as the vocabulary spells it.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Ids that are special: left out by `decode(.., true)`.
    pub fn special_ids(&self) -> HashSet<u32> {
        self.inner.get_added_tokens_decoder().iter().filter(|(_, t)| t.special).map(|(id, _)| *id).collect()
    }

    /// Highest id + 1.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

fn optional_object(path: &Path) -> Result<Map<String, Value>> {
    if path.exists() { read_object(path) } else { Ok(Map::new()) }
}

/// A template in a file of its own goes before the one in `tokenizer_config.json`, as in transformers.
fn template_file(folder: &Path) -> Result<Option<String>> {
    let path = folder.join("chat_template.jinja");
    if path.exists() {
        return std::fs::read_to_string(&path).map(Some).map_err(Error::io(&path));
    }
    let path = folder.join("chat_template.json");
    let object = optional_object(&path)?;
    Ok(object.get("chat_template").and_then(Value::as_str).map(String::from))
}

/// A special token's text: a string or an object with `content`.
fn special_text<'a>(keys: &Keys<'a>, name: &str) -> Result<Option<&'a str>> {
    let Some(value) = keys.present(name) else { return Ok(None) };
    let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
    text.map(Some).ok_or_else(|| keys.error(format!("'{name}' is {value}, expected a token's text")))
}

fn special(keys: &Keys, inner: &tokenizers::Tokenizer, name: &str) -> Result<Option<u32>> {
    let Some(text) = special_text(keys, name)? else { return Ok(None) };
    let id = inner.token_to_id(text);
    id.map(Some).ok_or_else(|| keys.error(format!("the {name} '{text}' is not in the tokenizer's vocabulary")))
}

/// The BOS where the base's tokenizer adds it: where its config says so, else where encoding with special tokens does.
fn bos(keys: &Keys, inner: &tokenizers::Tokenizer, config: &Config) -> Result<Option<u32>> {
    let Some(bos) = special(keys, inner, "bos_token")?.or(config.bos) else { return Ok(None) };
    if let Some(adds) = keys.flag("add_bos_token")? {
        return Ok(adds.then_some(bos));
    }
    let encode = |special| inner.encode_fast("a", special).map_err(|e| keys.error(e.to_string()));
    let (with, without) = (encode(true)?, encode(false)?);
    let added = with.get_ids().len() > without.get_ids().len() && with.get_ids().first() == Some(&bos);
    Ok(added.then_some(bos))
}

/// `chat_template` is a template, or a list of named ones of which `default` is meant.
fn chat_template(keys: &Keys) -> Result<Option<ChatTemplate>> {
    let source = match keys.present("chat_template") {
        None => return Ok(None),
        Some(Value::String(source)) => source,
        Some(Value::Array(list)) => {
            let named = |t: &&Value| t.get("name").and_then(Value::as_str) == Some("default");
            let chosen = list.iter().find(named).or_else(|| list.first().filter(|_| list.len() == 1));
            match chosen.and_then(|t| t.get("template")).and_then(Value::as_str) {
                Some(source) => source,
                None => return Err(keys.error("chat_template lists no template named 'default'")),
            }
        }
        Some(_) => return Err(keys.error("chat_template is neither a template nor a list of named templates")),
    };
    let mut variables = Map::new();
    for name in ["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"] {
        if let Some(text) = special_text(keys, name)? {
            variables.insert(name.into(), Value::String(text.into()));
        }
    }
    let name = format!("chat template of {}", keys.path.display());
    Ok(Some(ChatTemplate::new(name, source, variables)))
}
