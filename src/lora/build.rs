//! Lays out adapters over a base's modules and gives them their starting values.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::checkpoint::Config;
use crate::error::{Error, Result};
use crate::kernels::layer::{Deltas, MODULES};
use crate::kernels::linear::LowRank;
use crate::model::{Adapters, Layout, Model};
use crate::random::{Key, Purpose};
use crate::recipe::{LoraRecipe, LoraVariant, Targets};

/// What defines an adapter's arithmetic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoraConfig {
    pub rank: usize,
    pub alpha: f64,
    /// In training only.
    pub dropout: f64,
    pub variant: LoraVariant,
    /// Which modules are adapted, as PEFT names them: whole names or ends of names (`q_proj`, `mlp.up_proj`,
    /// `model.layers.0.self_attn.q_proj`).
    pub modules: Vec<String>,
}

/// Whether the module of this name, whole or its end from a dot on, is one that `target` names (PEFT's rule).
pub fn is_target(name: &str, target: &str) -> bool {
    name.strip_suffix(target).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// A module's whole name.
pub fn module_name(layer: usize, module: usize) -> String {
    format!("model.layers.{layer}.{}", MODULES[module])
}

/// The last part of a module's name.
fn short(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

impl LoraConfig {
    /// Resolves the recipe's targets against the base; a module that the base does not have is refused by name.
    pub fn resolve(recipe: &LoraRecipe) -> Result<Self> {
        let known: Vec<&str> = MODULES.iter().map(|m| short(m)).collect();
        let modules: Vec<String> = match &recipe.targets {
            Targets::AllLinear => known.iter().map(|m| m.to_string()).collect(),
            Targets::Modules(list) => {
                if let Some(unknown) = list.iter().find(|m| !known.contains(&m.as_str())) {
                    return Err(Error::Usage(format!(
                        "lora.targets: the base has no linear module '{unknown}'; it has {}",
                        known.join(", ")
                    )));
                }
                known.iter().filter(|m| list.iter().any(|l| l == *m)).map(|m| m.to_string()).collect()
            }
        };
        let LoraRecipe { rank, alpha, dropout, variant, .. } = *recipe;
        Ok(Self { rank, alpha, dropout, variant, modules })
    }

    /// Factor of the low-rank product.
    pub fn scale(&self) -> f64 {
        match self.variant {
            LoraVariant::Rslora => self.alpha / (self.rank as f64).sqrt(),
            LoraVariant::Lora | LoraVariant::Dora => self.alpha / self.rank as f64,
        }
    }
}

/// `[out, in]` of a layer's module.
pub fn module_shape(config: &Config, module: usize) -> (usize, usize) {
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let (q, kv) = (config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim);
    [(q, d), (kv, d), (kv, d), (d, q), (f, d), (f, d), (d, f)][module]
}

/// Adapters of zeros over `base`'s layers: for loading, and for [`init`].
pub fn build(base: &Model, config: &LoraConfig) -> Result<Adapters> {
    let mut layers = Vec::new();
    let mut deltas = Vec::new();
    for layer in 0..base.config().num_layers {
        let mut layout = Layout::default();
        let mut of_layer = Deltas::default();
        for (module, adapter) in of_layer.iter_mut().enumerate() {
            let name = module_name(layer, module);
            if !config.modules.iter().any(|target| is_target(&name, target)) {
                continue;
            }
            let (out, inner) = module_shape(base.config(), module);
            let slot = |part: &str| format!("{name}.{part}");
            let a = layout.push(slot("lora_A.weight"), &[config.rank, inner]);
            let b = layout.push(slot("lora_B.weight"), &[out, config.rank]);
            let dora = config.variant == LoraVariant::Dora;
            let magnitude = dora.then(|| layout.push(slot("lora_magnitude_vector"), &[out]));
            *adapter = Some(LowRank {
                rank: config.rank,
                scale: config.scale() as f32,
                dropout: config.dropout as f32,
                a,
                b,
                magnitude,
            });
        }
        layers.push(layout.build(base.device())?);
        deltas.push(Arc::new(of_layer));
    }
    Ok(Adapters { layers, deltas })
}

/// Adapters as training starts, as PEFT does: A uniform in `±1/sqrt(in)` (Kaiming with a = sqrt 5), B zero, DoRA's
/// magnitude the row norms of the weight; the model is the base's at first.
pub fn init(base: &Model, config: &LoraConfig, seed: u64) -> Result<Adapters> {
    let adapters = build(base, config)?;
    let key = Key::new(seed, Purpose::Init);
    for (layer, (params, deltas)) in adapters.layers.iter().zip(&adapters.deltas).enumerate() {
        let mut values = vec![0.0; params.len()];
        for (module, delta) in deltas.iter().enumerate() {
            let Some(delta) = delta else { continue };
            let key = key.at((layer * MODULES.len() + module) as u64);
            let bound = 1.0 / (module_shape(base.config(), module).1 as f64).sqrt();
            for (i, value) in values[delta.a.clone()].iter_mut().enumerate() {
                *value = ((key.unit(i as u64) * 2.0 - 1.0) * bound) as f32;
            }
            if let Some(range) = &delta.magnitude {
                values[range.clone()].copy_from_slice(&base.row_norms(layer, module)?);
            }
        }
        params.set(values)?;
    }
    Ok(adapters)
}
