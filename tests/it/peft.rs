//! PEFT's folders, both ways. `tests/fixtures/peft`: adapters that `peft` wrote, with its logits, loss and gradients.
//! `tests/fixtures/ours`: adapters that this crate writes; the real `peft` has loaded them and found our logits
//! (`peft.json`, made by `tests/make_fixtures/check_peft.py`), which the bytes tie to what is written today.
//!
//! pains 43 (candle-lora #12): own key names on disk.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use fullband::checkpoint::Checkpoint;
use fullband::feedback::{Plan, Tuned, passes, passes_with};
use fullband::files::write_tensors;
use fullband::lora::{self, LoraConfig};
use fullband::model::{Engine, LoadOptions, Model, Predicted, RunOptions};
use fullband::random::{Key, Purpose};
use fullband::recipe::{Dtype, Group, LoraVariant};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::relative_error;

const TOLERANCE: f64 = 1e-5;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn base(name: &str, engine: Engine) -> Model {
    let checkpoint = Checkpoint::open(fixtures().join("golden").join(name).to_str().unwrap()).unwrap();
    Model::load(&checkpoint, &LoadOptions { engine, ..LoadOptions::cpu(Dtype::F32) }).unwrap()
}

/// The fixture's sequences as a flat batch: ids and offsets.
fn batch(ids: &Tensor) -> (Vec<u32>, Vec<usize>) {
    let (rows, len) = ids.dims2().unwrap();
    let flat = ids.to_dtype(DType::U32).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    (flat, (0..=rows).map(|row| row * len).collect())
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// STANDARD's logits, flat.
fn logits(tuned: &Tuned, ids: &[u32], offsets: &[usize]) -> Vec<f32> {
    let states = passes(tuned, ids, offsets, &Plan::default()).unwrap();
    floats(&tuned.base.logits(&states[0]).unwrap())
}

fn close(got: &[f32], want: &[f32], what: &str) {
    let error = relative_error(got, want);
    assert!(error < TOLERANCE, "{what}: relative error {error:e}");
}

#[test]
fn adapters_that_peft_wrote_give_its_logits_loss_and_gradients() {
    let mut variants = 0;
    for entry in fs::read_dir(fixtures().join("peft")).unwrap() {
        let folder = entry.unwrap().path();
        let json: Value = serde_json::from_str(&fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
        for engine in [Engine::Auto, Engine::Composed] {
            check(&folder, &json, engine);
        }
        variants += 1;
    }
    assert_eq!(variants, 7);
}

fn check(folder: &Path, json: &Value, engine: Engine) {
    let name = format!("{} on {engine:?}", folder.file_name().unwrap().to_string_lossy());
    let expected = candle_core::safetensors::load(folder.join("expected.safetensors"), &Device::Cpu).unwrap();
    let (ids, offsets) = batch(&expected["ids"]);
    let base = base(json["base"].as_str().unwrap(), engine);
    let mut tuned = Tuned { base, lora: None, feedback: None };
    close(&logits(&tuned, &ids, &offsets), &floats(&expected["logits.base"]), &format!("{name}: base"));
    tuned.lora = Some(lora::load(folder, &tuned.base).unwrap().0);
    close(&logits(&tuned, &ids, &offsets), &floats(&expected["logits"]), &format!("{name}: logits"));

    let labels: Vec<i64> = expected["labels"].to_dtype(DType::I64).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    let trained = |at: &usize| !offsets.contains(at) && labels[*at] >= 0;
    let (positions, tokens): (Vec<u32>, Vec<u32>) =
        (0..labels.len()).filter(trained).map(|at| (at as u32 - 1, labels[at] as u32)).unzip();
    let options = |_| RunOptions::default();
    let states = passes_with(&tuned, &ids, &offsets, &Plan::default(), &[Group::Lora], options).unwrap();
    let weights = vec![1.0 / tokens.len() as f32; tokens.len()];
    let loss = tuned.base.loss(&states[0], Predicted { positions: &positions, tokens: &tokens }, &weights).unwrap();
    close(&[loss.to_scalar().unwrap()], &[json["loss"].as_f64().unwrap() as f32], &format!("{name}: loss"));
    let gradients = loss.backward().unwrap();
    let mut compared = 0;
    for params in &tuned.lora.as_ref().unwrap().layers {
        let flat: Vec<f32> = gradients.get(params.var()).unwrap().to_vec1().unwrap();
        for slot in params.slots() {
            let want = floats(&expected[&format!("grad.{}", slot.name)]);
            close(&flat[slot.range.clone()], &want, &format!("{name}: gradient of {}", slot.name));
            compared += 1;
        }
    }
    assert_eq!(compared, expected.keys().filter(|key| key.starts_with("grad.")).count(), "{name}");
}

/// Folder, base and config of the adapters that `tests/fixtures/ours` holds.
fn ours() -> Vec<(&'static str, &'static str, LoraConfig)> {
    let modules = |names: &[&str]| -> Vec<String> { names.iter().map(|n| n.to_string()).collect() };
    let all = modules(&["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]);
    let config = |variant, dropout, modules| LoraConfig { rank: 4, alpha: 6.0, dropout, variant, modules };
    vec![
        ("lora", "llama-replace-sigmoid", config(LoraVariant::Lora, 0.1, all.clone())),
        ("rslora", "qwen3-residual-sigmoid", config(LoraVariant::Rslora, 0.0, all.clone())),
        ("dora", "qwen2-replace-signed", config(LoraVariant::Dora, 0.0, all)),
        ("subset", "mistral-residual-sigmoid", config(LoraVariant::Lora, 0.0, modules(&["q_proj", "down_proj"]))),
    ]
}

/// An adapter whose every value differs from what training starts with.
fn moved(base: &Model, config: &LoraConfig) -> lora::Adapters {
    let adapters = lora::init(base, config, 5).unwrap();
    for (layer, params) in adapters.layers.iter().enumerate() {
        let key = Key::new(6, Purpose::Init).at(layer as u64);
        let mut values = params.values().unwrap();
        for slot in params.slots() {
            for i in slot.range.clone() {
                let noise = (key.unit(i as u64) * 2.0 - 1.0) as f32;
                let is_magnitude = slot.name.ends_with("magnitude_vector");
                values[i] = if is_magnitude { values[i] * (1.0 + 0.3 * noise) } else { values[i] + 0.2 * noise };
            }
        }
        params.set(values).unwrap();
    }
    adapters
}

fn sha256(path: &Path) -> String {
    Sha256::digest(fs::read(path).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes `adapter` of our own and its logits, as the fixture holds them.
fn write_ours(name: &str, base_name: &str, config: &LoraConfig, folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let base = base(base_name, Engine::Auto);
    let adapters = moved(&base, config);
    lora::save(&adapters, config, &format!("golden/{base_name}"), folder).unwrap();
    let tuned = Tuned { base, lora: Some(adapters), feedback: None };
    let ids: Vec<u32> = (0..24).map(|i| 3 + (i * 37 + name.len() as u32) % 60).collect();
    let logits = logits(&tuned, &ids, &[0, 12, 24]);
    let as_floats: Vec<f32> = ids.iter().map(|&id| id as f32).collect();
    let tensors = [
        ("ids".to_string(), vec![2, 12], &as_floats[..]),
        ("logits".to_string(), vec![2, 12, logits.len() / 24], &logits[..]),
    ];
    write_tensors(&folder.join("expected.safetensors"), tensors).unwrap();
}

/// `FULLBAND_WRITE_FIXTURES=1` writes the folders anew; `check_peft.py` must look at them again then.
#[test]
fn adapters_of_ours_are_those_that_peft_has_loaded() {
    let folder = fixtures().join("ours");
    let write = std::env::var_os("FULLBAND_WRITE_FIXTURES").is_some();
    let scratch = tempfile::tempdir().unwrap();
    for (name, base_name, config) in ours() {
        let kept = folder.join(name);
        let written = if write { kept.clone() } else { scratch.path().join(name) };
        write_ours(name, base_name, &config, &written);
        if write {
            continue;
        }
        for file in ["adapter_model.safetensors", "adapter_config.json"] {
            assert_eq!(sha256(&written.join(file)), sha256(&kept.join(file)), "{name}/{file} is written otherwise now");
        }
        let [got, want] = [&written, &kept].map(|folder| {
            floats(
                &candle_core::safetensors::load(folder.join("expected.safetensors"), &Device::Cpu).unwrap()["logits"],
            )
        });
        close(&got, &want, &format!("{name}: logits"));
        let read = lora::load(&kept, &base(base_name, Engine::Auto)).unwrap().1;
        assert_eq!(read, config, "{name}");
    }
    if !write {
        let checked: Value = serde_json::from_str(&fs::read_to_string(folder.join("peft.json")).unwrap()).unwrap();
        for (name, ..) in ours() {
            let of = &checked["adapters"][name];
            assert_eq!(of["sha256"], sha256(&folder.join(name).join("adapter_model.safetensors")), "{name}");
            assert_eq!(of["config_sha256"], sha256(&folder.join(name).join("adapter_config.json")), "{name}");
            assert_eq!(of["names_differ"], Value::Array(vec![]), "{name}");
            assert!(of["error"].as_f64().unwrap() < 1e-5, "{name}: {of}");
            assert!(of["change"].as_f64().unwrap() > 1e-2, "{name}: the adapter does nothing in peft: {of}");
        }
    }
}

/// A copy of one of `peft`'s adapters with `key` of its config set; how loading it goes.
fn with_key(key: &str, value: Value) -> fullband::Result<LoraConfig> {
    let (from, to) = (fixtures().join("peft/lora"), tempfile::tempdir().unwrap());
    fs::copy(from.join("adapter_model.safetensors"), to.path().join("adapter_model.safetensors")).unwrap();
    let mut json: Value = serde_json::from_str(&fs::read_to_string(from.join("adapter_config.json")).unwrap()).unwrap();
    json[key] = value;
    fs::write(to.path().join("adapter_config.json"), json.to_string()).unwrap();
    lora::load(to.path(), &base("llama-replace-sigmoid", Engine::Auto)).map(|(_, config)| config)
}

// pains 33 (peft #1979, #2275): a newer peft's keys at their defaults are no obstacle; what would change results is
#[test]
fn unknown_keys_are_ignored_at_rest_and_refused_otherwise() {
    use serde_json::json;
    for (key, value) in [("use_newest_trick", json!(false)), ("newest_config", json!(null)), ("bias_of_x", json!({}))] {
        with_key(key, value).unwrap_or_else(|error| panic!("{key}: {error}"));
    }
    for (key, value) in [
        ("use_newest_trick", json!(true)),
        ("layers_to_transform", json!([0])),
        ("rank_pattern", json!({"q_proj": 8})),
        ("modules_to_save", json!(["lm_head"])),
        ("bias", json!("all")),
        ("fan_in_fan_out", json!(true)),
    ] {
        let error = with_key(key, value).expect_err(key);
        assert!(error.to_string().contains(key) && error.to_string().contains("adapter_config.json"), "{error}");
        assert_eq!(error.exit_code(), 4);
    }
    let error = with_key("target_modules", json!(["model.layers.7.mlp.up_proj"])).unwrap_err().to_string();
    assert!(error.contains("model.layers.7.mlp.up_proj") && error.contains("none of the base's"), "{error}");
    let error = with_key("target_modules", json!(["c_attn"])).unwrap_err().to_string();
    assert!(error.contains("'c_attn' is not supported"), "{error}");
}
