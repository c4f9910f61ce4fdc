//! The trunk, head and loss in composed candle operations: for devices without kernels of ours, and what the kernels
//! are tested against. Only operations with a backward are used (candle's own fused norm, softmax and rotary have
//! none).

use candle_core::{D, DType, Device, IndexOp, Tensor};

use super::load::{has_bias, head_name, inverse_frequencies};
use super::{Adapters, KvCache, LoadOptions, Predicted, RunOptions, Segments};
use crate::checkpoint::{Checkpoint, Config};
use crate::error::{Error, Result};
use crate::kernels::elementwise::Rotary;
use crate::kernels::layer::MODULES;
use crate::kernels::linear::LowRank;
use crate::kernels::skinny::Dropout;
use crate::random::Key;
use crate::recipe::Dtype;

pub struct Weights {
    layers: Vec<LayerWeights>,
    norm: Tensor,
    head: Tensor,
    /// `[positions, head_dim / 2]` each.
    cos: Tensor,
    sin: Tensor,
}

struct LayerWeights {
    linears: Vec<(Tensor, Option<Tensor>)>,
    input_norm: Tensor,
    post_attention_norm: Tensor,
    head_norms: Option<(Tensor, Tensor)>,
}

impl Weights {
    pub fn load(checkpoint: &Checkpoint, config: &Config, options: &LoadOptions) -> Result<Self> {
        let device = &options.device;
        let vector =
            |name: &str| -> Result<Tensor> { Ok(checkpoint.tensor(name)?.to_dtype(DType::F32)?.to_device(device)?) };
        let matrix = |name: &str| -> Result<Tensor> {
            let dtype = if options.dtype == Dtype::F32 { DType::F32 } else { DType::BF16 };
            Ok(checkpoint.tensor(name)?.to_dtype(dtype)?.to_device(device)?)
        };
        let mut layers = Vec::with_capacity(config.num_layers);
        for index in 0..config.num_layers {
            let prefix = format!("model.layers.{index}");
            let mut linears = Vec::with_capacity(MODULES.len());
            for module in MODULES {
                let bias = has_bias(config, module).then(|| vector(&format!("{prefix}.{module}.bias"))).transpose()?;
                linears.push((matrix(&format!("{prefix}.{module}.weight"))?, bias));
            }
            let norm = |name: &str| vector(&format!("{prefix}.self_attn.{name}.weight"));
            let head_norms = if config.qk_norm { Some((norm("q_norm")?, norm("k_norm")?)) } else { None };
            layers.push(LayerWeights {
                linears,
                input_norm: vector(&format!("{prefix}.input_layernorm.weight"))?,
                post_attention_norm: vector(&format!("{prefix}.post_attention_layernorm.weight"))?,
                head_norms,
            });
        }
        let (cos, sin) = tables(config, device)?;
        Ok(Self { layers, norm: vector("model.norm.weight")?, head: matrix(head_name(config))?, cos, sin })
    }
}

impl Weights {
    pub fn row_norms(&self, layer: usize, module: usize) -> Result<Vec<f32>> {
        let weight = self.layers[layer].linears[module].0.to_dtype(DType::F32)?;
        Ok(weight.sqr()?.sum(1)?.sqrt()?.to_vec1()?)
    }
}

fn tables(config: &Config, device: &Device) -> Result<(Tensor, Tensor)> {
    let Rotary { cos, sin, half } = Rotary::new(&inverse_frequencies(config), config.max_positions);
    let shape = (config.max_positions, half);
    Ok((Tensor::from_vec(cos, shape, device)?, Tensor::from_vec(sin, shape, device)?))
}

/// `x W^T` in the weight's type, the result in f32.
fn product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    Ok(x.to_dtype(weight.dtype())?.matmul(&weight.t()?)?.to_dtype(DType::F32)?)
}

fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let scale = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?;
    Ok(x.broadcast_div(&scale)?.broadcast_mul(weight)?)
}

/// The adapter of one module: where its parts lie, and the layer's flat variable.
type Delta<'a> = Option<(&'a LowRank, &'a Tensor)>;

