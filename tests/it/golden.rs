//! Whole models against an independent float64 reference: logits and states of three passes, losses, all gradients,
//! decoding, contraction. Every folder is run on the kernels and on the composed operations.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use fullband::checkpoint::Checkpoint;
use fullband::feedback::{Plan, Tuned, passes, passes_with};
use fullband::files;
use fullband::infer::{Options, decode};
use fullband::model::{Engine, LoadOptions, Model, Predicted, RunOptions};
use fullband::recipe::{Dtype, Group, Mode};
use fullband::{feedback, lora};
use serde_json::Value;

use crate::support::{golden_folders, relative_error};

const TOLERANCE: f64 = 1e-4;

struct Golden {
    tuned: Tuned,
    json: Value,
    tensors: HashMap<String, Tensor>,
    rows: usize,
    len: usize,
    expanding: bool,
}

fn open(folder: &Path, engine: Engine) -> Golden {
    let checkpoint = Checkpoint::open(folder.to_str().unwrap()).unwrap();
    let options = LoadOptions { engine, ..LoadOptions::cpu(Dtype::F32) };
    let base = Model::load(&checkpoint, &options).unwrap();
    let json: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("expected.json")).unwrap()).unwrap();
    let text = |key: &str| serde_json::from_value(json[key].clone()).unwrap();
    let adapter = folder.join("adapter");
    let (adapters, _) = lora::load(&adapter, &base).unwrap();
    let feedback = feedback::Feedback::zeros(&base, text_form(text("form")), text_gate(text("gate"))).unwrap();
    feedback::load_weights(&feedback, &adapter.join("latent_feedback.safetensors")).unwrap();
    let tensors = candle_core::safetensors::load(folder.join("expected.safetensors"), &Device::Cpu).unwrap();
    let (rows, len) = tensors["ids"].dims2().unwrap();
    let tuned = Tuned { base, lora: Some(adapters), feedback: Some(feedback) };
    Golden { tuned, json, tensors, rows, len, expanding: is_expanding(folder) }
}

fn text_form(text: String) -> fullband::recipe::Form {
    serde_json::from_value(Value::String(text)).unwrap()
}

fn text_gate(text: String) -> fullband::recipe::Gate {
    serde_json::from_value(Value::String(text)).unwrap()
}

impl Golden {
    fn integers(&self, name: &str) -> Vec<i64> {
        let tensor = self.tensors[name].to_dtype(candle_core::DType::I64).unwrap();
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        self.tensors[name].flatten_all().unwrap().to_vec1().unwrap()
    }

    fn ids(&self) -> Vec<u32> {
        self.integers("ids").into_iter().map(|id| id as u32).collect()
    }

    fn offsets(&self) -> Vec<usize> {
        (0..=self.rows).map(|row| row * self.len).collect()
    }

    fn plan(&self) -> Plan {
        let cuts = self.integers("prefix_cuts");
        Plan::fixed(cuts.chunks(self.rows).map(|c| c.iter().map(|&cut| cut as usize).collect()).collect())
    }

    /// Positions and tokens of the labels; position t predicts label t + 1.
    fn targets(&self) -> (Vec<u32>, Vec<u32>) {
        let labels = self.integers("labels");
        let all = (0..labels.len()).filter(|at| at % self.len > 0 && labels[*at] >= 0);
        all.map(|at| (at as u32 - 1, labels[at] as u32)).unzip()
    }

    /// Gradients by name.
    fn gradients(&self, store: &candle_core::backprop::GradStore) -> HashMap<String, Vec<f32>> {
        let lora = self.tuned.lora.as_ref().unwrap().layers.iter();
        let mut out = HashMap::new();
        for params in lora.chain([&self.tuned.feedback.as_ref().unwrap().params]) {
            let flat = store.get(params.var()).expect("a gradient for every variable").to_vec1::<f32>().unwrap();
            for slot in params.slots() {
                out.insert(slot.name.clone(), flat[slot.range.clone()].to_vec());
            }
        }
        out
    }
}

