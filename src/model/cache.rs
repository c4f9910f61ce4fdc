//! Keys and values of documents that are being decoded.

use candle_core::Tensor;

use crate::kernels::layer::LayerCache;

/// A cache over all layers for a fixed list of documents; starts empty and grows by what the trunk adds.
#[derive(Default)]
pub struct KvCache {
    kernels: Vec<LayerCache>,
    /// `[layers][docs]`: keys and values `[KV, S, dh]`, on other devices.
    composed: Vec<Vec<Option<(Tensor, Tensor)>>>,
}

impl KvCache {
    pub fn new() -> Self {
        Self::default()
    }

    pub(super) fn kernel_layer(&mut self, layer: usize, documents: usize, kv_heads: usize) -> &mut LayerCache {
        while self.kernels.len() <= layer {
            let empty = vec![vec![Vec::new(); kv_heads]; documents];
            self.kernels.push(LayerCache { k: empty.clone(), v: empty });
        }
        &mut self.kernels[layer]
    }

    pub(super) fn composed_layer(&mut self, layer: usize, documents: usize) -> &mut Vec<Option<(Tensor, Tensor)>> {
        while self.composed.len() <= layer {
            self.composed.push(vec![None; documents]);
        }
        &mut self.composed[layer]
    }
}
