//! A frozen linear layer with its low-rank adapter inside: `y = x W^T + bias + s (drop(x) A^T) B^T` (LoRA, Hu et al.
//! 2021), or with a magnitude `y = m / c * (x W^T + s (drop(x) A^T) B^T) + bias`, `c` the row norms of `W + s B A`
//! (DoRA, Liu et al. 2024; `c` is a constant for the gradient, as there).
//!
//! Adapters live in one flat slice `theta` per layer; a [`LowRank`] says where its parts lie.

use std::ops::Range;

use super::elementwise::add_bias;
use super::gemm;
use super::packed::PackedWeight;
use super::pool::Buffer;
use super::profile::{Part, timed};
use super::skinny::{self, Dropout, transposed};
use crate::random::Key;

pub struct Linear {
    pub weight: PackedWeight,
    /// `[out]`
    pub bias: Option<Vec<f32>>,
    /// `[out]`, squared row norms of the weight; read by DoRA alone.
    pub row_norms: Vec<f32>,
}

/// Where an adapter's tensors lie in the layer's `theta`.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    pub rank: usize,
    /// `alpha / r`, or `alpha / sqrt(r)` for rslora.
    pub scale: f32,
    /// Probability that an input element is dropped, in training.
    pub dropout: f32,
    /// `[r, in]`
    pub a: Range<usize>,
    /// `[out, r]`
    pub b: Range<usize>,
    /// `[out]`, DoRA's magnitude.
    pub magnitude: Option<Range<usize>>,
}

/// What the backward needs of the forward, beside its input.
pub struct Saved {
    /// `[n, r]`: `drop(x) A^T`.
    u: Buffer,
    /// DoRA: `[n, out]` before the magnitude, and `[out]` magnitude over norm, and `[out]` the norm.
    dora: Option<(Buffer, Vec<f32>, Vec<f32>)>,
}

/// Dropout keys of the rows of one module, none where nothing is dropped.
pub type RowKeys<'a> = Option<&'a [Key]>;

impl Linear {
    pub fn new(weight: PackedWeight, bias: Option<Vec<f32>>, row_norms: Vec<f32>) -> Self {
        Self { weight, bias, row_norms }
    }

    /// `x [n, in]` -> `y [n, out]`.
    pub fn forward(
        &self,
        x: &[f32],
        n: usize,
        delta: Option<(&LowRank, &[f32])>,
        keys: RowKeys,
        y: &mut [f32],
    ) -> Option<Saved> {
        timed(Part::Frozen, || self.weight.forward(x, n, y));
        let saved = delta.map(|(delta, theta)| timed(Part::Adapter, || self.add_delta(x, n, delta, theta, keys, y)));
        if let Some(bias) = &self.bias {
            add_bias(y, bias);
        }
        saved
    }

    fn add_delta(&self, x: &[f32], n: usize, delta: &LowRank, theta: &[f32], keys: RowKeys, y: &mut [f32]) -> Saved {
        let (k, m, r) = (self.weight.in_features(), self.weight.out_features(), delta.rank);
        let (a, b) = (&theta[delta.a.clone()], &theta[delta.b.clone()]);
        let mut u = Buffer::scratch(n * r);
        skinny::dots(n, r, k, 1.0, x, dropped(delta, keys), a, &mut u);
        skinny::spread(n, r, m, delta.scale, &u, &transposed(m, r, b), None, y);
        let dora = delta.magnitude.clone().map(|range| {
            let norms = self.dora_norms(delta, theta);
            let scale: Vec<f32> = theta[range].iter().zip(&norms).map(|(m, c)| m / c).collect();
            let before = Buffer::copy_of(y);
            for row in y.chunks_exact_mut(m) {
                row.iter_mut().zip(&scale).for_each(|(y, s)| *y *= s);
            }
            (before, scale, norms)
        });
        Saved { u, dora }
    }

