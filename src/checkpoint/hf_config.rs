//! Reads `config.json` and `generation_config.json` as transformers 4 and 5 write them into a [`Config`]. Whatever the
//! model code here does not compute is refused by name instead of being ignored.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::config::{Config, Family, Rope, RopeScaling};
use crate::error::{Error, Result};

/// Reads the two files of `folder`; `generation_config.json` may be absent.
pub fn read(folder: &Path) -> Result<Config> {
    let path = folder.join("config.json");
    let mut config = parse(&read_object(&path)?, &path)?;
    let path = folder.join("generation_config.json");
    if path.exists() {
        let generation = Keys { map: &read_object(&path)?, path: &path };
        for id in generation.ids("eos_token_id")? {
            if !config.eos.contains(&id) {
                config.eos.push(id);
            }
        }
        config.bos = config.bos.or(generation.ids("bos_token_id")?.first().copied());
    }
    Ok(config)
}

/// A JSON file that must hold an object.
pub fn read_object(path: &Path) -> Result<Map<String, Value>> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::model(path, "not a JSON object")),
        Err(e) => Err(Error::model(path, format!("not JSON: {e}"))),
    }
}

/// `config.json` alone. `path` is for messages.
pub fn parse(map: &Map<String, Value>, path: &Path) -> Result<Config> {
    let keys = Keys { map, path };
    let family = family(&keys)?;
    refuse_unsupported(&keys)?;
    let hidden_size = keys.required("hidden_size")?;
    let num_heads = keys.required("num_attention_heads")?;
    let num_layers = keys.required("num_hidden_layers")?;
    let num_kv_heads = match family {
        _ if keys.is_null("num_key_value_heads") => num_heads,
        Family::Llama => num_heads,
        Family::Mistral => 8,
        Family::Qwen2 | Family::Qwen3 => 32,
    };
    let default_positions = match family {
        Family::Llama => 2048,
        Family::Mistral => 131_072,
        Family::Qwen2 | Family::Qwen3 => 32_768,
    };
    let attention_bias = keys.flag("attention_bias")?.unwrap_or(false);
    let (qkv_bias, o_bias) = match family {
        Family::Llama | Family::Qwen3 => (attention_bias, attention_bias),
        Family::Qwen2 => (true, false),
        Family::Mistral => (false, false),
    };
    let max_positions = keys.count("max_position_embeddings")?.unwrap_or(default_positions);
    let head_dim = match keys.count("head_dim")? {
        Some(n) => n,
        None if num_heads > 0 && hidden_size % num_heads == 0 => hidden_size / num_heads,
        None => return Err(keys.error(format!("hidden_size {hidden_size} is not a multiple of {num_heads} heads"))),
    };
    let config = Config {
        family,
        vocab_size: keys.required("vocab_size")?,
        hidden_size,
        intermediate_size: keys.required("intermediate_size")?,
        num_layers,
        num_heads,
        num_kv_heads: keys.count("num_key_value_heads")?.unwrap_or(num_kv_heads),
        head_dim,
        rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope: rope(&keys)?,
        windows: windows(&keys, family, num_layers)?,
        max_positions,
        tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
        qkv_bias,
        o_bias,
        mlp_bias: family == Family::Llama && keys.flag("mlp_bias")?.unwrap_or(false),
        qk_norm: family == Family::Qwen3,
        bos: keys.ids("bos_token_id")?.first().copied(),
        eos: keys.ids("eos_token_id")?,
    };
    config.check().map_err(|message| keys.error(message))?;
    Ok(config)
}

fn family(keys: &Keys) -> Result<Family> {
    let known = Family::ALL.map(Family::name).join(", ");
    let named = keys.text("model_type")?.ok_or_else(|| keys.error(format!("no model_type; known are {known}")))?;
    let family = Family::ALL
        .into_iter()
        .find(|f| f.name() == named)
        .ok_or_else(|| keys.error(format!("model type '{named}' is not supported; known are {known}")))?;
    if let Some(Value::Array(list)) = keys.map.get("architectures") {
        for architecture in list.iter().filter_map(Value::as_str) {
            if architecture != family.architecture() {
                let wanted = family.architecture();
                return Err(keys.error(format!("architecture '{architecture}' is not supported; known is {wanted}")));
            }
        }
    }
    Ok(family)
}

fn refuse_unsupported(keys: &Keys) -> Result<()> {
    if let Some(quantization) = keys.present("quantization_config") {
        let method = quantization.get("quant_method").and_then(Value::as_str).unwrap_or("unnamed");
        return Err(keys.error(format!(
            "quantization_config (method '{method}') is not supported; use the unquantised model or a GGUF file"
        )));
    }
    if let Some(act) = keys.text("hidden_act")?
        && act != "silu"
    {
        return Err(keys.error(format!("hidden_act '{act}' is not supported; known is silu")));
    }
    Ok(())
}

