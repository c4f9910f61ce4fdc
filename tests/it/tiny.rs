//! Tiny random checkpoints for the tests: a config, a byte-level tokenizer, and both forms on disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{self, Value as Meta};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Device, Tensor};
use fullband::checkpoint::{Config, Family, Rope, RopeScaling};
use fullband::random::{Key, Purpose};
use serde_json::{Value, json};

pub const SPECIAL: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
pub const CHAT: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

pub fn config(family: Family) -> Config {
    Config {
        family,
        vocab_size: 264,
        hidden_size: 32,
        intermediate_size: 64,
        num_layers: 2,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-5,
        rope: Rope { theta: 10_000.0, scaling: RopeScaling::None },
        windows: vec![None; 2],
        max_positions: 128,
        tie_word_embeddings: true,
        qkv_bias: family == Family::Qwen2,
        o_bias: false,
        mlp_bias: false,
        qk_norm: family == Family::Qwen3,
        bos: Some(0),
        eos: vec![2],
    }
}

/// `config.json` as transformers 5 writes it.
pub fn config_json(c: &Config) -> Value {
    json!({
        "architectures": [c.family.architecture()],
        "model_type": c.family.name(),
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_layers,
        "num_attention_heads": c.num_heads,
        "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": c.rms_norm_eps,
        "rope_parameters": { "rope_type": "default", "rope_theta": c.rope.theta },
        "max_position_embeddings": c.max_positions,
        "tie_word_embeddings": c.tie_word_embeddings,
        "attention_bias": c.o_bias,
        "mlp_bias": c.mlp_bias,
        "bos_token_id": c.bos,
        "eos_token_id": c.eos,
        "dtype": "float32",
    })
}

/// Random tensors of a config, f32.
pub fn tensors(c: &Config) -> BTreeMap<String, Tensor> {
    let key = Key::new(7, Purpose::Init);
    let random = |(i, (name, shape)): (usize, (String, Vec<usize>))| {
        let n: usize = shape.iter().product();
        let data: Vec<f32> = (0..n).map(|j| (key.at(i as u64).unit(j as u64) - 0.5) as f32).collect();
        (name, Tensor::from_vec(data, shape, &Device::Cpu).unwrap())
    };
    c.expected_tensors().into_iter().enumerate().map(random).collect()
}

pub fn write_json(path: &Path, value: &Value) {
    fs::write(path, serde_json::to_vec_pretty(value).unwrap()).unwrap();
}

pub fn save(tensors: &BTreeMap<String, Tensor>, path: &Path) {
    let map = tensors.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    candle_core::safetensors::save(&map, path).unwrap();
}

/// A whole Hugging Face folder.
pub fn folder(dir: &Path, c: &Config) -> BTreeMap<String, Tensor> {
    let tensors = tensors(c);
    write_json(&dir.join("config.json"), &config_json(c));
    save(&tensors, &dir.join("model.safetensors"));
    write_json(&dir.join("tokenizer.json"), &tokenizer_json());
    write_json(&dir.join("tokenizer_config.json"), &tokenizer_config());
    tensors
}

pub fn tokenizer_config() -> Value {
    json!({ "bos_token": SPECIAL[0], "eos_token": { "content": SPECIAL[2] }, "chat_template": CHAT })
}

/// GPT-2's alphabet: a printable character for each byte.
pub fn byte_tokens() -> Vec<String> {
    let printable = |b: &u32| (33..=126).contains(b) || (161..=172).contains(b) || (174..=255).contains(b);
    let mut next = 256;
    let mut character = |b: u32| {
        if printable(&b) {
            return b;
        }
        next += 1;
        next - 1
    };
    (0..256).map(|b| char::from_u32(character(b)).unwrap().to_string()).collect()
}

pub const MERGES: [&str; 3] = ["h e", "l l", "Ġ he"];

/// Special tokens, the bytes, then what the merges make: 262 tokens.
pub fn vocabulary() -> Vec<String> {
    let merged = MERGES.iter().map(|m| m.replace(' ', ""));
    SPECIAL.iter().map(|s| s.to_string()).chain(byte_tokens()).chain(merged).collect()
}

pub fn tokenizer_json() -> Value {
    let vocab: serde_json::Map<String, Value> =
        vocabulary().into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
    let special = |(id, text): (usize, &&str)| {
        json!({ "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    };
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0 },
        "padding": { "strategy": { "Fixed": 9 }, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
                     "pad_type_id": 0, "pad_token": SPECIAL[0] },
        "added_tokens": SPECIAL.iter().enumerate().map(special).collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": bytes,
        "post_processor": null,
        "decoder": bytes,
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                   "vocab": vocab, "merges": MERGES.map(|m| m.split_once(' ').unwrap()) },
    })
}

