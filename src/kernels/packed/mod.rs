//! Products with a frozen weight, packed once: `y = x W^T` forward and `gx = g W` backward.
//!
//! Owns the packed copies of the weight, one a direction (`panels`), and the choice of kernel (`kernel`); the loops
//! over blocks and threads are in `sweep`, the instructions in one file a family ([`Isa`]). Every element of a
//! result is one sum in the order of the inner dimension, whatever the block, tail or thread that computes it: a row of
//! the result depends on its row of the input alone, bit for bit, and neither on `n` nor on the number of threads.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod kernel;
mod panels;
mod portable;
mod sweep;

use half::bf16;

pub use super::isa::Isa;
use super::profile;
use crate::{Error, Result};
use kernel::Kernel;
use panels::Panels;

/// A frozen weight as it comes from the checkpoint, `[out, in]`.
#[derive(Clone, Copy)]
pub enum Weight<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

impl Weight<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(w) => w.len(),
            Self::Bf16(w) => w.len(),
        }
    }
}

/// What a product is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Weights, activations and sums in f32.
    F32,
    /// Weights and activations rounded to bf16 (to nearest, ties to even), sums in f32.
    Bf16,
}

/// A frozen weight `[out, in]`, packed for both directions: 4 bytes a weight in bf16, 8 in f32.
pub struct PackedWeight {
    out_features: usize,
    in_features: usize,
    kernel: &'static Kernel,
    forward: Panels,
    backward: Panels,
}

impl PackedWeight {
    /// Packs for the family that [`Isa::select`] names.
    ///
    /// Panics if `weight` is not `out_features * in_features` long, or if `FULLBAND_ISA` cannot be honoured: a program
    /// calls [`Isa::select`] first and stops there.
    pub fn new(weight: Weight<'_>, out_features: usize, in_features: usize, precision: Precision) -> Self {
        let isa = Isa::select().unwrap_or_else(|error| panic!("{error}"));
        Self::pack(weight, out_features, in_features, precision, isa)
    }

    /// Packs for `isa`. An error if this machine does not run it; panics like [`PackedWeight::new`] on a wrong length.
    pub fn with_isa(
        weight: Weight<'_>,
        out_features: usize,
        in_features: usize,
        precision: Precision,
        isa: Isa,
    ) -> Result<Self> {
        if !isa.is_supported() {
            return Err(Error::Usage(format!("{isa} kernels do not run on this machine")));
        }
        Ok(Self::pack(weight, out_features, in_features, precision, isa))
    }

    /// `isa` is supported.
    fn pack(weight: Weight<'_>, out_features: usize, in_features: usize, precision: Precision, isa: Isa) -> Self {
        assert_eq!(weight.len(), out_features * in_features, "a weight [{out_features}, {in_features}]");
        let forward = Panels::pack(precision, in_features, out_features, &weight, (1, in_features));
        let backward = Panels::pack(precision, out_features, in_features, &weight, (in_features, 1));
        Self { out_features, in_features, kernel: Kernel::of(isa, precision), forward, backward }
    }

    pub fn out_features(&self) -> usize {
        self.out_features
    }

    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// `y = x W^T`: x `[n, in]`, y `[n, out]` (overwritten). A row of y depends on its row of x alone, bit for bit,
    /// whatever `n` is.
    pub fn forward(&self, x: &[f32], n: usize, y: &mut [f32]) {
        profile::count(n * self.in_features * self.out_features);
        sweep::product(self.kernel, &self.forward, x, n, y, false);
    }

    /// `gx = g W`, or `gx += g W` with `accumulate`: g `[n, out]`, gx `[n, in]`.
    pub fn backward(&self, g: &[f32], n: usize, gx: &mut [f32], accumulate: bool) {
        profile::count(n * self.in_features * self.out_features);
        sweep::product(self.kernel, &self.backward, g, n, gx, accumulate);
    }
}