/// transformers 4: `rope_theta` and `rope_scaling`; 5: everything in `rope_parameters`.
fn rope(keys: &Keys) -> Result<Rope> {
    let table = keys.object("rope_parameters")?.or(keys.object("rope_scaling")?);
    let outer_theta = keys.number("rope_theta")?;
    refuse_partial_rotary(keys)?;
    let Some(table) = table else {
        return Ok(Rope { theta: outer_theta.unwrap_or(10_000.0), scaling: RopeScaling::None });
    };
    let table = Keys { map: table, path: keys.path };
    refuse_partial_rotary(&table)?;
    let theta = table.number("rope_theta")?.or(outer_theta).unwrap_or(10_000.0);
    let kind = table.text("rope_type")?.or(table.text("type")?).unwrap_or("default");
    let needed = |key: &str| {
        table.number(key)?.ok_or_else(|| keys.error(format!("rope type '{kind}' needs '{key}', which is missing")))
    };
    let scaling = match kind {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: needed("factor")? },
        "llama3" => RopeScaling::Llama3 {
            factor: needed("factor")?,
            low_freq_factor: needed("low_freq_factor")?,
            high_freq_factor: needed("high_freq_factor")?,
            original_max_positions: needed("original_max_position_embeddings")? as usize,
        },
        other => {
            let message = format!("rope type '{other}' is not supported; known are default, linear, llama3");
            return Err(keys.error(message));
        }
    };
    if table.map.values().any(Value::is_object) {
        return Err(keys.error("rope_parameters that differ between layers are not supported"));
    }
    Ok(Rope { theta, scaling })
}

fn refuse_partial_rotary(keys: &Keys) -> Result<()> {
    match keys.number("partial_rotary_factor")? {
        Some(share) if share != 1.0 => {
            Err(keys.error(format!("partial_rotary_factor {share} is not supported; only 1 is")))
        }
        _ => Ok(()),
    }
}

/// The attention window of each layer. In Qwen configs `sliding_window` counts only with `use_sliding_window`.
fn windows(keys: &Keys, family: Family, num_layers: usize) -> Result<Vec<Option<usize>>> {
    let qwen = matches!(family, Family::Qwen2 | Family::Qwen3);
    let window = match family {
        Family::Llama => None,
        Family::Mistral => keys.count("sliding_window")?,
        Family::Qwen2 | Family::Qwen3 => {
            if keys.flag("use_sliding_window")?.unwrap_or(false) {
                keys.count("sliding_window")?
            } else {
                None
            }
        }
    };
    if window == Some(0) {
        return Err(keys.error("sliding_window is 0; a window reaches at least the position itself"));
    }
    if let Some(types) = keys.present("layer_types") {
        let types = types.as_array().ok_or_else(|| keys.error("layer_types is not a list"))?;
        if types.len() != num_layers {
            return Err(keys.error(format!("layer_types has {} entries for {num_layers} layers", types.len())));
        }
        return types
            .iter()
            .map(|kind| match kind.as_str().unwrap_or_default() {
                "full_attention" => Ok(None),
                "sliding_attention" if window.is_some() => Ok(window),
                "sliding_attention" => {
                    Err(keys.error("layer_types asks for sliding_attention, but no sliding window is set"))
                }
                _ => Err(keys
                    .error(format!("layer type {kind} is not supported; known are full_attention, sliding_attention"))),
            })
            .collect();
    }
    let first = if qwen { keys.count("max_window_layers")?.unwrap_or(28) } else { 0 };
    Ok((0..num_layers).map(|layer| window.filter(|_| layer >= first)).collect())
}

/// Typed reading of an object's keys; null counts as absent.
pub struct Keys<'a> {
    pub map: &'a Map<String, Value>,
    pub path: &'a Path,
}

impl<'a> Keys<'a> {
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::Model { path: PathBuf::from(self.path), message: message.into() }
    }

    pub fn present(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn is_null(&self, key: &str) -> bool {
        self.map.get(key).is_some_and(Value::is_null)
    }

    fn wrong(&self, key: &str, expected: &str) -> Error {
        self.error(format!("'{key}' is {}, expected {expected}", self.map[key]))
    }

    fn required(&self, key: &str) -> Result<usize> {
        self.count(key)?.ok_or_else(|| self.error(format!("'{key}' is missing")))
    }

    fn count(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.present(key) else { return Ok(None) };
        value.as_u64().map(|n| Some(n as usize)).ok_or_else(|| self.wrong(key, "a whole number"))
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.present(key) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.wrong(key, "a number"))
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.present(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false"))
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.present(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string"))
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>> {
        let Some(value) = self.present(key) else { return Ok(None) };
        value.as_object().map(Some).ok_or_else(|| self.wrong(key, "an object"))
    }

    /// A token id or a list of them.
    fn ids(&self, key: &str) -> Result<Vec<u32>> {
        let id = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        match self.present(key) {
            None => Ok(Vec::new()),
            Some(Value::Array(list)) => {
                list.iter().map(id).collect::<Option<_>>().ok_or_else(|| self.wrong(key, "token ids"))
            }
            // Some configs write -1 for "none".
            Some(v) if v.as_i64() == Some(-1) => Ok(Vec::new()),
            Some(v) => id(v).map(|n| vec![n]).ok_or_else(|| self.wrong(key, "a token id or a list of them")),
        }
    }
}
