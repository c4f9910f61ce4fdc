//! Feedback fusion, forward and backward: the layer-0 input made of the previous position's state and the present
//! token's embedding. With `s = rms(h) + jitter`, `v = W_U s`, `z = W_G rms(e)`:
//! residual: `e + norm * v * gate(z)`; replace: `norm * rms(v * gate(z))` (arXiv:2608.08888, equation 4).

use std::ops::Range;

use super::elementwise::{rms_norm, rms_norm_backward, sigmoid};
use super::gemm;
use super::pool::Buffer;
use super::simd::vectorised;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FuseShape {
    pub hidden: usize,
    pub eps: f32,
    /// `e + ...` instead of the state as the only path.
    pub residual: bool,
    /// Gate `2 sigma(z) - 1` instead of `sigma(z)`.
    pub signed: bool,
}

impl FuseShape {
    /// `W_U [D, D]` in the flat parameters.
    pub fn state_proj(&self) -> Range<usize> {
        0..self.hidden * self.hidden
    }

    /// `W_G [D, D]`
    pub fn token_gate(&self) -> Range<usize> {
        let d2 = self.hidden * self.hidden;
        d2..2 * d2
    }

    /// `norm [D]`
    pub fn norm(&self) -> Range<usize> {
        let d2 = self.hidden * self.hidden;
        2 * d2..2 * d2 + self.hidden
    }

    pub fn parameters(&self) -> usize {
        self.norm().end
    }
}

/// What the backward needs of the forward.
pub struct Saved {
    /// `[F, D]` each: `s`, `rms(e)`, `v`, `gate(z)`.
    s: Buffer,
    e_normed: Buffer,
    v: Buffer,
    gate: Buffer,
}

/// `h [F, D]` (the carried states), `e [F, D]`, `jitter [F, D]` where given -> fused inputs `[F, D]`.
pub fn forward(shape: FuseShape, theta: &[f32], h: &[f32], e: &[f32], jitter: Option<&[f32]>) -> (Vec<f32>, Saved) {
    let d = shape.hidden;
    let n = h.len() / d;
    let ones = vec![1.0; d];
    let norm = &theta[shape.norm()];
    let mut s = Buffer::scratch(n * d);
    rms_norm(h, &ones, shape.eps, &mut s);
    if let Some(jitter) = jitter {
        s.iter_mut().zip(jitter).for_each(|(s, j)| *s += j);
    }
    let mut e_normed = Buffer::scratch(n * d);
    rms_norm(e, &ones, shape.eps, &mut e_normed);
    let mut v = Buffer::scratch(n * d);
    gemm::nt(n, d, d, 1.0, &s, &theta[shape.state_proj()], 0.0, &mut v);
    let mut gate = Buffer::scratch(n * d);
    gemm::nt(n, d, d, 1.0, &e_normed, &theta[shape.token_gate()], 0.0, &mut gate);
    vectorised(
        #[inline(always)]
        || {
            for z in gate.iter_mut() {
                let g = sigmoid(*z);
                *z = if shape.signed { 2.0 * g - 1.0 } else { g };
            }
        },
    );
    let mut out: Vec<f32> = v.iter().zip(gate.iter()).map(|(v, g)| v * g).collect();
    if shape.residual {
        for (out, e) in out.chunks_exact_mut(d).zip(e.chunks_exact(d)) {
            for i in 0..d {
                out[i] = e[i] + norm[i] * out[i];
            }
        }
    } else {
        let product = std::mem::replace(&mut out, vec![0.0; n * d]);
        rms_norm(&product, norm, shape.eps, &mut out);
    }
    (out, Saved { s, e_normed, v, gate })
}

/// Gradient with respect to `h` (`[F, D]`) where `need_state`, and added to `gtheta` where given.
pub fn backward(
    shape: FuseShape,
    theta: &[f32],
    h: &[f32],
    saved: &Saved,
    g: &[f32],
    need_state: bool,
    gtheta: Option<&mut [f32]>,
) -> Option<Vec<f32>> {
    let d = shape.hidden;
    let n = h.len() / d;
    let norm = &theta[shape.norm()];
    let mut g_product = Buffer::zeros(n * d);
    let mut g_norm = vec![0.0; d];
    let product: Vec<f32> = saved.v.iter().zip(saved.gate.iter()).map(|(v, g)| v * g).collect();
    if shape.residual {
        for ((gp, p), g) in g_product.chunks_exact_mut(d).zip(product.chunks_exact(d)).zip(g.chunks_exact(d)) {
            for i in 0..d {
                gp[i] = g[i] * norm[i];
                g_norm[i] += g[i] * p[i];
            }
        }
    } else {
        rms_norm_backward(&product, norm, shape.eps, g, &mut g_product);
        let mut unit = Buffer::scratch(n * d);
        rms_norm(&product, &vec![1.0; d], shape.eps, &mut unit);
        for (unit, g) in unit.chunks_exact(d).zip(g.chunks_exact(d)) {
            for i in 0..d {
                g_norm[i] += g[i] * unit[i];
            }
        }
    }
    // Gradients of v and z.
    let mut gv = Buffer::scratch(n * d);
    let mut gz = g_product;
    for i in 0..n * d {
        let (gp, gate) = (gz[i], saved.gate[i]);
        gv[i] = gp * gate;
        let slope = if shape.signed { 0.5 * (1.0 - gate * gate) } else { gate * (1.0 - gate) };
        gz[i] = gp * saved.v[i] * slope;
    }
    if let Some(gtheta) = gtheta {
        gemm::tn(d, d, n, 1.0, &gv, &saved.s, 1.0, &mut gtheta[shape.state_proj()]);
        gemm::tn(d, d, n, 1.0, &gz, &saved.e_normed, 1.0, &mut gtheta[shape.token_gate()]);
        gtheta[shape.norm()].iter_mut().zip(&g_norm).for_each(|(t, g)| *t += g);
    }
    need_state.then(|| {
        let mut gs = gz;
        gemm::nn(n, d, d, 1.0, &gv, &theta[shape.state_proj()], 0.0, &mut gs);
        let mut gh = vec![0.0; n * d];
        rms_norm_backward(h, &vec![1.0; d], shape.eps, &gs, &mut gh);
        gh
    })
}
