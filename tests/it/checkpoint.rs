//! Hugging Face folders: configs, weights, tokenizers.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};
use fullband::checkpoint::{Checkpoint, Config, Family, RopeScaling, sha256_file};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::support::golden_root;
use crate::tiny;
use crate::tiny::refusal;

fn open(dir: &Path) -> fullband::Result<Checkpoint> {
    Checkpoint::open(&dir.display().to_string())
}

/// A folder of the family, with some keys of its config replaced (null: removed).
fn with_config(family: Family, changes: Value) -> (TempDir, Config) {
    let dir = tempdir().unwrap();
    let c = tiny::config(family);
    tiny::folder(dir.path(), &c);
    change(&dir.path().join("config.json"), changes);
    (dir, c)
}

fn change(path: &Path, changes: Value) {
    let mut object: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        object[key] = value.clone();
    }
    tiny::write_json(path, &object);
}

fn golden() -> Option<PathBuf> {
    let path = golden_root();
    if !path.is_dir() {
        eprintln!("skipped: no golden folder at {}", path.display());
        return None;
    }
    Some(path)
}

#[test]
fn each_family_reads_alike_in_both_config_styles() {
    for family in Family::ALL {
        let (dir, c) = with_config(family, json!({}));
        assert_eq!(open(dir.path()).unwrap().config, c, "{} as transformers 5 writes it", family.name());
        let old = json!({
            "rope_parameters": null, "dtype": null,
            "rope_theta": 10000.0, "rope_scaling": null, "torch_dtype": "float32", "transformers_version": "4.46.0",
        });
        change(&dir.path().join("config.json"), old);
        assert_eq!(open(dir.path()).unwrap().config, c, "{} as transformers 4 writes it", family.name());
    }
}

#[test]
fn rope_scaling_in_both_config_styles() {
    let linear = json!({"factor": 4.0});
    let llama3 = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                        "original_max_position_embeddings": 64});
    let of_llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_positions: 64 };
    for (name, keys, expected) in
        [("linear", linear, RopeScaling::Linear { factor: 4.0 }), ("llama3", llama3, of_llama3)]
    {
        let mut new = keys.clone();
        (new["rope_type"], new["rope_theta"]) = (json!(name), json!(500000.0));
        let mut old = keys;
        old["type"] = json!(name);
        for changes in [
            json!({ "rope_parameters": new }),
            json!({ "rope_parameters": null, "rope_scaling": old, "rope_theta": 500000.0 }),
        ] {
            let (dir, _) = with_config(Family::Llama, changes);
            let rope = open(dir.path()).unwrap().config.rope;
            assert_eq!((rope.theta, rope.scaling), (500_000.0, expected.clone()), "{name}");
        }
    }
}

