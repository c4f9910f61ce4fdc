//! Trained tensors. A group of them (a layer's adapters, the feedback weights) is one flat variable with named slots,
//! so that a kernel takes it as one argument and the optimiser walks it in one go.

use std::ops::Range;

use candle_core::{Device, Tensor, Var};

use crate::error::{Error, Result};

/// A named tensor inside a flat variable.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// As on disk, without PEFT's prefix: `model.layers.0.self_attn.q_proj.lora_A.weight`.
    pub name: String,
    pub range: Range<usize>,
    pub shape: Vec<usize>,
}

/// A flat f32 variable `[P]` with named slots that cover it.
pub struct Params {
    var: Var,
    slots: Vec<Slot>,
}

/// Lays out slots one after the other.
#[derive(Default)]
pub struct Layout {
    slots: Vec<Slot>,
    len: usize,
}

impl Layout {
    pub fn push(&mut self, name: impl Into<String>, shape: &[usize]) -> Range<usize> {
        let range = self.len..self.len + shape.iter().product::<usize>();
        self.len = range.end;
        self.slots.push(Slot { name: name.into(), range: range.clone(), shape: shape.to_vec() });
        range
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A variable of zeros with these slots.
    pub fn build(self, device: &Device) -> Result<Params> {
        let var = Var::from_vec(vec![0f32; self.len], self.len, device)?;
        Ok(Params { var, slots: self.slots })
    }
}

impl Params {
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.var.elem_count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn var(&self) -> &Var {
        &self.var
    }

    /// The variable as a tensor that gradients reach, or cut off from them.
    pub fn tensor(&self, trained: bool) -> Tensor {
        if trained { self.var.as_tensor().clone() } else { self.var.as_detached_tensor() }
    }

    /// All values, flat.
    pub fn values(&self) -> Result<Vec<f32>> {
        Ok(self.var.to_vec1::<f32>()?)
    }

    /// Overwrites all values.
    pub fn set(&self, values: Vec<f32>) -> Result<()> {
        if values.len() != self.len() {
            return Err(Error::Internal(format!("{} values for {} parameters", values.len(), self.len())));
        }
        let len = values.len();
        Ok(self.var.set(&Tensor::from_vec(values, len, self.var.device())?)?)
    }

    /// Writes one slot's values into the flat vector `values`.
    pub fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.name == name)
    }
}
