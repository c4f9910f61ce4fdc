//! A GGUF file read as a base: its config from the metadata, its tensors dequantised, renamed to Hugging Face's names
//! and put back into Hugging Face's row order, its tokenizer and chat template from the metadata.

mod metadata;
mod rope;
mod tokenizer;

use std::collections::BTreeMap;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use candle_core::quantized::{GgmlDType, gguf_file::Content};
use candle_core::{DType, Device, Tensor};
use memmap2::Mmap;

use super::config::{Config, Family};
use super::weights::{check, map};
use crate::error::{Error, Result};
use metadata::Metadata;
pub use tokenizer::TokenizerFiles;

pub struct Gguf {
    path: PathBuf,
    map: Mmap,
    content: Content,
    /// Hugging Face's name -> the file's name.
    names: BTreeMap<String, String>,
    config: Config,
}

impl Gguf {
    pub fn open(path: &Path) -> Result<Self> {
        let map = map(path)?;
        let content = Content::read(&mut Cursor::new(&map[..]))
            .map_err(|e| Error::model(path, format!("not a readable GGUF file, or cut short: {e}")))?;
        check_extent(path, map.len(), &content)?;
        let mut this = Self {
            config: config(path, &map, &content)?,
            path: path.to_path_buf(),
            map,
            content,
            names: BTreeMap::new(),
        };
        for name in this.content.tensor_infos.keys().filter(|name| *name != rope::FREQUENCIES) {
            this.names.insert(hf_name(name).unwrap_or_else(|| name.clone()), name.clone());
        }
        check(path, &this.config, &this.shapes())?;
        Ok(this)
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn shapes(&self) -> BTreeMap<String, Vec<usize>> {
        let shape = |name: &String| self.content.tensor_infos[name].shape.dims().to_vec();
        self.names.iter().map(|(hf, name)| (hf.clone(), shape(name))).collect()
    }

    /// Types with the number of elements stored in each.
    pub fn stored(&self) -> BTreeMap<String, usize> {
        let mut out = BTreeMap::new();
        for info in self.content.tensor_infos.values() {
            *out.entry(type_name(info.ggml_dtype)).or_insert(0) += info.shape.elem_count();
        }
        out
    }

    pub fn tensor(&self, hf: &str) -> Result<Option<Tensor>> {
        let Some(name) = self.names.get(hf) else { return Ok(None) };
        let quantised = self
            .content
            .tensor(&mut Cursor::new(&self.map[..]), name, &Device::Cpu)
            .map_err(|e| Error::model(&self.path, format!("tensor '{name}': {e}")))?;
        let tensor = quantised.dequantize(&Device::Cpu)?;
        let tensor = match quantised.dtype() {
            GgmlDType::F16 => tensor.to_dtype(DType::F16)?,
            GgmlDType::BF16 => tensor.to_dtype(DType::BF16)?,
            _ => tensor,
        };
        Ok(Some(match self.permuted_heads(hf) {
            Some(heads) => unpermute(&tensor, heads)?,
            None => tensor,
        }))
    }

    /// `tokenizer.json` and its companions, made from the metadata.
    pub fn tokenizer_files(&self) -> Result<TokenizerFiles> {
        tokenizer::build(&Metadata { path: &self.path, map: &self.content.metadata })
    }

    /// Heads of a tensor whose rows the llama family's converter interleaves.
    fn permuted_heads(&self, hf: &str) -> Option<usize> {
        if !matches!(self.config.family, Family::Llama | Family::Mistral) {
            return None;
        }
        if hf.contains(".self_attn.q_proj.") {
            Some(self.config.num_heads)
        } else if hf.contains(".self_attn.k_proj.") {
            Some(self.config.num_kv_heads)
        } else {
            None
        }
    }
}

/// The converter turns each head's rows from two halves into pairs (`reshape(h, 2, d/2).swap(1, 2)`); this undoes it.
fn unpermute(tensor: &Tensor, heads: usize) -> Result<Tensor> {
    let dims = tensor.dims();
    let half = dims[0] / heads / 2;
    let columns = dims[1..].iter().product::<usize>();
    Ok(tensor.reshape((heads, half, 2, columns))?.transpose(1, 2)?.contiguous()?.reshape(dims)?)
}

fn check_extent(path: &Path, length: usize, content: &Content) -> Result<()> {
    for (name, info) in &content.tensor_infos {
        let (block, bytes) = (info.ggml_dtype.block_size(), info.ggml_dtype.type_size());
        let size = (info.shape.elem_count().div_ceil(block) as u64).saturating_mul(bytes as u64);
        let end = content.tensor_data_offset.saturating_add(info.offset).saturating_add(size);
        if end > length as u64 {
            let message = format!("the file is cut short: tensor '{name}' ends at byte {end} of {length}");
            return Err(Error::model(path, message));
        }
    }
    Ok(())
}

fn config(path: &Path, map: &Mmap, content: &Content) -> Result<Config> {
    let metadata = Metadata { path, map: &content.metadata };
    let architecture = metadata.required_text("general.architecture")?;
    let family = match architecture {
        "llama" | "mistral" => Family::Llama,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        other => {
            let message = format!("architecture '{other}' is not supported; known are llama, mistral, qwen2, qwen3");
            return Err(Error::model(path, message));
        }
    };
    let key = |name: &str| format!("{architecture}.{name}");
    if metadata.count(&key("expert_count"))?.unwrap_or(0) > 0 {
        return Err(Error::model(path, format!("{architecture} with experts is not supported")));
    }
    let hidden_size = metadata.required_count(&key("embedding_length"))?;
    let num_heads = metadata.required_count(&key("attention.head_count"))?;
    let num_layers = metadata.required_count(&key("block_count"))?;
    let embedding = content
        .tensor_infos
        .get("token_embd.weight")
        .ok_or_else(|| Error::model(path, "1 tensor missing: token_embd.weight"))?;
    let has = |name: &str| content.tensor_infos.contains_key(name);
    let head_dim = match metadata.count(&key("attention.key_length"))? {
        Some(n) => n,
        None => hidden_size / num_heads.max(1),
    };
    if let Some(value_length) = metadata.count(&key("attention.value_length"))?
        && value_length != head_dim
    {
        return Err(Error::model(path, format!("value heads of {value_length} beside key heads of {head_dim}")));
    }
    let window = metadata.count(&key("attention.sliding_window"))?.filter(|w| *w > 0);
    let config = Config {
        family,
        vocab_size: embedding.shape.dims().first().copied().unwrap_or(0),
        hidden_size,
        intermediate_size: metadata.required_count(&key("feed_forward_length"))?,
        num_layers,
        num_heads,
        num_kv_heads: metadata.count(&key("attention.head_count_kv"))?.unwrap_or(num_heads),
        head_dim,
        rms_norm_eps: metadata.required_number(&key("attention.layer_norm_rms_epsilon"))?,
        rope: rope::read(&metadata, architecture, head_dim, content, map)?,
        windows: vec![window; num_layers],
        max_positions: metadata.required_count(&key("context_length"))?,
        tie_word_embeddings: !has("output.weight"),
        qkv_bias: has("blk.0.attn_q.bias"),
        o_bias: has("blk.0.attn_output.bias"),
        mlp_bias: has("blk.0.ffn_up.bias"),
        qk_norm: family == Family::Qwen3,
        bos: metadata.id("tokenizer.ggml.bos_token_id")?,
        eos: metadata.id("tokenizer.ggml.eos_token_id")?.into_iter().collect(),
    };
    config.check().map_err(|message| Error::model(path, message))?;
    Ok(config)
}

fn hf_name(name: &str) -> Option<String> {
    match name {
        "token_embd.weight" => return Some("model.embed_tokens.weight".into()),
        "output_norm.weight" => return Some("model.norm.weight".into()),
        "output.weight" => return Some("lm_head.weight".into()),
        _ => {}
    }
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    layer.parse::<usize>().ok()?;
    let (module, kind) = rest.rsplit_once('.')?;
    let module = match module {
        "attn_q" => "self_attn.q_proj",
        "attn_k" => "self_attn.k_proj",
        "attn_v" => "self_attn.v_proj",
        "attn_output" => "self_attn.o_proj",
        "attn_q_norm" => "self_attn.q_norm",
        "attn_k_norm" => "self_attn.k_norm",
        "ffn_gate" => "mlp.gate_proj",
        "ffn_up" => "mlp.up_proj",
        "ffn_down" => "mlp.down_proj",
        "attn_norm" => "input_layernorm",
        "ffn_norm" => "post_attention_layernorm",
        _ => return None,
    };
    Some(format!("model.layers.{layer}.{module}.{kind}"))
}

/// As llama.cpp writes it: `Q4_1`, `Q6_K`.
fn type_name(dtype: GgmlDType) -> String {
    let name = format!("{dtype:?}").to_uppercase();
    match name.strip_suffix('K') {
        Some(short) => format!("{short}_K"),
        None => name,
    }
}
