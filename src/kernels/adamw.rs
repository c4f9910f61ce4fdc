//! One AdamW update over flat slices.

use super::simd::vectorised;
use rayon::prelude::*;

/// Decay of the two moments and the term that keeps the division finite: the defaults of Kingma and Ba, and of torch.
pub const BETAS: (f64, f64) = (0.9, 0.999);
pub const EPS: f64 = 1e-8;

const BLOCK: usize = 1 << 14;

/// `step` counts this group's updates from 1; `scale` multiplies the gradient first (clipping). As torch computes it:
/// `p (1 - lr decay) - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)` with the updated moments (Loshchilov and
/// Hutter 2019: the decay does not pass through the moments). All slices have one length.
#[derive(Clone, Copy, Debug)]
pub struct Update {
    pub lr: f64,
    pub weight_decay: f64,
    pub step: u64,
    pub scale: f64,
}

pub fn adamw(update: Update, gradient: &[f32], values: &mut [f32], m: &mut [f32], v: &mut [f32]) {
    assert!(gradient.len() == values.len() && m.len() == values.len() && v.len() == values.len());
    let Update { lr, weight_decay, step, scale } = update;
    let t = step as f64;
    let (b1, b2) = BETAS;
    let keep = (1.0 - lr * weight_decay) as f32;
    let size = (lr / (1.0 - b1.powf(t))) as f32;
    let root = (1.0 - b2.powf(t)).sqrt() as f32;
    let (scale, eps) = (scale as f32, EPS as f32);
    let (b1, c1, b2, c2) = (b1 as f32, (1.0 - b1) as f32, b2 as f32, (1.0 - b2) as f32);
    let blocks = values.par_chunks_mut(BLOCK).zip(gradient.par_chunks(BLOCK));
    blocks.zip(m.par_chunks_mut(BLOCK)).zip(v.par_chunks_mut(BLOCK)).for_each(|(((p, g), m), v)| {
        vectorised(
            #[inline(always)]
            || {
                for (((p, g), m), v) in p.iter_mut().zip(g).zip(m.iter_mut()).zip(v.iter_mut()) {
                    let g = g * scale;
                    *m = b1 * *m + c1 * g;
                    *v = b2 * *v + c2 * g * g;
                    *p = *p * keep - size * *m / (v.sqrt() / root + eps);
                }
            },
        )
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three steps as `torch.optim.AdamW([p], lr=0.1, weight_decay=0.01)` documents them, in f64.
    #[test]
    fn three_steps_follow_the_formula() {
        let gradients = [[0.5f32, -2.0, 0.0], [0.1, -1.0, 0.0], [-0.3, 4.0, 1e-4]];
        let (mut p, mut m, mut v) = ([1f32, -1.0, 0.5], [0f32; 3], [0f32; 3]);
        let (mut pd, mut md, mut vd) = ([1f64, -1.0, 0.5], [0f64; 3], [0f64; 3]);
        for (t, g) in (1..).zip(gradients) {
            adamw(Update { lr: 0.1, weight_decay: 0.01, step: t, scale: 0.5 }, &g, &mut p, &mut m, &mut v);
            for i in 0..3 {
                let g = g[i] as f64 * 0.5;
                md[i] = 0.9 * md[i] + 0.1 * g;
                vd[i] = 0.999 * vd[i] + 0.001 * g * g;
                let (m_hat, v_hat) = (md[i] / (1.0 - 0.9f64.powi(t as i32)), vd[i] / (1.0 - 0.999f64.powi(t as i32)));
                pd[i] = pd[i] - 0.1 * 0.01 * pd[i] - 0.1 * m_hat / (v_hat.sqrt() + 1e-8);
                assert!((p[i] as f64 - pd[i]).abs() < 2e-6, "step {t}, value {i}: {} instead of {}", p[i], pd[i]);
            }
        }
        // The first step moves by lr against the gradient's sign, whatever its size.
        let (mut p, mut m, mut v) = ([0f32; 2], [0f32; 2], [0f32; 2]);
        adamw(Update { lr: 0.1, weight_decay: 0.0, step: 1, scale: 1.0 }, &[1e-3, -50.0], &mut p, &mut m, &mut v);
        assert!((p[0] + 0.1).abs() < 1e-5 && (p[1] - 0.1).abs() < 1e-5, "{p:?}");
    }
}
