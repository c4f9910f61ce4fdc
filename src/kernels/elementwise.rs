//! Elementwise and row-wise operations: RMS norm, rotary, SwiGLU, exponentials. One pass each, threads over rows,
//! vectorised for the processor found at run time.

use rayon::prelude::*;

use super::simd::vectorised;

/// Rows that one task works on: enough work to pay for a task, few enough to share among threads.
fn rows_per_task(row: usize) -> usize {
    (1usize << 14).div_ceil(row.max(1)).max(1)
}

/// `exp(x)` to about 2 ulp in f32, written so that loops over it vectorise: Cody-Waite reduction by ln 2 and a
/// degree-6 polynomial (coefficients of Cephes' `expf`). Inputs under -87.3 give 0.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HI: f32 = 0.693_359_4;
    const LN2_LO: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.3, 88.3);
    let n = (clamped * std::f32::consts::LOG2_E + 0.5).floor();
    let r = clamped - n * LN2_HI - n * LN2_LO;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_2e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 5e-1;
    let y = p * r * r + r + 1.0;
    // SAFETY-free conversion: n is in -126..=127, so the biased exponent fits.
    let scale = f32::from_bits(((n as i32 + 127) as u32) << 23);
    if x < -87.3 { 0.0 } else { y * scale }
}

#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Sum with 16 partial sums: vectorises, and the order does not depend on threads.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    let (ca, cb) = (a.chunks_exact(16), b.chunks_exact(16));
    let tail: f32 = ca.remainder().iter().zip(cb.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in ca.zip(cb) {
        for i in 0..16 {
            lanes[i] += x[i] * y[i];
        }
    }
    lanes.iter().sum::<f32>() + tail
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + eps).sqrt()
}

/// `y = x / sqrt(mean(x^2) + eps) * w` over rows of `w.len()`.
pub fn rms_norm(x: &[f32], w: &[f32], eps: f32, y: &mut [f32]) {
    let d = w.len();
    let block = rows_per_task(d) * d;
    y.par_chunks_mut(block).zip(x.par_chunks(block)).for_each(|(y, x)| {
        vectorised(
            #[inline(always)]
            || {
                for (y, x) in y.chunks_exact_mut(d).zip(x.chunks_exact(d)) {
                    let r = inverse_rms(x, eps);
                    for i in 0..d {
                        y[i] = x[i] * r * w[i];
                    }
                }
            },
        )
    });
}

/// `gx += d/dx` of [`rms_norm`]: with `r = 1/rms`, `gx_i += r (g_i w_i - x_i r^2 mean(g w x))`.
pub fn rms_norm_backward(x: &[f32], w: &[f32], eps: f32, g: &[f32], gx: &mut [f32]) {
    let d = w.len();
    let block = rows_per_task(d) * d;
    gx.par_chunks_mut(block).zip(x.par_chunks(block)).zip(g.par_chunks(block)).for_each(|((gx, x), g)| {
        vectorised(
            #[inline(always)]
            || {
                let mut gw = vec![0f32; d];
                for ((gx, x), g) in gx.chunks_exact_mut(d).zip(x.chunks_exact(d)).zip(g.chunks_exact(d)) {
                    let r = inverse_rms(x, eps);
                    for i in 0..d {
                        gw[i] = g[i] * w[i];
                    }
                    let c = dot(&gw, x) * r * r / d as f32;
                    for i in 0..d {
                        gx[i] += r * (gw[i] - x[i] * c);
                    }
                }
            },
        )
    });
}

/// `y = silu(gate) * up`.
pub fn swiglu(gate: &[f32], up: &[f32], y: &mut [f32]) {
    const BLOCK: usize = 1 << 14;
    y.par_chunks_mut(BLOCK).zip(gate.par_chunks(BLOCK)).zip(up.par_chunks(BLOCK)).for_each(|((y, gate), up)| {
        vectorised(
            #[inline(always)]
            || {
                for ((y, &g), &u) in y.iter_mut().zip(gate).zip(up) {
                    *y = g * sigmoid(g) * u;
                }
            },
        )
    });
}

/// Gradient of [`swiglu`], in place: `gate` and `up` become the gradients with respect to them; `y` becomes the output
/// `silu(gate) * up` again if `recompute` is given.
pub fn swiglu_backward(gate: &mut [f32], up: &mut [f32], g: &[f32]) {
    const BLOCK: usize = 1 << 14;
    gate.par_chunks_mut(BLOCK).zip(up.par_chunks_mut(BLOCK)).zip(g.par_chunks(BLOCK)).for_each(|((gate, up), g)| {
        vectorised(
            #[inline(always)]
            || {
                for ((gate, up), &g) in gate.iter_mut().zip(up.iter_mut()).zip(g) {
                    let s = sigmoid(*gate);
                    let silu = *gate * s;
                    let d_silu = s + silu * (1.0 - s);
                    let g_gate = g * *up * d_silu;
                    *up = g * silu;
                    *gate = g_gate;
                }
            },
        )
    });
}