fn linear(x: &Tensor, (weight, bias): &(Tensor, Option<Tensor>), delta: Delta, keys: Option<&[Key]>) -> Result<Tensor> {
    let mut y = product(x, weight)?;
    if let Some((delta, theta)) = delta {
        let (out, inner) = weight.dims2()?;
        let part = |range: &std::ops::Range<usize>, shape: (usize, usize)| {
            theta.narrow(0, range.start, range.len())?.reshape(shape)
        };
        let (a, b) = (part(&delta.a, (delta.rank, inner))?, part(&delta.b, (out, delta.rank))?);
        let dropped = match keys {
            Some(keys) => (x * dropout_mask(keys, inner, delta.dropout, x.device())?)?,
            None => x.clone(),
        };
        y = (y + (dropped.matmul(&a.t()?)?.matmul(&b.t()?)? * delta.scale as f64)?)?;
        if let Some(range) = &delta.magnitude {
            let merged = (weight.to_dtype(DType::F32)? + (b.matmul(&a)? * delta.scale as f64)?)?;
            let norms = merged.sqr()?.sum(1)?.sqrt()?.detach();
            y = y.broadcast_mul(&(theta.narrow(0, range.start, range.len())? / norms)?)?;
        }
    }
    match bias {
        Some(bias) => Ok(y.broadcast_add(bias)?),
        None => Ok(y),
    }
}

/// `[N, d]`: 0 or `1 / (1 - p)`, the same draws as the kernels'.
fn dropout_mask(keys: &[Key], d: usize, p: f32, device: &Device) -> Result<Tensor> {
    let mut mask = vec![0.0; keys.len() * d];
    let (drop, ones) = (Dropout { p, keys }, vec![1.0; d]);
    mask.chunks_exact_mut(d).enumerate().for_each(|(row, mask)| drop.row(row, 0, &ones, mask));
    Ok(Tensor::from_vec(mask, (keys.len(), d), device)?)
}

/// Rotate-half rotary over `[N, H, dh]`.
fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let half = x.dim(2)? / 2;
    let (low, high) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
    let (cos, sin) = (cos.unsqueeze(1)?, sin.unsqueeze(1)?);
    let first = (low.broadcast_mul(&cos)? - high.broadcast_mul(&sin)?)?;
    let second = (high.broadcast_mul(&cos)? + low.broadcast_mul(&sin)?)?;
    Ok(Tensor::cat(&[first, second], 2)?)
}

pub fn trunk(
    config: &Config,
    weights: &Weights,
    inputs: &Tensor,
    segments: &Segments,
    adapters: Option<&Adapters>,
    options: &RunOptions,
    mut cache: Option<&mut KvCache>,
) -> Result<Tensor> {
    if options.recompute {
        return Err(Error::Usage("train.recompute is there on the CPU only".into()));
    }
    let positions = Tensor::new(segments.positions(), inputs.device())?;
    let rotary = (weights.cos.index_select(&positions, 0)?, weights.sin.index_select(&positions, 0)?);
    let eps = config.rms_norm_eps;
    let mut x = inputs.clone();
    for (index, layer) in weights.layers.iter().enumerate() {
        let theta = adapters.map(|a| a.layers[index].tensor(options.train_adapters));
        let run = |module: usize, x: &Tensor| -> Result<Tensor> {
            let delta = adapters.and_then(|a| a.deltas[index][module].as_ref()).zip(theta.as_ref());
            let keys = match (&options.dropout, delta) {
                (Some(keys), Some((delta, _))) if delta.dropout > 0.0 => {
                    let at = (index * MODULES.len() + module) as u64;
                    Some(keys.iter().map(|k| k.at(at)).collect::<Vec<_>>())
                }
                _ => None,
            };
            linear(x, &layer.linears[module], delta, keys.as_deref())
        };
        let cached = cache.as_deref_mut().map(|c| c.composed_layer(index, segments.past.len()));
        let normed = rms_norm(&x, &layer.input_norm, eps)?;
        let attended = attention(config, index, layer, &run, &normed, segments, &rotary, cached)?;
        x = (x + run(3, &attended)?)?;
        let normed = rms_norm(&x, &layer.post_attention_norm, eps)?;
        let gate = run(4, &normed)?;
        let silu = (&gate / ((gate.neg()?.exp()? + 1.0)?))?;
        x = (&x + run(6, &(silu * run(5, &normed)?)?)?)?;
    }
    rms_norm(&x, &weights.norm, eps)
}