#[test]
fn what_is_not_computed_is_refused_by_name() {
    let yarn = json!({"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0});
    let cases = [
        (json!({"model_type": "gpt_neox"}), "model type 'gpt_neox' is not supported; known are llama, mistral, qwen2"),
        (json!({"model_type": null}), "no model_type"),
        (json!({"architectures": ["LlamaForSequenceClassification"]}), "'LlamaForSequenceClassification'"),
        (json!({"rope_parameters": yarn}), "rope type 'yarn' is not supported"),
        (json!({"rope_parameters": null, "rope_scaling": {"type": "dynamic", "factor": 2.0}}), "rope type 'dynamic'"),
        (json!({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}), "needs 'factor'"),
        (json!({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}), "partial_rotary_factor 0.5"),
        (json!({"hidden_act": "gelu"}), "hidden_act 'gelu' is not supported"),
        (json!({"quantization_config": {"quant_method": "gptq"}}), "quantization_config (method 'gptq')"),
        (json!({"hidden_size": null}), "'hidden_size' is missing"),
        (json!({"hidden_size": "32"}), "'hidden_size' is \"32\", expected a whole number"),
        (json!({"num_key_value_heads": 3}), "4 heads do not divide into 3 key-value heads"),
        (json!({"layer_types": ["full_attention"]}), "layer_types has 1 entries for 2 layers"),
        (json!({"layer_types": ["full_attention", "linear_attention"]}), "\"linear_attention\" is not supported"),
        (json!({"layer_types": ["full_attention", "sliding_attention"]}), "no sliding window is set"),
        (json!({"eos_token_id": "</s>"}), "'eos_token_id'"),
    ];
    for (changes, expected) in cases {
        let (dir, _) = with_config(Family::Llama, changes);
        let message = refusal(open(dir.path()));
        assert!(message.contains(expected), "{message}\nlacks: {expected}");
        assert!(message.contains("config.json"), "{message}");
    }
}

#[test]
fn biases_follow_the_config() {
    let (dir, mut c) = with_config(Family::Llama, json!({}));
    (c.qkv_bias, c.o_bias, c.mlp_bias) = (true, true, true);
    tiny::folder(dir.path(), &c);
    let opened = open(dir.path()).unwrap();
    assert_eq!(opened.config, c);
    assert_eq!(opened.tensor("model.layers.1.mlp.down_proj.bias").unwrap().dims(), [32]);
    assert_eq!(opened.tensor("model.layers.1.self_attn.o_proj.bias").unwrap().dims(), [32]);
}

#[test]
fn sliding_windows_by_family() {
    let of = |family, changes| open(with_config(family, changes).0.path()).unwrap().config.windows;
    assert_eq!(of(Family::Mistral, json!({"sliding_window": 5})), [Some(5), Some(5)]);
    assert_eq!(of(Family::Mistral, json!({"sliding_window": null})), [None, None]);
    let qwen = |on, first: usize| json!({"use_sliding_window": on, "sliding_window": 5, "max_window_layers": first});
    assert_eq!(of(Family::Qwen2, qwen(false, 0)), [None, None]);
    assert_eq!(of(Family::Qwen2, qwen(true, 1)), [None, Some(5)]);
    let types = json!({"use_sliding_window": true, "sliding_window": 5,
                       "layer_types": ["sliding_attention", "full_attention"]});
    assert_eq!(of(Family::Qwen3, types), [Some(5), None]);
}

// pains 44 (Qwen3 #1064, llama-cookbook #640): stop tokens come from all files, each once
#[test]
fn stop_tokens_are_resolved_from_all_files() {
    let (dir, _) = with_config(Family::Llama, json!({"eos_token_id": [0, 3]}));
    tiny::write_json(&dir.path().join("generation_config.json"), &json!({"eos_token_id": [3, 1]}));
    let opened = open(dir.path()).unwrap();
    assert_eq!(opened.config.eos, [0, 3, 1]);
    let tokenizer = opened.tokenizer().unwrap();
    assert_eq!(tokenizer.eos, 2, "the tokenizer's own eos ends a completion");
    assert_eq!(tokenizer.stop, [2, 0, 3, 1]);

    fs::remove_file(dir.path().join("tokenizer_config.json")).unwrap();
    let tokenizer = open(dir.path()).unwrap().tokenizer().unwrap();
    assert_eq!((tokenizer.eos, tokenizer.stop), (0, vec![0, 3, 1]));
}

#[test]
fn an_eos_that_is_no_token_is_refused() {
    let (dir, _) = with_config(Family::Llama, json!({}));
    change(&dir.path().join("tokenizer_config.json"), json!({"eos_token": "</s>"}));
    let message = refusal(open(dir.path()).unwrap().tokenizer());
    assert!(message.contains("the eos_token '</s>' is not in the tokenizer's vocabulary"), "{message}");

    let (dir, _) = with_config(Family::Llama, json!({"eos_token_id": 264}));
    let message = refusal(open(dir.path()).unwrap().tokenizer());
    assert!(message.contains("end token 264 is outside of the embedding of 264 rows"), "{message}");
}

// pains 40 (peft #1457, unsloth #237): added tokens without a resized embedding
#[test]
fn a_tokenizer_larger_than_the_embedding_is_refused() {
    let (dir, _) = with_config(Family::Llama, json!({}));
    let path = dir.path().join("tokenizer.json");
    let mut tokenizer = tiny::tokenizer_json();
    let added = json!({ "id": 264, "content": "<new>", "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": false, "special": true });
    // Ids need not be dense: the highest one counts.
    tokenizer["model"]["vocab"]["x264"] = json!(264);
    tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    tokenizer["added_tokens"][3]["content"] = json!("x264");
    tiny::write_json(&path, &tokenizer);
    let message = refusal(open(dir.path()).unwrap().tokenizer());
    assert!(message.contains("265 in all") && message.contains("264 rows"), "{message}");
}

// pains 11, 12 (trl #1400, Soup #781): a BOS only where the base's own tokenizer adds one
#[test]
fn bos_only_where_the_tokenizer_adds_it() {
    let (dir, _) = with_config(Family::Llama, json!({}));
    let bos = || open(dir.path()).unwrap().tokenizer().unwrap().bos;
    assert_eq!(bos(), None, "named, but never added");
    let mut tokenizer = tiny::tokenizer_json();
    tokenizer["post_processor"] = tiny::adds_bos();
    tiny::write_json(&dir.path().join("tokenizer.json"), &tokenizer);
    assert_eq!(bos(), Some(0));
    change(&dir.path().join("tokenizer_config.json"), json!({"add_bos_token": false}));
    assert_eq!(bos(), None);
    change(&dir.path().join("tokenizer_config.json"), json!({"add_bos_token": true}));
    tiny::write_json(&dir.path().join("tokenizer.json"), &tiny::tokenizer_json());
    assert_eq!(bos(), Some(0));
    // Encoding never adds it by itself.
    let encoded = open(dir.path()).unwrap().tokenizer().unwrap().encode("a").unwrap();
    assert_eq!(encoded.len(), 1);
}

#[test]
fn text_to_ids_and_back() {
    let (dir, _) = with_config(Family::Llama, json!({}));
    let tokenizer = open(dir.path()).unwrap().tokenizer().unwrap();
    // The file's own truncation to 3 and padding to 9 are not applied.
    let text = "hello hé<|im_end|>";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(ids.last(), Some(&2), "special tokens in the text are read as such");
    assert_eq!(ids.len(), 8, "he ll o, Ġ h and the two bytes of é, the end: {ids:?}");
    assert_eq!(tokenizer.decode(&ids, false).unwrap(), text);
    assert_eq!(tokenizer.decode(&ids, true).unwrap(), "hello hé");
    assert_eq!(tokenizer.vocab_size(), 262);
    assert_eq!(tokenizer.token(261).as_deref(), Some(" he"));
    assert_eq!(tokenizer.token(2).as_deref(), Some("<|im_end|>"));
    let half = tokenizer.token(ids[ids.len() - 2]).unwrap();
    assert!(!half.contains('\u{fffd}'), "{half}");
    assert_eq!(tokenizer.token(9999), None);
    assert_eq!(tokenizer.id("<|im_start|>"), Some(1));
}

#[test]
fn stored_types_are_kept() {
    let (dir, c) = with_config(Family::Qwen3, json!({}));
    for (dtype, name) in [(DType::BF16, "BF16"), (DType::F16, "F16"), (DType::F32, "F32")] {
        let tensors = tiny::tensors(&c).into_iter().map(|(k, t)| (k, t.to_dtype(dtype).unwrap())).collect();
        tiny::save(&tensors, &dir.path().join("model.safetensors"));
        let opened = open(dir.path()).unwrap();
        assert_eq!(opened.identity.stored, name);
        for (tensor_name, expected) in &tensors {
            let tensor = opened.tensor(tensor_name).unwrap();
            assert_eq!(tensor.dtype(), dtype);
            assert_eq!(tiny::values(&tensor), tiny::values(expected), "{tensor_name}");
        }
    }
    let mut mixed = tiny::tensors(&c);
    let norm = mixed["model.norm.weight"].to_dtype(DType::BF16).unwrap();
    mixed.insert("model.norm.weight".into(), norm);
    tiny::save(&mixed, &dir.path().join("model.safetensors"));
    assert_eq!(open(dir.path()).unwrap().identity.stored, "F32+BF16");
    assert!(refusal(open(dir.path()).unwrap().tensor("lm_head.weight")).contains("no tensor 'lm_head.weight'"));
}

/// Splits the folder's weights into two shards with an index.
fn shard(dir: &Path, c: &Config) {
    let tensors = tiny::tensors(c);
    fs::remove_file(dir.join("model.safetensors")).unwrap();
    let mut map = serde_json::Map::new();
    for (i, name) in ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"].iter().enumerate() {
        let part = tensors.clone().into_iter().filter(|(k, _)| k.contains("layers.1") == (i == 1)).collect();
        tiny::save(&part, &dir.join(name));
        map.extend(part.keys().map(|k| (k.clone(), json!(name))));
    }
    tiny::write_json(&dir.join("model.safetensors.index.json"), &json!({"metadata": {}, "weight_map": map}));
}

#[test]
fn shards_read_as_one() {
    let (dir, c) = with_config(Family::Llama, json!({}));
    let whole = open(dir.path()).unwrap();
    let expected: Vec<_> = whole.tensors().keys().map(|n| tiny::values(&whole.tensor(n).unwrap())).collect();
    shard(dir.path(), &c);
    let opened = open(dir.path()).unwrap();
    let found: Vec<_> = opened.tensors().keys().map(|n| tiny::values(&opened.tensor(n).unwrap())).collect();
    assert_eq!(opened.tensors(), whole.tensors());
    assert_eq!(found, expected);

    let index = dir.path().join("model.safetensors.index.json");
    let mut changed: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    changed["weight_map"]["model.norm.weight"] = json!("model-00002-of-00002.safetensors");
    tiny::write_json(&index, &changed);
    let message = refusal(open(dir.path()));
    assert!(message.contains("'model.norm.weight' is not in model-00002-of-00002.safetensors"), "{message}");

    changed["weight_map"]["model.norm.weight"] = json!("../model-00001-of-00002.safetensors");
    tiny::write_json(&index, &changed);
    assert!(refusal(open(dir.path())).contains("is not a file name"));

    shard_missing(dir.path(), &mut changed, &index);
}

fn shard_missing(dir: &Path, changed: &mut Value, index: &Path) {
    changed["weight_map"]["model.norm.weight"] = json!("model-00001-of-00002.safetensors");
    tiny::write_json(index, changed);
    fs::remove_file(dir.join("model-00002-of-00002.safetensors")).unwrap();
    assert!(refusal(open(dir)).contains("the shard model-00002-of-00002.safetensors, which it names, is missing"));
}

#[test]
fn a_file_cut_short_is_refused() {
    let (dir, _) = with_config(Family::Llama, json!({}));
    let path = dir.path().join("model.safetensors");
    let whole = fs::read(&path).unwrap();
    for keep in [0, 4, 100, whole.len() - 1] {
        fs::write(&path, &whole[..keep]).unwrap();
        let message = refusal(open(dir.path()));
        assert!(message.contains("cut short or damaged"), "{keep} bytes: {message}");
        assert!(message.contains("model.safetensors"), "{message}");
    }
}

#[test]
fn missing_extra_and_misshapen_tensors_are_named() {
    let (dir, c) = with_config(Family::Llama, json!({}));
    let path = dir.path().join("model.safetensors");
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &candle_core::Device::Cpu).unwrap();
    let attempt = |edit: &dyn Fn(&mut std::collections::BTreeMap<String, Tensor>)| {
        let mut tensors = tiny::tensors(&c);
        edit(&mut tensors);
        tiny::save(&tensors, &path);
        open(dir.path())
    };
    let message = refusal(attempt(&|t| {
        t.remove("model.layers.1.mlp.up_proj.weight");
    }));
    assert!(message.contains("1 tensor missing: model.layers.1.mlp.up_proj.weight"), "{message}");
    let message = refusal(attempt(&|t| {
        t.insert("model.layers.0.self_attn.q_proj.bias".into(), zeros(&[32]));
        t.insert("score.weight".into(), zeros(&[2, 32]));
    }));
    assert!(message.contains("2 tensors that a llama model of this config does not have"), "{message}");
    assert!(message.contains("model.layers.0.self_attn.q_proj.bias, score.weight"), "{message}");
    let message = refusal(attempt(&|t| {
        t.insert("model.norm.weight".into(), zeros(&[31]));
    }));
    assert!(message.contains("'model.norm.weight' has the shape [31]; the config asks for [32]"), "{message}");
    let message = refusal(attempt(&|t| {
        t.insert("model.norm.weight".into(), zeros(&[32]).to_dtype(DType::F64).unwrap());
    }));
    assert!(message.contains("'model.norm.weight' is F64; known are F32, BF16, F16"), "{message}");
    // Older writers stored the rotary frequencies.
    assert!(
        attempt(&|t| {
            t.insert("model.layers.0.self_attn.rotary_emb.inv_freq".into(), zeros(&[4]));
        })
        .is_ok()
    );
}