/// `y += x`.
pub fn add(y: &mut [f32], x: &[f32]) {
    const BLOCK: usize = 1 << 14;
    y.par_chunks_mut(BLOCK).zip(x.par_chunks(BLOCK)).for_each(|(y, x)| {
        vectorised(
            #[inline(always)]
            || {
                for (y, x) in y.iter_mut().zip(x) {
                    *y += x;
                }
            },
        )
    });
}

/// Adds `bias` to every row of y.
pub fn add_bias(y: &mut [f32], bias: &[f32]) {
    let d = bias.len();
    let block = rows_per_task(d) * d;
    y.par_chunks_mut(block).for_each(|y| {
        vectorised(
            #[inline(always)]
            || {
                for y in y.chunks_exact_mut(d) {
                    for i in 0..d {
                        y[i] += bias[i];
                    }
                }
            },
        )
    });
}

/// Cosines and sines of the rotary embedding, rotate-half convention: `[positions, head_dim / 2]` each.
pub struct Rotary {
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
    pub half: usize,
}

impl Rotary {
    /// `inverse_frequencies`: `[head_dim / 2]`. The angles are rounded to f32, as transformers does.
    pub fn new(inverse_frequencies: &[f32], positions: usize) -> Self {
        let half = inverse_frequencies.len();
        let angles = (0..positions).flat_map(|p| inverse_frequencies.iter().map(move |f| (p as f32 * f) as f64));
        let (sin, cos) = angles.map(|a| (a.sin() as f32, a.cos() as f32)).unzip();
        Self { cos, sin, half }
    }

    pub fn positions(&self) -> usize {
        self.cos.len() / self.half
    }

    /// Rotates one head row at `position`, in place; `sign` -1 rotates back, which is the backward.
    #[inline(always)]
    fn rotate(&self, row: &mut [f32], position: usize, sign: f32) {
        let half = self.half;
        let cos = &self.cos[position * half..(position + 1) * half];
        let sin = &self.sin[position * half..(position + 1) * half];
        let (low, high) = row.split_at_mut(half);
        for i in 0..half {
            let (a, b) = (low[i], high[i]);
            low[i] = a * cos[i] - b * sin[i] * sign;
            high[i] = b * cos[i] + a * sin[i] * sign;
        }
    }
}

/// `[N, H * dh]` -> `[H, N, dh]`, each head row normalised with `norm` (weight, eps) where given, then rotated at its
/// position where `rotary` is given.
pub fn split_heads(
    x: &[f32],
    heads: usize,
    dim: usize,
    norm: Option<(&[f32], f32)>,
    rotary: Option<(&Rotary, &[u32])>,
    y: &mut [f32],
) {
    let n = x.len() / (heads * dim);
    if n == 0 {
        return;
    }
    let block = rows_per_task(dim);
    y.par_chunks_mut(n * dim).enumerate().for_each(|(h, y)| {
        y.par_chunks_mut(block * dim).enumerate().for_each(|(b, y)| {
            vectorised(
                #[inline(always)]
                || {
                    for (i, row) in y.chunks_exact_mut(dim).enumerate() {
                        let t = b * block + i;
                        row.copy_from_slice(&x[(t * heads + h) * dim..][..dim]);
                        if let Some((weight, eps)) = norm {
                            let r = inverse_rms(row, eps);
                            for i in 0..dim {
                                row[i] *= r * weight[i];
                            }
                        }
                        if let Some((rotary, positions)) = rotary {
                            rotary.rotate(row, positions[t] as usize, 1.0);
                        }
                    }
                },
            )
        })
    });
}

/// `[H, N, dh]` -> `[N, H * dh]`; with `rotary` each row is rotated back first (the backward of [`split_heads`]).
pub fn join_heads(x: &[f32], heads: usize, dim: usize, rotary: Option<(&Rotary, &[u32])>, y: &mut [f32]) {
    let n = x.len() / (heads * dim);
    let block = rows_per_task(heads * dim);
    y.par_chunks_mut(block * heads * dim).enumerate().for_each(|(b, y)| {
        vectorised(
            #[inline(always)]
            || {
                for (i, token) in y.chunks_exact_mut(heads * dim).enumerate() {
                    let t = b * block + i;
                    for (h, row) in token.chunks_exact_mut(dim).enumerate() {
                        row.copy_from_slice(&x[(h * n + t) * dim..][..dim]);
                        if let Some((rotary, positions)) = rotary {
                            rotary.rotate(row, positions[t] as usize, -1.0);
                        }
                    }
                }
            },
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units_in_the_last_place() {
        let mut worst = 0f64;
        for i in -870_000..880_000 {
            let x = i as f32 * 1e-4;
            let (got, want) = (exp(x) as f64, (x as f64).exp());
            worst = worst.max(((got - want) / want).abs());
        }
        assert!(worst < 2.5e-7, "relative error {worst:e}");
        assert_eq!(exp(-1000.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }
}
