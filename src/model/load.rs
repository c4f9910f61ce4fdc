//! Builds a [`Model`] from an opened checkpoint.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use half::bf16;

use super::{Embedding, KernelWeights, Model, Weights, composed};
use crate::checkpoint::{Checkpoint, Config, RopeScaling};
use crate::error::{Error, Result};
use crate::kernels::elementwise::Rotary;
use crate::kernels::layer::{Layer, LayerShape, MODULES};
use crate::kernels::linear::Linear;
use crate::kernels::packed::{PackedWeight, Precision, Weight};
use crate::recipe::Dtype;

/// What computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Kernels on a CPU, composed operations elsewhere.
    Auto,
    /// Composed candle operations on any device.
    Composed,
}

#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub dtype: Dtype,
    pub device: Device,
    pub engine: Engine,
}

impl LoadOptions {
    pub fn cpu(dtype: Dtype) -> Self {
        Self { dtype, device: Device::Cpu, engine: Engine::Auto }
    }
}

/// `cpu`, `cuda:N` or `metal` as a device.
pub fn device(name: &str) -> Result<Device> {
    let feature = name.split(':').next().unwrap_or(name);
    if matches!(feature, "metal") && !candle_core::utils::metal_is_available()
        || matches!(feature, "cuda") && !candle_core::utils::cuda_is_available()
    {
        return Err(Error::Usage(format!(
            "device '{name}' is not available: this fullband was built without it (cargo build --features {feature})"
        )));
    }
    let unavailable = |e: candle_core::Error| Error::Usage(format!("device '{name}' is not available: {e}"));
    match name {
        "cpu" => Ok(Device::Cpu),
        "metal" => Device::new_metal(0).map_err(unavailable),
        _ => match name.strip_prefix("cuda:").map(str::parse) {
            Some(Ok(index)) => Device::new_cuda(index).map_err(unavailable),
            _ => Err(Error::Usage(format!("device '{name}' is unknown: expected cpu, cuda:N or metal"))),
        },
    }
}

/// Positions that rotary tables are made for: the base's reach, but no more than documents here can need.
const MAX_TABLE: usize = 32_768;

impl Model {
    pub fn load(checkpoint: &Checkpoint, options: &LoadOptions) -> Result<Self> {
        let mut config = checkpoint.config.clone();
        config.max_positions = config.max_positions.min(MAX_TABLE);
        let table = checkpoint.tensor("model.embed_tokens.weight")?;
        let embedding = match options.dtype {
            Dtype::F32 => Embedding::F32(host(&table)?),
            Dtype::Bf16 => Embedding::Bf16(host(&table)?.into_iter().map(bf16::from_f32).collect()),
        };
        let weights = if options.device.is_cpu() && options.engine == Engine::Auto {
            Weights::Kernels(kernel_weights(checkpoint, &config, options.dtype)?)
        } else {
            Weights::Composed(composed::Weights::load(checkpoint, &config, options)?)
        };
        Ok(Self { config, device: options.device.clone(), embedding, weights })
    }
}

/// Values as f32 on the host.
pub(super) fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

fn kernel_weights(checkpoint: &Checkpoint, config: &Config, dtype: Dtype) -> Result<KernelWeights> {
    let values = |name: &str| host(&checkpoint.tensor(name)?);
    let precision = match dtype {
        Dtype::F32 => Precision::F32,
        Dtype::Bf16 => Precision::Bf16,
    };
    let mut layers = Vec::with_capacity(config.num_layers);
    for index in 0..config.num_layers {
        let prefix = format!("model.layers.{index}");
        let mut linears = Vec::with_capacity(MODULES.len());
        for module in MODULES {
            let tensor = checkpoint.tensor(&format!("{prefix}.{module}.weight"))?;
            let (rows, columns) = tensor.dims2()?;
            let weight = host(&tensor)?;
            let norms = weight.chunks_exact(columns).map(|row| row.iter().map(|w| w * w).sum()).collect();
            let bias = has_bias(config, module).then(|| values(&format!("{prefix}.{module}.bias"))).transpose()?;
            linears.push(Linear::new(PackedWeight::new(Weight::F32(&weight), rows, columns, precision), bias, norms));
        }
        let Ok(linears) = <[Linear; 7]>::try_from(linears) else { unreachable!("one linear a module") };
        let head_norms = if config.qk_norm {
            let norm = |name: &str| values(&format!("{prefix}.self_attn.{name}.weight"));
            Some((norm("q_norm")?, norm("k_norm")?))
        } else {
            None
        };
        let shape = LayerShape {
            hidden: config.hidden_size,
            intermediate: config.intermediate_size,
            heads: config.num_heads,
            kv_heads: config.num_kv_heads,
            head_dim: config.head_dim,
            eps: config.rms_norm_eps as f32,
            window: config.windows[index],
        };
        layers.push(Arc::new(Layer {
            shape,
            linears,
            input_norm: values(&format!("{prefix}.input_layernorm.weight"))?,
            post_attention_norm: values(&format!("{prefix}.post_attention_layernorm.weight"))?,
            head_norms,
        }));
    }
    let head = values(head_name(config))?;
    let head = PackedWeight::new(Weight::F32(&head), config.vocab_size, config.hidden_size, precision);
    Ok(KernelWeights {
        layers,
        norm: Arc::new(values("model.norm.weight")?),
        head: Arc::new(head),
        rotary: Arc::new(Rotary::new(&inverse_frequencies(config), config.max_positions)),
    })
}

pub(super) fn head_name(config: &Config) -> &'static str {
    if config.tie_word_embeddings { "model.embed_tokens.weight" } else { "lm_head.weight" }
}

pub(super) fn has_bias(config: &Config, module: &str) -> bool {
    match module {
        "self_attn.q_proj" | "self_attn.k_proj" | "self_attn.v_proj" => config.qkv_bias,
        "self_attn.o_proj" => config.o_bias,
        _ => config.mlp_bias,
    }
}

/// `[head_dim / 2]`, radians a position, in f32 and in the order of operations of transformers: its tables are what the
/// checkpoints were trained with, and what others compute with. Exact frequencies differ by 1e-6 in the angle after a few
/// positions, which a fused map that expands makes visible. Llama 3's scaling divides the low frequencies by `factor`
/// and blends between the two wavelength bounds (Llama 3.1 model card).
pub(super) fn inverse_frequencies(config: &Config) -> Vec<f32> {
    let theta = config.rope.theta as f32 as f64;
    let plain = (0..config.head_dim / 2).map(|i| {
        let exponent = (2 * i) as f32 / config.head_dim as f32;
        1.0 / theta.powf(exponent as f64) as f32
    });
    match config.rope.scaling {
        RopeScaling::None => plain.collect(),
        RopeScaling::Linear { factor } => plain.map(|f| f / factor as f32).collect(),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_positions } => {
            let (factor, low, high) = (factor as f32, low_freq_factor as f32, high_freq_factor as f32);
            let original = original_max_positions as f32;
            let scaled = |frequency: f32| {
                let wavelength = std::f32::consts::TAU / frequency;
                if wavelength > original / low {
                    frequency / factor
                } else if wavelength < original / high {
                    frequency
                } else {
                    let smooth = (original / wavelength - low) / (high - low);
                    (1.0 - smooth) * frequency / factor + smooth * frequency
                }
            };
            plain.map(scaled).collect()
        }
    }
}