#[allow(clippy::too_many_arguments)]
fn attention(
    config: &Config,
    index: usize,
    layer: &LayerWeights,
    run: &dyn Fn(usize, &Tensor) -> Result<Tensor>,
    normed: &Tensor,
    segments: &Segments,
    (cos, sin): &(Tensor, Tensor),
    mut cache: Option<&mut Vec<Option<(Tensor, Tensor)>>>,
) -> Result<Tensor> {
    let (n, dh) = (normed.dim(0)?, config.head_dim);
    let group = config.num_heads / config.num_kv_heads;
    let mut q = run(0, normed)?.reshape((n, config.num_heads, dh))?;
    let mut k = run(1, normed)?.reshape((n, config.num_kv_heads, dh))?;
    let v = run(2, normed)?.reshape((n, config.num_kv_heads, dh))?;
    if let Some((q_norm, k_norm)) = &layer.head_norms {
        q = rms_norm(&q, q_norm, config.rms_norm_eps)?;
        k = rms_norm(&k, k_norm, config.rms_norm_eps)?;
    }
    let (q, k) = (rotate(&q, cos, sin)?, rotate(&k, cos, sin)?);
    let mut outs = Vec::with_capacity(segments.past.len());
    for (doc, window) in segments.offsets.windows(2).enumerate() {
        let (start, len) = (window[0], window[1] - window[0]);
        let part = |x: &Tensor| x.narrow(0, start, len)?.transpose(0, 1)?.contiguous();
        let (q, mut k, mut v) = (part(&q)?, part(&k)?, part(&v)?);
        if let Some(cache) = cache.as_deref_mut() {
            if let Some((old_k, old_v)) = &cache[doc] {
                (k, v) = (Tensor::cat(&[old_k, &k], 1)?, Tensor::cat(&[old_v, &v], 1)?);
            }
            cache[doc] = Some((k.clone(), v.clone()));
        }
        let total = k.dim(1)?;
        let repeat = |x: &Tensor| {
            x.unsqueeze(1)?.broadcast_as((config.num_kv_heads, group, total, dh))?.reshape((
                config.num_heads,
                total,
                dh,
            ))
        };
        let (k, v) = (repeat(&k)?, repeat(&v)?);
        let scores = (q.matmul(&k.transpose(1, 2)?.contiguous()?)? / (dh as f64).sqrt())?;
        let scores = scores.broadcast_add(&mask(len, total, config.windows[index], normed.device())?)?;
        let weights = softmax(&scores)?;
        outs.push(weights.matmul(&v)?.transpose(0, 1)?.reshape((len, config.num_heads * dh))?);
    }
    Ok(Tensor::cat(&outs, 0)?)
}

/// `[T, S]`: 0 where the new token reaches, else -inf.
fn mask(t: usize, s: usize, window: Option<usize>, device: &Device) -> Result<Tensor> {
    let past = s - t;
    let reaches = |i: usize, j: usize| j <= past + i && window.is_none_or(|w| past + i - j < w);
    let values: Vec<f32> = (0..t * s).map(|at| if reaches(at / s, at % s) { 0.0 } else { f32::NEG_INFINITY }).collect();
    Ok(Tensor::from_vec(values, (t, s), device)?)
}

fn softmax(x: &Tensor) -> Result<Tensor> {
    let e = x.broadcast_sub(&x.max_keepdim(D::Minus1)?.detach())?.exp()?;
    Ok(e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?)
}

pub fn logits(weights: &Weights, states: &Tensor) -> Result<Tensor> {
    product(states, &weights.head)
}

fn losses(weights: &Weights, states: &Tensor, predicted: Predicted) -> Result<Tensor> {
    let device = states.device();
    let rows = states.index_select(&Tensor::new(predicted.positions, device)?, 0)?;
    let logits = logits(weights, &rows)?;
    let top = logits.max_keepdim(D::Minus1)?.detach();
    let sum = logits.broadcast_sub(&top)?.exp()?.sum_keepdim(D::Minus1)?.log()?;
    let target = logits.gather(&Tensor::new(predicted.tokens, device)?.unsqueeze(1)?, 1)?;
    Ok(((sum + top)? - target)?.i((.., 0))?)
}

pub fn loss(weights: &Weights, states: &Tensor, predicted: Predicted, factors: &[f32]) -> Result<Tensor> {
    let factors = Tensor::new(factors, states.device())?;
    Ok((losses(weights, states, predicted)? * factors)?.sum_all()?)
}

pub fn token_losses(weights: &Weights, states: &Tensor, predicted: Predicted) -> Result<Vec<f32>> {
    Ok(losses(weights, states, predicted)?.to_vec1()?)
}
