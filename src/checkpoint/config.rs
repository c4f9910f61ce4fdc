//! The config to compute with: no options that mean "default", nothing left to interpret.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
}

impl Family {
    pub const ALL: [Self; 4] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3];

    /// `model_type` in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Mistral => "mistral",
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
        }
    }

    /// The class in `architectures` of `config.json`.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub family: Family,
    pub vocab_size: usize,
    /// D
    pub hidden_size: usize,
    /// F
    pub intermediate_size: usize,
    pub num_layers: usize,
    pub num_heads: usize,
    pub num_kv_heads: usize,
    pub head_dim: usize,
    pub rms_norm_eps: f64,
    pub rope: Rope,
    /// `[num_layers]`: attention of position i reaches the positions j with `i - j < window`; none: all.
    pub windows: Vec<Option<usize>>,
    pub max_positions: usize,
    pub tie_word_embeddings: bool,
    /// Biases of q, k and v.
    pub qkv_bias: bool,
    /// Bias of o.
    pub o_bias: bool,
    /// Biases of gate, up and down.
    pub mlp_bias: bool,
    /// RMS norm over each head of q and k (`q_norm.weight`, `k_norm.weight`, `[head_dim]`), before rotary.
    pub qk_norm: bool,
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    pub theta: f64,
    pub scaling: RopeScaling,
}

#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    None,
    Linear { factor: f64 },
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_positions: usize },
}

impl Config {
    /// That sizes are not zero and divide as the model needs; the message says which do not.
    pub(super) fn check(&self) -> Result<(), String> {
        for (name, n) in [
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_layers),
            ("num_attention_heads", self.num_heads),
            ("num_key_value_heads", self.num_kv_heads),
            ("head_dim", self.head_dim),
        ] {
            if n == 0 {
                return Err(format!("{name} is 0"));
            }
        }
        if !self.num_heads.is_multiple_of(self.num_kv_heads) {
            return Err(format!("{} heads do not divide into {} key-value heads", self.num_heads, self.num_kv_heads));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("head_dim {} is odd; rotary positions need pairs", self.head_dim));
        }
        Ok(())
    }

    /// Tensors that a checkpoint of this config has, with their shapes, in Hugging Face's names.
    pub fn expected_tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (d, f) = (self.hidden_size, self.intermediate_size);
        let (q, kv) = (self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim);
        let mut out = vec![("model.embed_tokens.weight".to_string(), vec![self.vocab_size, d])];
        for l in 0..self.num_layers {
            let p = format!("model.layers.{l}");
            for (module, rows, columns, bias) in [
                ("self_attn.q_proj", q, d, self.qkv_bias),
                ("self_attn.k_proj", kv, d, self.qkv_bias),
                ("self_attn.v_proj", kv, d, self.qkv_bias),
                ("self_attn.o_proj", d, q, self.o_bias),
                ("mlp.gate_proj", f, d, self.mlp_bias),
                ("mlp.up_proj", f, d, self.mlp_bias),
                ("mlp.down_proj", d, f, self.mlp_bias),
            ] {
                out.push((format!("{p}.{module}.weight"), vec![rows, columns]));
                if bias {
                    out.push((format!("{p}.{module}.bias"), vec![rows]));
                }
            }
            if self.qk_norm {
                out.push((format!("{p}.self_attn.q_norm.weight"), vec![self.head_dim]));
                out.push((format!("{p}.self_attn.k_norm.weight"), vec![self.head_dim]));
            }
            out.push((format!("{p}.input_layernorm.weight"), vec![d]));
            out.push((format!("{p}.post_attention_layernorm.weight"), vec![d]));
        }
        out.push(("model.norm.weight".to_string(), vec![d]));
        if !self.tie_word_embeddings {
            out.push(("lm_head.weight".to_string(), vec![self.vocab_size, d]));
        }
        out
    }
}
