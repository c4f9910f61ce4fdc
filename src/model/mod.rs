//! The frozen decoder-only transformer over segments: embeddings, trunk, head. On a CPU it runs on the kernels of
//! `crate::kernels`; elsewhere on composed candle operations (`composed`), which are also what the kernels are tested
//! against.

mod adapters;
mod cache;
mod composed;
mod load;
mod params;

pub use adapters::Adapters;
pub use cache::KvCache;
pub use load::{Engine, LoadOptions, device};
pub use params::{Layout, Params, Slot};

use std::sync::{Arc, Mutex};

use candle_core::{Device, Tensor};

use crate::checkpoint::Config;
use crate::error::{Error, Result};
use crate::kernels::elementwise::{Rotary, rms_norm};
use crate::kernels::head;
use crate::kernels::layer::{Deltas, Layer};
use crate::kernels::ops::{self, LayerOp, LossOp, NormOp, PassData};
use crate::kernels::packed::PackedWeight;
use crate::random::Key;

/// Documents of a flat batch: where each one's tokens lie and how many came before them.
#[derive(Clone, Debug, PartialEq)]
pub struct Segments {
    /// `[docs + 1]`, first 0, last `N`.
    pub offsets: Vec<usize>,
    /// `[docs]`: tokens of the document that are already in the cache.
    pub past: Vec<usize>,
}

impl Segments {
    /// Whole documents, nothing cached.
    pub fn whole(offsets: &[usize]) -> Self {
        Self { offsets: offsets.to_vec(), past: vec![0; offsets.len() - 1] }
    }

    pub fn single(len: usize) -> Self {
        Self::whole(&[0, len])
    }

    /// N
    pub fn tokens(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// `[N]`: positions, starting anew in each document.
    pub fn positions(&self) -> Vec<u32> {
        let documents = self.offsets.windows(2).zip(&self.past);
        documents.flat_map(|(w, &past)| (past..past + w[1] - w[0]).map(|p| p as u32)).collect()
    }
}

/// How a trunk run differs from plain inference.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Gradients reach the adapters.
    pub train_adapters: bool,
    /// Keep layer inputs only; run each layer again in its backward.
    pub recompute: bool,
    /// `[N]`: a key for each token, where adapters drop inputs.
    pub dropout: Option<Vec<Key>>,
}

/// What is asked of the head: the state at `positions[i]` predicts `tokens[i]`.
#[derive(Clone, Copy, Debug)]
pub struct Predicted<'a> {
    pub positions: &'a [u32],
    pub tokens: &'a [u32],
}

pub struct Model {
    config: Config,
    device: Device,
    embedding: Embedding,
    weights: Weights,
}

enum Weights {
    Kernels(KernelWeights),
    Composed(composed::Weights),
}

struct KernelWeights {
    layers: Vec<Arc<Layer>>,
    norm: Arc<Vec<f32>>,
    head: Arc<PackedWeight>,
    rotary: Arc<Rotary>,
}

/// The embedding table `[V, D]`, on the host: rows are gathered there.
enum Embedding {
    F32(Vec<f32>),
    Bf16(Vec<half::bf16>),
}

