//! PEFT's adapter folder: `adapter_config.json` and `adapter_model.safetensors`, written so that `peft` loads it and
//! read so that what `peft` wrote loads here. Reading is strict: a tensor missing or left over is refused, and so is a
//! config key whose value would change the arithmetic and that is not understood.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::build::{LoraConfig, build, is_target, module_name};
use crate::error::{Error, Result};
use crate::files::{read_tensors, write_json, write_tensors};
use crate::kernels::layer::MODULES;
use crate::model::{Adapters, Model};
use crate::recipe::LoraVariant;

pub const WEIGHTS: &str = "adapter_model.safetensors";
pub const CONFIG: &str = "adapter_config.json";
const PREFIX: &str = "base_model.model.";

/// Keys of `adapter_config.json` that do not touch the arithmetic of a loaded adapter, whatever their value.
const IGNORED: [&str; 12] = [
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "auto_mapping",
    "inference_mode",
    "init_lora_weights",
    "task_type",
    "runtime_config",
    "megatron_core",
    "ensure_weight_tying",
    "qalora_group_size",
    "corda_config",
];

/// Keys that are read.
const READ: [&str; 8] =
    ["peft_type", "r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "target_modules", "bias"];

pub fn save(adapters: &Adapters, config: &LoraConfig, base: &str, folder: &Path) -> Result<()> {
    let mut values = Vec::new();
    for params in &adapters.layers {
        values.push(params.values()?);
    }
    let tensors = adapters.layers.iter().zip(&values).flat_map(|(params, values)| {
        params.slots().iter().map(|s| (format!("{PREFIX}{}", s.name), s.shape.clone(), &values[s.range.clone()]))
    });
    write_tensors(&folder.join(WEIGHTS), tensors)?;
    // The subset that every PEFT since DoRA (0.9) reads.
    let config = json!({
        "peft_type": "LORA",
        "auto_mapping": null,
        "base_model_name_or_path": base,
        "revision": null,
        "task_type": "CAUSAL_LM",
        "inference_mode": true,
        "r": config.rank,
        "lora_alpha": whole(config.alpha),
        "lora_dropout": config.dropout,
        "target_modules": config.modules,
        "fan_in_fan_out": false,
        "bias": "none",
        "use_rslora": config.variant == LoraVariant::Rslora,
        "use_dora": config.variant == LoraVariant::Dora,
        "modules_to_save": null,
        "init_lora_weights": true,
        "layers_to_transform": null,
        "layers_pattern": null,
        "rank_pattern": {},
        "alpha_pattern": {},
    });
    write_json(&folder.join(CONFIG), &config)
}

/// A whole number as an integer: that is how PEFT writes alpha.
fn whole(x: f64) -> Value {
    if x.fract() == 0.0 { json!(x as i64) } else { json!(x) }
}

/// The LoRA adapter of a folder.
pub fn load(folder: &Path, base: &Model) -> Result<(Adapters, LoraConfig)> {
    let path = folder.join(CONFIG);
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let json: Map<String, Value> = serde_json::from_str(&text).map_err(|e| Error::model(&path, e.to_string()))?;
    let config = read_config(&json).map_err(|message| Error::model(&path, message))?;
    let layers = base.config().num_layers;
    let names = (0..layers).flat_map(|layer| (0..MODULES.len()).map(move |module| module_name(layer, module)));
    let names: Vec<String> = names.collect();
    if let Some(target) = config.modules.iter().find(|target| !names.iter().any(|name| is_target(name, target))) {
        return Err(Error::model(&path, format!("target module '{target}' is in none of the base's {layers} layers")));
    }
    let adapters = build(base, &config)?;
    let weights = folder.join(WEIGHTS);
    let slots = adapters.layers.iter().flat_map(|p| p.slots());
    let wanted = slots.map(|s| (format!("{PREFIX}{}", s.name), s.shape.clone())).collect();
    let mut tensors = read_tensors(&weights, &wanted)?;
    for params in &adapters.layers {
        let mut values = vec![0.0; params.len()];
        for slot in params.slots() {
            let tensor = tensors.remove(&format!("{PREFIX}{}", slot.name)).expect("checked by read_tensors");
            values[slot.range.clone()].copy_from_slice(&tensor);
        }
        params.set(values)?;
    }
    Ok((adapters, config))
}

fn read_config(json: &Map<String, Value>) -> Result<LoraConfig, String> {
    let get = |key: &str| json.get(key).filter(|v| !v.is_null());
    match get("peft_type").and_then(Value::as_str) {
        Some("LORA") => {}
        other => return Err(format!("peft_type is {}, expected LORA", other.unwrap_or("missing"))),
    }
    for (key, value) in json {
        if !READ.contains(&key.as_str()) && !IGNORED.contains(&key.as_str()) && !is_default(value) {
            return Err(format!("key '{key}' has the value {value}, which is not supported and would change results"));
        }
    }
    match get("bias").and_then(Value::as_str) {
        None | Some("none") => {}
        Some(other) => return Err(format!("bias '{other}' is not supported: expected 'none'")),
    }
    let flag = |key: &str| get(key).and_then(Value::as_bool).unwrap_or(false);
    let variant = match (flag("use_rslora"), flag("use_dora")) {
        (false, false) => LoraVariant::Lora,
        (true, false) => LoraVariant::Rslora,
        (false, true) => LoraVariant::Dora,
        (true, true) => return Err("use_rslora and use_dora together are not supported".into()),
    };
    let rank = get("r").and_then(Value::as_u64).filter(|&r| r > 0).ok_or("r is missing or not a positive integer")?;
    let alpha = get("lora_alpha").and_then(Value::as_f64).ok_or("lora_alpha is missing or not a number")?;
    let dropout = get("lora_dropout").and_then(Value::as_f64).unwrap_or(0.0);
    Ok(LoraConfig { rank: rank as usize, alpha, dropout, variant, modules: read_modules(get("target_modules"))? })
}

/// `null`, false, 0, an empty list or map: what PEFT writes for what was not asked for.
fn is_default(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        _ => false,
    }
}

fn read_modules(value: Option<&Value>) -> Result<Vec<String>, String> {
    let known: Vec<&str> = MODULES.iter().filter_map(|m| m.rsplit('.').next()).collect();
    // What peft writes for "all-linear" is a list of whole names.
    let listed: Vec<String> = match value {
        Some(Value::String(name)) if name == "all-linear" => known.iter().map(|m| m.to_string()).collect(),
        Some(Value::String(pattern)) => {
            return Err(format!("target_modules is the pattern '{pattern}', expected a list of module names"));
        }
        Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_string).collect(),
        _ => return Err("target_modules is missing".into()),
    };
    let is_known = |target: &String| known.iter().any(|name| is_target(target, name) || is_target(name, target));
    match listed.iter().find(|target| !is_known(target)) {
        Some(unknown) => {
            Err(format!("target module '{unknown}' is not supported: expected some of {}", known.join(", ")))
        }
        None => Ok(listed),
    }
}