/// Folders whose fused map expands: three passes of an untrained `replace` fusion enlarge a rounding a thousandfold, and
/// f32 does not carry every figure to 1e-4. Plain float32 PyTorch (2.15, transformers 5.24, peft 0.21.2) on the same
/// folders is off by up to 2.3e-4 in a gradient and gives other tokens at the end in two of the three; the expectations
/// themselves lie up to 7e-5 from a run with all of float64 (transformers' norms are float32). States, logits and
/// losses are held to the common tolerance here too.
const EXPANDING: [&str; 3] = ["llama-replace-sigmoid", "llama-replace-signed", "llama3rope-replace-sigmoid"];
/// For gradients on those folders: under twice what float32 PyTorch reaches.
const EXPANDING_TOLERANCE: f64 = 4.5e-4;
/// On those folders greedy tokens and changes of the states are compared this far.
const EXPANDING_TOKENS: usize = 9;
const EXPANDING_CHANGES: usize = 5;

/// Of the shared folders alone: those made here are chosen so that f32 can follow.
fn is_expanding(folder: &Path) -> bool {
    let ours = folder.starts_with(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests"));
    !ours && folder.file_name().is_some_and(|name| EXPANDING.iter().any(|e| name == *e))
}

/// Runs `check` on every folder and engine; what differs is told for all of them at the end.
fn each(check: impl Fn(&Golden, &str, &mut Vec<String>)) {
    let mut failures = Vec::new();
    for folder in golden_folders() {
        for engine in [Engine::Auto, Engine::Composed] {
            let name = format!("{} on {engine:?}", folder.file_name().unwrap().to_string_lossy());
            check(&open(&folder, engine), &name, &mut failures);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Notes a relative error that is not under the tolerance.
fn within(error: f64, tolerance: f64, what: String, failures: &mut Vec<String>) {
    println!("{what}: {error:e}");
    if error.is_nan() || error >= tolerance {
        failures.push(format!("{what}: relative error {error:e}"));
    }
}

#[test]
fn states_and_logits_of_three_passes() {
    each(|golden, name, failures| {
        let states = passes(&golden.tuned, &golden.ids(), &golden.offsets(), &golden.plan()).unwrap();
        for (k, states) in states.iter().enumerate() {
            let got: Vec<f32> = states.flatten_all().unwrap().to_vec1().unwrap();
            let error = relative_error(&got, &golden.floats(&format!("hidden.pass{}", k + 1)));
            within(error, TOLERANCE, format!("{name}: states of pass {}", k + 1), failures);
            let logits = golden.tuned.base.logits(states).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let error = relative_error(&logits, &golden.floats(&format!("logits.pass{}", k + 1)));
            within(error, TOLERANCE, format!("{name}: logits of pass {}", k + 1), failures);
        }
    });
}

#[test]
fn losses_and_every_gradient() {
    for recompute in [false, true] {
        each(|golden, name, failures| {
            if recompute && name.contains("Composed") {
                return;
            }
            check_gradients(golden, name, recompute, failures);
        });
    }
}

fn check_gradients(golden: &Golden, name: &str, recompute: bool, failures: &mut Vec<String>) {
    let groups = [Group::Lora, Group::Feedback];
    let options = |_| RunOptions { recompute, ..RunOptions::default() };
    let states =
        passes_with(&golden.tuned, &golden.ids(), &golden.offsets(), &golden.plan(), &groups, options).unwrap();
    let (positions, tokens) = golden.targets();
    let predicted = Predicted { positions: &positions, tokens: &tokens };
    let weights = vec![1.0 / tokens.len() as f32; tokens.len()];
    let later = 1.0 / (states.len() - 1) as f64;
    let mut total: Option<Tensor> = None;
    for (k, states) in states.iter().enumerate() {
        let loss = golden.tuned.base.loss(states, predicted, &weights).unwrap();
        let (got, want) = (loss.to_scalar::<f32>().unwrap() as f64, golden.json["losses"][k].as_f64().unwrap());
        within(((got - want) / want).abs(), TOLERANCE, format!("{name}: loss of pass {}", k + 1), failures);
        let losses = golden.tuned.base.token_losses(states, predicted).unwrap();
        let mean = losses.iter().map(|&l| l as f64).sum::<f64>() / losses.len() as f64;
        assert!((mean - got).abs() < 1e-5, "{name}: token losses give {mean}, the loss is {got}");
        let share = (loss * if k == 0 { 1.0 } else { later }).unwrap();
        total = Some(match total {
            None => share,
            Some(total) => (total + share).unwrap(),
        });
    }
    let total = total.unwrap();
    let want = golden.json["total"].as_f64().unwrap();
    assert!((total.to_scalar::<f32>().unwrap() as f64 - want).abs() / want < TOLERANCE, "{name}: total");
    let gradients = golden.gradients(&total.backward().unwrap());
    let tolerance = if golden.expanding { EXPANDING_TOLERANCE } else { TOLERANCE };
    let mut compared = 0;
    for (key, want) in golden.tensors.iter().filter_map(|(key, t)| Some((key.strip_prefix("grad.")?, t))) {
        let key = if key == "latent_feedback.norm" { "latent_feedback.norm.weight" } else { key };
        let got = gradients.get(key).unwrap_or_else(|| panic!("{name}: no gradient for {key}"));
        let error = relative_error(got, &want.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        within(error, tolerance, format!("{name}: gradient of {key} (recompute: {recompute})"), failures);
        compared += 1;
    }
    assert_eq!(compared, gradients.len(), "{name}: every gradient compared");
}

#[test]
fn decoding_gives_the_same_tokens() {
    each(|golden, name, failures| {
        let prompt: Vec<u32> = serde_json::from_value(golden.json["decode"]["prompt"].clone()).unwrap();
        let modes = [
            ("standard", Mode::Standard, 1),
            ("soft", Mode::Soft, 1),
            ("fused1", Mode::Fused, 1),
            ("fused2", Mode::Fused, 2),
        ];
        for (key, mode, prefill_passes) in modes {
            let mut want: Vec<u32> = serde_json::from_value(golden.json["decode"][key]["tokens"].clone()).unwrap();
            if golden.expanding {
                want.truncate(EXPANDING_TOKENS);
            }
            let options = Options { mode, prefill_passes, max_new: want.len(), ..Options::default() };
            let got = decode(&golden.tuned, &prompt, &options, |_| true).unwrap();
            if got.tokens != want {
                failures.push(format!("{name}: {key}: {:?}, expected {want:?}", got.tokens));
            }
        }
    });
}

#[test]
fn repeated_passes_change_the_states_as_expected() {
    each(|golden, name, failures| {
        let mut want: Vec<f64> = serde_json::from_value(golden.json["state_change_rms"].clone()).unwrap();
        if golden.expanding {
            want.truncate(EXPANDING_CHANGES);
        }
        // The reference follows the first row alone.
        let ids = &golden.ids()[..golden.len];
        let trace = fullband::eval::contraction(&golden.tuned, ids, &[0, golden.len], want.len() + 1).unwrap();
        for (k, (got, want)) in trace.iter().zip(&want).enumerate() {
            within((got - want).abs() / want, 1e-3, format!("{name}: change of pass {}", k + 2), failures);
        }
        assert_eq!(trace.len(), want.len());
    });
}

// The whole file is read strictly: no tensor of an adapter is missing or left over.
// pains 32 (peft #1579, #1932): key prefix off, adapter silently random.
#[test]
fn an_adapter_with_a_renamed_tensor_is_refused() {
    let Some(folder) = golden_folders().into_iter().next() else { return };
    let golden = open(&folder, Engine::Auto);
    let broken = tempfile::tempdir().unwrap();
    let adapter = folder.join("adapter");
    std::fs::copy(adapter.join("adapter_config.json"), broken.path().join("adapter_config.json")).unwrap();
    let tensors = candle_core::safetensors::load(adapter.join("adapter_model.safetensors"), &Device::Cpu).unwrap();
    let values: Vec<(String, Vec<usize>, Vec<f32>)> = tensors
        .iter()
        .map(|(name, t)| {
            let name = name.replace("layers.0.self_attn.q_proj", "layers.0.attn.q_proj");
            (name, t.dims().to_vec(), t.flatten_all().unwrap().to_vec1().unwrap())
        })
        .collect();
    let path = broken.path().join("adapter_model.safetensors");
    files::write_tensors(&path, values.iter().map(|(n, s, v)| (n.clone(), s.clone(), &v[..]))).unwrap();
    let error = lora::load(broken.path(), &golden.tuned.base).err().expect("refused").to_string();
    assert!(error.contains("missing 2"), "{error}");
    assert!(error.contains("unexpected 2"), "{error}");
    assert!(error.contains("layers.0.attn.q_proj.lora_A.weight"), "{error}");
}