impl Model {
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Layer-0 inputs of plain tokens: `[N, D]`.
    pub fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        let d = self.config.hidden_size;
        let mut rows = Vec::with_capacity(ids.len() * d);
        for &id in ids {
            let range = id as usize * d..(id as usize + 1) * d;
            if id as usize >= self.config.vocab_size {
                return Err(Error::Internal(format!("token {id} of a vocabulary of {}", self.config.vocab_size)));
            }
            match &self.embedding {
                Embedding::F32(table) => rows.extend_from_slice(&table[range]),
                Embedding::Bf16(table) => rows.extend(table[range].iter().map(|x| x.to_f32())),
            }
        }
        Ok(Tensor::from_vec(rows, (ids.len(), d), &self.device)?)
    }

    /// Root mean square of the embedding table: the scale of a layer-0 input.
    pub fn embedding_rms(&self) -> f32 {
        let square = match &self.embedding {
            Embedding::F32(table) => table.iter().map(|&x| (x as f64).powi(2)).sum::<f64>() / table.len() as f64,
            Embedding::Bf16(table) => {
                table.iter().map(|x| (x.to_f32() as f64).powi(2)).sum::<f64>() / table.len() as f64
            }
        };
        square.sqrt() as f32
    }

    /// `[out]`: norms of the rows of a module's weight (DoRA's starting magnitude).
    pub fn row_norms(&self, layer: usize, module: usize) -> Result<Vec<f32>> {
        match &self.weights {
            Weights::Kernels(w) => Ok(w.layers[layer].linears[module].row_norms.iter().map(|n| n.sqrt()).collect()),
            Weights::Composed(weights) => weights.row_norms(layer, module),
        }
    }

    /// Inputs `[N, D]` -> states `[N, D]` (after the final norm), with gradients to inputs and adapters.
    pub fn trunk(
        &self,
        inputs: &Tensor,
        segments: &Segments,
        adapters: Option<&Adapters>,
        options: &RunOptions,
    ) -> Result<Tensor> {
        self.check_positions(segments)?;
        match &self.weights {
            Weights::Kernels(weights) => self.trunk_kernels(weights, inputs, segments, adapters, options),
            Weights::Composed(weights) => {
                composed::trunk(&self.config, weights, inputs, segments, adapters, options, None)
            }
        }
    }

    fn trunk_kernels(
        &self,
        weights: &KernelWeights,
        inputs: &Tensor,
        segments: &Segments,
        adapters: Option<&Adapters>,
        options: &RunOptions,
    ) -> Result<Tensor> {
        let pass = Arc::new(PassData {
            offsets: segments.offsets.clone(),
            positions: segments.positions(),
            rotary: weights.rotary.clone(),
            dropout: options.dropout.clone(),
        });
        let none = Tensor::zeros(1, candle_core::DType::F32, &self.device)?;
        let mut x = inputs.contiguous()?;
        for (index, layer) in weights.layers.iter().enumerate() {
            let (theta, deltas) = match adapters {
                Some(adapters) => {
                    (adapters.layers[index].tensor(options.train_adapters), adapters.deltas[index].clone())
                }
                None => (none.clone(), Arc::new(Deltas::default())),
            };
            let op = LayerOp {
                layer: layer.clone(),
                index,
                deltas,
                pass: pass.clone(),
                keep: x.track_op() || theta.track_op(),
                recompute: options.recompute,
                saved: Mutex::new(None),
            };
            x = x.apply_op2(&theta, op)?;
        }
        Ok(x.apply_op1(NormOp { weight: weights.norm.clone(), eps: self.config.rms_norm_eps as f32 })?)
    }

    /// As [`Model::trunk`] without gradients, continuing the documents in `cache` and adding to it.
    pub fn trunk_cached(
        &self,
        inputs: &Tensor,
        segments: &Segments,
        adapters: Option<&Adapters>,
        cache: &mut KvCache,
    ) -> Result<Tensor> {
        self.check_positions(segments)?;
        let weights = match &self.weights {
            Weights::Kernels(weights) => weights,
            Weights::Composed(weights) => {
                let options = RunOptions::default();
                let inputs = inputs.detach();
                return composed::trunk(&self.config, weights, &inputs, segments, adapters, &options, Some(cache));
            }
        };
        let pass = PassData {
            offsets: segments.offsets.clone(),
            positions: segments.positions(),
            rotary: weights.rotary.clone(),
            dropout: None,
        };
        let mut x = ops::with_slice(&inputs.contiguous()?, <[f32]>::to_vec)?;
        let no_deltas = Deltas::default();
        for (index, layer) in weights.layers.iter().enumerate() {
            let cache = cache.kernel_layer(index, segments.past.len(), self.config.num_kv_heads);
            x = match adapters {
                Some(adapters) => {
                    let theta = adapters.layers[index].tensor(false);
                    let deltas = &adapters.deltas[index];
                    ops::with_slice(&theta, |theta| {
                        layer.forward(&x, theta, deltas, &pass.layer(index), Some(cache)).0
                    })?
                }
                None => layer.forward(&x, &[], &no_deltas, &pass.layer(index), Some(cache)).0,
            };
        }
        let mut states = vec![0.0; x.len()];
        rms_norm(&x, &weights.norm, self.config.rms_norm_eps as f32, &mut states);
        Ok(Tensor::from_vec(states, (segments.tokens(), self.config.hidden_size), &self.device)?)
    }

    fn check_positions(&self, segments: &Segments) -> Result<()> {
        let longest = segments.offsets.windows(2).zip(&segments.past).map(|(w, past)| past + w[1] - w[0]).max();
        match longest {
            Some(longest) if longest > self.config.max_positions => Err(Error::Usage(format!(
                "a document of {longest} tokens, but the base reaches {} positions",
                self.config.max_positions
            ))),
            _ => Ok(()),
        }
    }

    /// States `[M, D]` -> logits `[M, V]`.
    pub fn logits(&self, states: &Tensor) -> Result<Tensor> {
        match &self.weights {
            Weights::Kernels(weights) => {
                let m = states.dim(0)?;
                let mut logits = vec![0.0; m * self.config.vocab_size];
                ops::with_slice(&states.contiguous()?, |states| weights.head.forward(states, m, &mut logits))?;
                Ok(Tensor::from_vec(logits, (m, self.config.vocab_size), &self.device)?)
            }
            Weights::Composed(weights) => composed::logits(weights, states),
        }
    }

    /// `sum_i weights[i] * -log p(tokens[i])` over states `[N, D]`, a scalar with gradient, in nats.
    pub fn loss(&self, states: &Tensor, predicted: Predicted, weights: &[f32]) -> Result<Tensor> {
        match &self.weights {
            Weights::Kernels(kernel) => {
                let op = LossOp {
                    head: kernel.head.clone(),
                    positions: predicted.positions.to_vec(),
                    tokens: predicted.tokens.to_vec(),
                    weights: weights.to_vec(),
                    keep: states.track_op(),
                    gradient: Mutex::new(None),
                };
                Ok(states.contiguous()?.apply_op1(op)?)
            }
            Weights::Composed(composed) => composed::loss(composed, states, predicted, weights),
        }
    }

    /// `[M]`: `-log p(tokens[i])` at the predicted positions of states `[N, D]`, in nats.
    pub fn token_losses(&self, states: &Tensor, predicted: Predicted) -> Result<Vec<f32>> {
        match &self.weights {
            Weights::Kernels(kernel) => {
                let d = self.config.hidden_size;
                let rows = ops::with_slice(&states.contiguous()?, |states| {
                    ops::gather(states, d, predicted.positions.iter().map(|&p| p as usize))
                })?;
                Ok(head::loss(&kernel.head, &rows, predicted.tokens, None).nll)
            }
            Weights::Composed(composed) => composed::token_losses(composed, states, predicted),
        }
    }
}
