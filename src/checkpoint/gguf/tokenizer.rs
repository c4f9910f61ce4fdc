//! A GGUF file's tokenizer, written as the `tokenizer.json` that the same model has on the hub, so that one reader
//! serves both kinds of checkpoint and an export can ship the files.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::metadata::Metadata;
use crate::error::Result;

/// Files as a Hugging Face folder has them.
pub struct TokenizerFiles {
    /// `tokenizer.json`
    pub tokenizer: Value,
    /// `tokenizer_config.json`, with the chat template.
    pub config: Map<String, Value>,
    /// Tokens that end a turn or a message, beside the end of text.
    pub stop: Vec<u32>,
}

const NORMAL: u64 = 1;
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

pub fn build(metadata: &Metadata) -> Result<TokenizerFiles> {
    let tokens = metadata.required_texts("tokenizer.ggml.tokens")?;
    let types = metadata.counts("tokenizer.ggml.token_type")?.unwrap_or_else(|| vec![NORMAL; tokens.len()]);
    if types.len() != tokens.len() {
        let message = format!("tokenizer.ggml.token_type has {} entries for {} tokens", types.len(), tokens.len());
        return Err(metadata.error(message));
    }
    let vocabulary = Vocabulary { tokens, types };
    let mut tokenizer = match metadata.required_text("tokenizer.ggml.model")? {
        "gpt2" => byte_level(metadata, &vocabulary)?,
        "llama" => sentencepiece(metadata, &vocabulary)?,
        other => {
            let message = format!("tokenizer.ggml.model '{other}' is not supported; known are gpt2, llama");
            return Err(metadata.error(message));
        }
    };
    tokenizer["version"] = json!("1.0");
    tokenizer["added_tokens"] = vocabulary.added();
    let mut stop = Vec::new();
    for key in ["eos", "eot", "eom"] {
        stop.extend(metadata.id(&format!("tokenizer.ggml.{key}_token_id"))?);
    }
    Ok(TokenizerFiles { tokenizer, config: config(metadata, &vocabulary)?, stop })
}

struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<u64>,
}

impl Vocabulary<'_> {
    fn json(&self) -> Value {
        let mut map = Map::new();
        for (id, token) in self.tokens.iter().enumerate() {
            map.entry(*token).or_insert(json!(id));
        }
        Value::Object(map)
    }

    /// Tokens that are read from the text as a whole: control tokens are special, a user's own are not.
    fn added(&self) -> Value {
        let chosen = self.types.iter().enumerate().filter(|(_, kind)| [UNKNOWN, CONTROL, USER_DEFINED].contains(kind));
        let token = |(id, kind): (usize, &u64)| {
            json!({
                "id": id, "content": self.tokens[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": *kind != USER_DEFINED,
            })
        };
        chosen.map(token).collect()
    }
}

fn config(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Map<String, Value>> {
    let mut config = Map::new();
    for (name, key) in [("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")]
    {
        let key = format!("tokenizer.ggml.{key}_token_id");
        let Some(id) = metadata.id(&key)? else { continue };
        let token = vocabulary.tokens.get(id as usize).ok_or_else(|| {
            metadata.error(format!("{key} is {id}, but there are {} tokens", vocabulary.tokens.len()))
        })?;
        config.insert(name.into(), json!(token));
    }
    // llama.cpp's rule where the file does not say: sentencepiece models add it, byte-level ones do not.
    let sentencepiece = metadata.required_text("tokenizer.ggml.model")? == "llama";
    let llama3 = metadata.text("tokenizer.ggml.pre")? == Some("llama-bpe");
    let add_bos = metadata.flag("tokenizer.ggml.add_bos_token")?.unwrap_or(sentencepiece || llama3);
    config.insert("add_bos_token".into(), json!(add_bos));
    if let Some(template) = metadata.text("tokenizer.chat_template")? {
        config.insert("chat_template".into(), json!(template));
    }
    Ok(config)
}

fn byte_level(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Value> {
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
    let sequence = |parts: Value| json!({"type": "Sequence", "pretokenizers": parts});
    let mut normalizer = Value::Null;
    let mut ignore_merges = false;
    let pre_tokenizer = match metadata.text("tokenizer.ggml.pre")?.unwrap_or("default") {
        "smollm" => sequence(json!([{"type": "Digits", "individual_digits": true}, bytes(true)])),
        "gpt-2" => bytes(true),
        "llama-bpe" => {
            ignore_merges = true;
            sequence(json!([split(LLAMA3), bytes(false)]))
        }
        "qwen2" => {
            normalizer = json!({"type": "NFC"});
            sequence(json!([split(QWEN2), bytes(false)]))
        }
        // What llama.cpp does with files that name none.
        "default" => sequence(json!([
            split(r"[\p{P}\$\+<=>\^~\|]+"),
            split(GPT2),
            split(r"\p{N}+"),
            split("[0-9][0-9][0-9]"),
            bytes(false)
        ])),
        other => {
            return Err(metadata.error(format!(
                "pre-tokenizer '{other}' (tokenizer.ggml.pre) is not supported; \
                 known are smollm, llama-bpe, qwen2, gpt-2, default"
            )));
        }
    };
    let merges = metadata.required_texts("tokenizer.ggml.merges")?;
    let merges = merges
        .iter()
        .map(|m| m.split_once(' ').map(|(a, b)| json!([a, b])))
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| metadata.error("tokenizer.ggml.merges has an entry that is not a pair"))?;
    Ok(json!({
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": bytes(true),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": ignore_merges,
            "vocab": vocabulary.json(), "merges": merges,
        },
    }))
}

/// Sentencepiece's BPE as transformers converts it: a merge for each way to cut a piece into two pieces, best score
/// first, bytes where no piece fits.
fn sentencepiece(metadata: &Metadata, vocabulary: &Vocabulary) -> Result<Value> {
    let scores = metadata
        .numbers("tokenizer.ggml.scores")?
        .filter(|s| s.len() == vocabulary.tokens.len())
        .ok_or_else(|| metadata.error("tokenizer.ggml.scores must have one number for each token"))?;
    let normal = vocabulary.tokens.iter().enumerate().filter(|(id, _)| vocabulary.types[*id] == NORMAL);
    let ids: HashMap<&str, usize> = normal.map(|(id, token)| (*token, id)).collect();
    let mut merges = Vec::new();
    for (whole, &id) in &ids {
        for (cut, _) in whole.char_indices().skip(1) {
            let (left, right) = whole.split_at(cut);
            if let (Some(&l), Some(&r)) = (ids.get(left), ids.get(right)) {
                merges.push((scores[id], l, r, left, right));
            }
        }
    }
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    let merges: Vec<Value> = merges.into_iter().map(|m| json!([m.3, m.4])).collect();
    let mut normalizers = vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if metadata.flag("tokenizer.ggml.add_space_prefix")?.unwrap_or(true) {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let unknown = metadata.id("tokenizer.ggml.unknown_token_id")?.and_then(|id| vocabulary.tokens.get(id as usize));
    Ok(json!({
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocabulary.json(), "merges": merges,
        },
    }))
}