#[test]
fn a_tied_model_may_store_its_head_again_but_not_another_one() {
    let (dir, c) = with_config(Family::Llama, json!({}));
    let path = dir.path().join("model.safetensors");
    let mut tensors = tiny::tensors(&c);
    let embedding = tensors["model.embed_tokens.weight"].clone();
    tensors.insert("lm_head.weight".into(), embedding.clone());
    tiny::save(&tensors, &path);
    assert!(!open(dir.path()).unwrap().tensors().contains_key("lm_head.weight"));
    tensors.insert("lm_head.weight".into(), (embedding * 2.0).unwrap());
    tiny::save(&tensors, &path);
    let message = refusal(open(dir.path()));
    assert!(message.contains("lm_head.weight differs from model.embed_tokens.weight"), "{message}");
    change(&dir.path().join("config.json"), json!({"tie_word_embeddings": false}));
    assert!(open(dir.path()).unwrap().tensors().contains_key("lm_head.weight"));
}

#[test]
fn identity_is_of_the_weights() {
    let (dir, c) = with_config(Family::Llama, json!({}));
    let first = open(dir.path()).unwrap().identity;
    assert_eq!(first.sha256, sha256_file(&dir.path().join("model.safetensors")).unwrap());
    assert_eq!(first.base, dir.path().display().to_string());
    let mut tensors = tiny::tensors(&c);
    let norm = (&tensors["model.norm.weight"] + 1.0).unwrap();
    tensors.insert("model.norm.weight".into(), norm);
    tiny::save(&tensors, &dir.path().join("model.safetensors"));
    assert_ne!(open(dir.path()).unwrap().identity.sha256, first.sha256);
}

