//! What a training step will take, before anything runs. All numbers are bytes.
//!
//! - weights: the frozen base as loaded (`PackedWeight` and the embedding table);
//! - trained: f32 value, gradient, the gradient being added up and the two moments of each trained value: 5 x 4;
//! - kept: what each layer keeps of each token for its backward, in every pass that a gradient goes through
//!   (`kernels::layer::Saved` and the layer's input): `2 D + 2 H dh + 2 KV dh + H + 2 F + r * modules` floats, or `D`
//!   with `recompute`, and `6 D` a pass for states, inputs and the fusion;
//! - working: the buffers of one layer's backward (the same sum again, and its gradients), and the logits of `head::CHUNK` rows.
//!
//! An estimate: allocators and the files' cache add to it.

use super::schedule::most_passes;
use crate::checkpoint::Config;
use crate::kernels::head;
use crate::kernels::layer::MODULES;
use crate::lora::{LoraConfig, is_target, module_shape};
use crate::recipe::{Dtype, Group, LoraVariant, Phase, Recipe};

#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Memory {
    pub weights: u64,
    pub trained: u64,
    pub kept: u64,
    pub working: u64,
}

impl Memory {
    /// For micro-batches of up to `tokens` tokens and `values` trained values.
    pub fn estimate(config: &Config, recipe: &Recipe, tokens: usize, values: usize) -> Self {
        let passes = recipe.train.phases.iter().map(differentiated_passes).max().unwrap_or(1) as u64;
        let (layer, d) = (per_layer(config, recipe), config.hidden_size as u64);
        let kept_of_layer = if recipe.train.recompute { d } else { layer };
        let tokens = tokens as u64;
        let of_pass = tokens * (kept_of_layer * config.num_layers as u64 + 6 * d);
        let logits = head::CHUNK as u64 * config.vocab_size as u64 + tokens * d;
        Self {
            weights: weights(config, recipe.model.dtype),
            trained: 20 * values as u64,
            kept: 4 * passes * of_pass,
            working: 4 * (2 * tokens * layer + logits),
        }
    }

    pub fn total(&self) -> u64 {
        self.weights + self.trained + self.kept + self.working
    }

    /// As lines for a terminal.
    pub fn lines(&self) -> Vec<String> {
        let parts = [
            ("base weights", self.weights),
            ("trained values, gradients, moments", self.trained),
            ("kept for the backward", self.kept),
            ("working buffers", self.working),
            ("total", self.total()),
        ];
        parts.iter().map(|(name, bytes)| format!("{name:<36}{:>8.2} GB", *bytes as f64 / 1e9)).collect()
    }
}

/// Values that a recipe trains in a base of this config: LoRA's and the feedback's.
pub fn trained_values(config: &Config, recipe: &Recipe) -> (usize, usize) {
    let lora = recipe.lora.as_ref().and_then(|lora| LoraConfig::resolve(lora).ok());
    let of_layer = lora.map_or(0, |lora| {
        let magnitudes = usize::from(lora.variant == LoraVariant::Dora);
        adapted(&lora)
            .map(|m| module_shape(config, m))
            .map(|(a, b)| lora.rank * (a + b) + magnitudes * a)
            .sum::<usize>()
    });
    let d = config.hidden_size;
    (of_layer * config.num_layers, recipe.feedback.as_ref().map_or(0, |_| 2 * d * d + d))
}

/// Indices of the modules that get an adapter.
fn adapted(lora: &LoraConfig) -> impl Iterator<Item = usize> {
    let names = MODULES.iter().enumerate();
    names.filter(|(_, name)| lora.modules.iter().any(|target| is_target(name, target))).map(|(index, _)| index)
}

/// The passes of a phase that a gradient goes through: with the adapters frozen pass 1 has none.
fn differentiated_passes(phase: &Phase) -> usize {
    let passes = most_passes(std::slice::from_ref(phase));
    if phase.update.contains(&Group::Lora) { passes } else { passes.saturating_sub(1) }
}

/// The linear weights are kept as f32 or bf16 for the product with the input and once more for the one with the
/// gradient; a tied head is a copy beside the embedding table.
fn weights(config: &Config, dtype: Dtype) -> u64 {
    let bytes = match dtype {
        Dtype::F32 => 4,
        Dtype::Bf16 => 2,
    };
    let layer: u64 = (0..MODULES.len()).map(|m| module_shape(config, m)).map(|(a, b)| (a * b) as u64).sum();
    let table = (config.vocab_size * config.hidden_size) as u64;
    bytes * (2 * (layer * config.num_layers as u64 + table) + table)
}

/// Floats that a layer keeps of a token.
fn per_layer(config: &Config, recipe: &Recipe) -> u64 {
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let (q, kv) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
    let plain = if config.qk_norm { q + kv } else { 0 };
    let lora = recipe.lora.as_ref().and_then(|lora| LoraConfig::resolve(lora).ok());
    let adapters: usize = lora.iter().map(|lora| adapter_floats(config, lora)).sum();
    (2 * d + 2 * q + 2 * kv + config.num_heads + 2 * f + plain + adapters) as u64
}

/// The inner products of the adapted modules; with DoRA their outputs too.
fn adapter_floats(config: &Config, lora: &LoraConfig) -> usize {
    let outputs = usize::from(lora.variant == LoraVariant::Dora);
    adapted(lora).map(|module| lora.rank + outputs * module_shape(config, module).0).sum()
}