/// The post-processor that puts a BOS in front.
pub fn adds_bos() -> Value {
    let special = json!({ SPECIAL[0]: { "id": SPECIAL[0], "ids": [0], "tokens": [SPECIAL[0]] } });
    json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": SPECIAL[0], "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
        "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 0 } }],
        "special_tokens": special,
    })
}

/// A GGUF file in the making.
pub struct GgufFile {
    pub metadata: BTreeMap<String, Meta>,
    pub tensors: BTreeMap<String, QTensor>,
}

impl GgufFile {
    /// Of the same tensors as [`folder`]; q and k permuted as llama.cpp's converter does for the llama family.
    pub fn new(c: &Config, architecture: &str, dtype: GgmlDType) -> Self {
        let mut this = Self { metadata: metadata(c, architecture), tensors: BTreeMap::new() };
        for (name, tensor) in tensors(c) {
            let heads = match name.rsplit('.').nth(1) {
                Some("q_proj") if architecture == "llama" => Some(c.num_heads),
                Some("k_proj") if architecture == "llama" => Some(c.num_kv_heads),
                _ => None,
            };
            let tensor = heads.map_or(tensor.clone(), |h| permuted(&tensor, h));
            let dtype = if tensor.rank() == 1 { GgmlDType::F32 } else { dtype };
            this.tensors.insert(gguf_name(&name), QTensor::quantize(&tensor, dtype).unwrap());
        }
        this
    }

    pub fn set(mut self, key: &str, value: Meta) -> Self {
        self.metadata.insert(key.into(), value);
        self
    }

    pub fn write(&self, path: &Path) -> PathBuf {
        let metadata: Vec<_> = self.metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
        let tensors: Vec<_> = self.tensors.iter().map(|(k, v)| (k.as_str(), v)).collect();
        gguf_file::write(&mut fs::File::create(path).unwrap(), &metadata, &tensors).unwrap();
        path.to_path_buf()
    }
}

pub fn strings(values: impl IntoIterator<Item = String>) -> Meta {
    Meta::Array(values.into_iter().map(Meta::String).collect())
}

fn metadata(c: &Config, architecture: &str) -> BTreeMap<String, Meta> {
    let n = |v: usize| Meta::U32(v as u32);
    let types = (0..vocabulary().len()).map(|id| Meta::I32(if id < SPECIAL.len() { 3 } else { 1 })).collect();
    let of_model = [
        ("block_count", n(c.num_layers)),
        ("context_length", n(c.max_positions)),
        ("embedding_length", n(c.hidden_size)),
        ("feed_forward_length", n(c.intermediate_size)),
        ("attention.head_count", n(c.num_heads)),
        ("attention.head_count_kv", n(c.num_kv_heads)),
        ("attention.layer_norm_rms_epsilon", Meta::F32(c.rms_norm_eps as f32)),
        ("rope.freq_base", Meta::F32(c.rope.theta as f32)),
    ];
    let general = [
        ("general.architecture", Meta::String(architecture.into())),
        ("tokenizer.ggml.model", Meta::String("gpt2".into())),
        ("tokenizer.ggml.pre", Meta::String("gpt-2".into())),
        ("tokenizer.ggml.tokens", strings(vocabulary())),
        ("tokenizer.ggml.token_type", Meta::Array(types)),
        ("tokenizer.ggml.merges", strings(MERGES.map(String::from))),
        ("tokenizer.ggml.bos_token_id", Meta::U32(0)),
        ("tokenizer.ggml.eos_token_id", Meta::U32(2)),
        ("tokenizer.ggml.add_bos_token", Meta::Bool(false)),
        ("tokenizer.chat_template", Meta::String(CHAT.into())),
    ];
    let prefixed = of_model.into_iter().map(|(k, v)| (format!("{architecture}.{k}"), v));
    prefixed.chain(general.into_iter().map(|(k, v)| (k.to_string(), v))).collect()
}

/// Row `2 i + j` of a head becomes what was its row `j * half + i`.
pub fn permuted(tensor: &Tensor, heads: usize) -> Tensor {
    let rows = tensor.dims()[0];
    let size = rows / heads;
    let half = size / 2;
    let from = |r: usize| (r / size) * size + (r % 2) * half + (r % size) / 2;
    let index: Vec<u32> = (0..rows).map(|r| from(r) as u32).collect();
    tensor.index_select(&Tensor::new(index, &Device::Cpu).unwrap(), 0).unwrap()
}

fn gguf_name(name: &str) -> String {
    let parts = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    parts.iter().fold(name.to_string(), |n, (hf, gguf)| n.replace(hf, gguf))
}

pub fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The message of an operation that must fail.
pub fn refusal<T>(result: fullband::Result<T>) -> String {
    match result {
        Ok(_) => panic!("this should have been refused"),
        Err(e) => e.to_string(),
    }
}