#[test]
fn sha256_of_a_known_text() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("abc");
    fs::write(&path, "abc").unwrap();
    // FIPS 180-2, appendix B.1
    let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(sha256_file(&path).unwrap(), expected);
}

// pains 45 (llama.cpp #15842): tokenizer files are handed on unchanged
#[test]
fn companion_files_are_unchanged() {
    let (dir, _) = with_config(Family::Llama, json!({}));
    fs::write(dir.path().join("chat_template.jinja"), "{{ messages }}").unwrap();
    let files = open(dir.path()).unwrap().companion_files().unwrap();
    let names: Vec<_> = files.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]);
    for (name, bytes) in files {
        assert_eq!(bytes, fs::read(dir.path().join(name)).unwrap());
    }
}

#[test]
fn folders_without_what_is_needed_are_refused() {
    let dir = tempdir().unwrap();
    assert!(refusal(open(dir.path())).contains("neither config.json nor a .gguf file"));
    let (dir, _) = with_config(Family::Llama, json!({}));
    fs::remove_file(dir.path().join("tokenizer.json")).unwrap();
    assert!(refusal(open(dir.path()).unwrap().tokenizer()).contains("tokenizer.json is missing"));
    fs::remove_file(dir.path().join("model.safetensors")).unwrap();
    fs::write(dir.path().join("pytorch_model.bin"), "").unwrap();
    assert!(refusal(open(dir.path())).contains("pytorch_model.bin is not read"));
    assert!(refusal(open(&dir.path().join("absent"))).contains("there is no such folder"));
}

#[test]
fn golden_folders_open() {
    let Some(golden) = golden() else { return };
    let mut opened = 0;
    for entry in fs::read_dir(golden).unwrap() {
        let path = entry.unwrap().path();
        if !path.is_dir() {
            continue;
        }
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let checkpoint = open(&path).unwrap_or_else(|e| panic!("{name}: {e}"));
        let c = &checkpoint.config;
        assert_eq!(c.windows, vec![name.starts_with("mistral").then_some(5); 3], "{name}");
        assert_eq!(c.head_dim, if name.starts_with("qwen3") { 16 } else { 8 }, "{name}");
        assert_eq!(matches!(c.rope.scaling, RopeScaling::Llama3 { .. }), name.starts_with("llama3rope"), "{name}");
        assert_eq!(c.qkv_bias, name.starts_with("qwen2"), "{name}");
        opened += 1;
    }
    assert_eq!(opened, 7);
}