    /// `[out]`: norms of the rows of `W + s B A`, from `|W|^2 + 2 s <B, W A^T> + s^2 B A A^T B^T`.
    pub fn dora_norms(&self, delta: &LowRank, theta: &[f32]) -> Vec<f32> {
        let (k, m, r) = (self.weight.in_features(), self.weight.out_features(), delta.rank);
        let (a, b) = (&theta[delta.a.clone()], &theta[delta.b.clone()]);
        let (mut wa, mut aa, mut baa) = (vec![0.0; r * m], vec![0.0; r * r], vec![0.0; m * r]);
        self.weight.forward(a, r, &mut wa);
        gemm::nt(r, r, k, 1.0, a, a, 0.0, &mut aa);
        gemm::nn(m, r, r, 1.0, b, &aa, 0.0, &mut baa);
        let s = delta.scale;
        (0..m)
            .map(|o| {
                let cross: f32 = (0..r).map(|j| b[o * r + j] * wa[j * m + o]).sum();
                let square: f32 = (0..r).map(|j| b[o * r + j] * baa[o * r + j]).sum();
                (self.row_norms[o] + 2.0 * s * cross + s * s * square).max(0.0).sqrt()
            })
            .collect()
    }

    /// Adds to `gx [n, in]` (where given; overwritten unless `accumulate`) and to `gtheta` (where given). `g [n, out]`
    /// is the gradient of y and is scaled in place by DoRA.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        x: &[f32],
        n: usize,
        delta: Option<(&LowRank, &[f32])>,
        keys: RowKeys,
        saved: Option<&Saved>,
        g: &mut [f32],
        mut gx: Option<(&mut [f32], bool)>,
        gtheta: Option<&mut [f32]>,
    ) {
        let mut gtheta = gtheta;
        if let (Some((delta, _)), Some(Saved { dora: Some(dora), .. })) = (delta, saved) {
            backward_magnitude(delta, dora, g, gtheta.as_deref_mut());
        }
        if let Some((gx, accumulate)) = &mut gx {
            timed(Part::Frozen, || self.weight.backward(g, n, gx, *accumulate));
        }
        let (Some((delta, theta)), Some(saved)) = (delta, saved) else { return };
        timed(Part::Adapter, || self.delta_backward(x, n, delta, theta, keys, saved, g, gx, gtheta));
    }

    #[allow(clippy::too_many_arguments)]
    fn delta_backward(
        &self,
        x: &[f32],
        n: usize,
        delta: &LowRank,
        theta: &[f32],
        keys: RowKeys,
        saved: &Saved,
        g: &[f32],
        gx: Option<(&mut [f32], bool)>,
        gtheta: Option<&mut [f32]>,
    ) {
        let (k, m, r) = (self.weight.in_features(), self.weight.out_features(), delta.rank);
        let (a, b) = (&theta[delta.a.clone()], &theta[delta.b.clone()]);
        let drop = dropped(delta, keys);
        let mut gu = Buffer::scratch(n * r);
        skinny::dots(n, r, m, delta.scale, g, None, &transposed(m, r, b), &mut gu);
        if let Some(gtheta) = gtheta {
            let mut gb = vec![0.0; r * m];
            skinny::outer(n, r, m, delta.scale, &saved.u, g, None, &mut gb);
            let gb = transposed(r, m, &gb);
            gtheta[delta.b.clone()].iter_mut().zip(&gb).for_each(|(sum, g)| *sum += g);
            skinny::outer(n, r, k, 1.0, &gu, x, drop, &mut gtheta[delta.a.clone()]);
        }
        if let Some((gx, _)) = gx {
            skinny::spread(n, r, k, 1.0, &gu, a, drop, gx);
        }
    }
}

fn dropped<'a>(delta: &LowRank, keys: RowKeys<'a>) -> Option<Dropout<'a>> {
    keys.map(|keys| Dropout { p: delta.dropout, keys })
}

/// Gradient of the magnitude, then `g` scaled to the gradient of what stands before it.
fn backward_magnitude(
    delta: &LowRank,
    (before, scale, norms): &(Buffer, Vec<f32>, Vec<f32>),
    g: &mut [f32],
    gtheta: Option<&mut [f32]>,
) {
    let m = scale.len();
    if let (Some(gtheta), Some(range)) = (gtheta, delta.magnitude.clone()) {
        let gm = &mut gtheta[range];
        for (g, before) in g.chunks_exact(m).zip(before.chunks_exact(m)) {
            for o in 0..m {
                gm[o] += g[o] * before[o] / norms[o];
            }
        }
    }
    for row in g.chunks_exact_mut(m) {
        row.iter_mut().zip(scale).for_each(|(g, s)| *g *= s);
    }
}
