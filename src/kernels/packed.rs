//! Products with a frozen weight, packed once: `y = x W^T` forward and `gx = g W` backward.

use half::bf16;

/// A frozen weight as it comes from the checkpoint, `[out, in]`.
pub enum Weight<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

/// What a product is computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Weights, activations and sums in f32.
    F32,
    /// Weights and activations rounded to bf16, sums in f32.
    Bf16,
}

/// A frozen weight `[out, in]`, packed for both directions.
pub struct PackedWeight {
    out_features: usize,
    in_features: usize,
    data: Vec<f32>,
}

impl PackedWeight {
    /// Panics if `weight` is not `out_features * in_features` long.
    pub fn new(weight: Weight<'_>, out_features: usize, in_features: usize, precision: Precision) -> Self {
        let round = |w: f32| if precision == Precision::Bf16 { bf16::from_f32(w).to_f32() } else { w };
        let data: Vec<f32> = match weight {
            Weight::F32(w) => w.iter().map(|&w| round(w)).collect(),
            Weight::Bf16(w) => w.iter().map(|w| w.to_f32()).collect(),
        };
        assert_eq!(data.len(), out_features * in_features);
        Self { out_features, in_features, data }
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
        let (k, m) = (self.in_features, self.out_features);
        assert_eq!(x.len(), n * k);
        assert_eq!(y.len(), n * m);
        super::gemm::nt(n, m, k, 1.0, x, &self.data, 0.0, y);
    }

    /// `gx = g W`, or `gx += g W` with `accumulate`: g `[n, out]`, gx `[n, in]`.
    pub fn backward(&self, g: &[f32], n: usize, gx: &mut [f32], accumulate: bool) {
        let (k, m) = (self.in_features, self.out_features);
        assert_eq!(g.len(), n * m);
        assert_eq!(gx.len(), n * k);
        super::gemm::nn(n, k, m, 1.0, g, &self.data, if accumulate { 1.0 } else { 0.0 }, gx);
    }
}
