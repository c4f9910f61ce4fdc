//! Causal attention over segments: grouped query heads, optional sliding window, keys and values that may come from a
//! cache. Works on blocks of query rows; no `T x T` matrix is kept, the backward makes each block's weights again
//! from the logarithm of its row sums.

use rayon::prelude::*;

use super::elementwise::exp;
use super::gemm::strided_serial;
use super::simd::vectorised;

/// Query rows that are worked on together.
const BLOCK: usize = 64;

/// One document and one key-value head. `T` new tokens whose first one has `S - T` tokens before it.
pub struct Task<'a> {
    /// One slice a query head of the group, each `[T, dh]`.
    pub q: Vec<&'a [f32]>,
    /// `[S, dh]`
    pub k: &'a [f32],
    /// `[S, dh]`
    pub v: &'a [f32],
    /// One slice a query head, each `[T, dh]`: written.
    pub out: Vec<&'a mut [f32]>,
    /// One slice a query head, each `[T]`: log of the sum of exponentials, kept for the backward.
    pub lse: Vec<&'a mut [f32]>,
}

/// What the backward of one document and key-value head is given and writes.
pub struct BackwardTask<'a> {
    pub q: Vec<&'a [f32]>,
    pub k: &'a [f32],
    pub v: &'a [f32],
    pub out: Vec<&'a [f32]>,
    pub lse: Vec<&'a [f32]>,
    /// Gradient of `out`.
    pub g: Vec<&'a [f32]>,
    pub gq: Vec<&'a mut [f32]>,
    /// `[T, dh]`, zero on entry.
    pub gk: &'a mut [f32],
    /// `[T, dh]`, zero on entry.
    pub gv: &'a mut [f32],
}

#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub head_dim: usize,
    /// Position i reaches j with `i - j < window`.
    pub window: Option<usize>,
}

impl Shape {
    fn scale(self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Keys that the query at absolute position `i` reaches.
    fn reach(self, i: usize) -> std::ops::Range<usize> {
        self.window.map_or(0, |w| (i + 1).saturating_sub(w))..i + 1
    }
}

/// `out = softmax(q k^T / sqrt(dh)) v`, every task on its own thread.
pub fn forward(tasks: Vec<Task<'_>>, shape: Shape) {
    tasks.into_par_iter().for_each_init(Vec::new, |scores, task| {
        let Task { q, k, v, out, lse } = task;
        for ((q, out), lse) in q.into_iter().zip(out).zip(lse) {
            forward_head(q, k, v, out, lse, shape, scores);
        }
    });
}

fn forward_head(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    lse: &mut [f32],
    shape: Shape,
    scores: &mut Vec<f32>,
) {
    let dh = shape.head_dim;
    let (t, s) = (q.len() / dh, k.len() / dh);
    let past = s - t;
    for i0 in (0..t).step_by(BLOCK) {
        let i1 = (i0 + BLOCK).min(t);
        let (rows, keys) = (i1 - i0, shape.reach(past + i0).start..past + i1);
        let n = keys.len();
        scores.resize(rows * n, 0.0);
        let scores = &mut scores[..rows * n];
        let k_block = &k[keys.start * dh..keys.end * dh];
        strided_serial(rows, n, dh, shape.scale(), (&q[i0 * dh..], dh, 1), (k_block, 1, dh), 0.0, (scores, n));
        vectorised(
            #[inline(always)]
            || {
                for (r, row) in scores.chunks_exact_mut(n).enumerate() {
                    let reach = shape.reach(past + i0 + r);
                    lse[i0 + r] = softmax(row, reach.start - keys.start..reach.end - keys.start);
                }
            },
        );
        let v_block = &v[keys.start * dh..keys.end * dh];
        strided_serial(rows, dh, n, 1.0, (scores, n, 1), (v_block, dh, 1), 0.0, (&mut out[i0 * dh..i1 * dh], dh));
    }
}

/// Softmax in place over `live`, 0 elsewhere; returns the log of the sum of exponentials.
#[inline(always)]
fn softmax(row: &mut [f32], live: std::ops::Range<usize>) -> f32 {
    row[..live.start].fill(0.0);
    row[live.end..].fill(0.0);
    let row = &mut row[live];
    let max = max(row);
    let sum = exponentials(row, max);
    let inverse = 1.0 / sum;
    row.iter_mut().for_each(|x| *x *= inverse);
    max + sum.ln()
}

/// `exp(x - top)` in place; returns the sum.
#[inline(always)]
pub(super) fn exponentials(row: &mut [f32], top: f32) -> f32 {
    let mut lanes = [0f32; 16];
    let mut chunks = row.chunks_exact_mut(16);
    for chunk in &mut chunks {
        for i in 0..16 {
            chunk[i] = exp(chunk[i] - top);
            lanes[i] += chunk[i];
        }
    }
    let mut sum: f32 = lanes.iter().sum();
    for x in chunks.into_remainder() {
        *x = exp(*x - top);
        sum += *x;
    }
    sum
}

#[inline(always)]
pub(super) fn max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let chunks = row.chunks_exact(16);
    let mut best = chunks.remainder().iter().fold(f32::NEG_INFINITY, |m, &x| if x > m { x } else { m });
    for chunk in chunks {
        for i in 0..16 {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    for lane in lanes {
        best = if lane > best { lane } else { best };
    }
    best
}

/// Gradients with respect to q, k and v; every task on its own thread, so sums have one order.
pub fn backward(tasks: Vec<BackwardTask<'_>>, shape: Shape) {
    tasks.into_par_iter().for_each_init(Scratch::default, |scratch, task| {
        let BackwardTask { q, k, v, out, lse, g, gq, gk, gv } = task;
        for (h, gq) in gq.into_iter().enumerate() {
            let head = Head { q: q[h], k, v, out: out[h], lse: lse[h], g: g[h] };
            backward_head(&head, gq, gk, gv, shape, scratch);
        }
    });
}

#[derive(Default)]
struct Scratch {
    weights: Vec<f32>,
    gradients: Vec<f32>,
}

struct Head<'a> {
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    out: &'a [f32],
    lse: &'a [f32],
    g: &'a [f32],
}

fn backward_head(head: &Head, gq: &mut [f32], gk: &mut [f32], gv: &mut [f32], shape: Shape, scratch: &mut Scratch) {
    let dh = shape.head_dim;
    let t = head.q.len() / dh;
    for i0 in (0..t).step_by(BLOCK) {
        let i1 = (i0 + BLOCK).min(t);
        let (rows, keys) = (i1 - i0, shape.reach(i0).start..i1);
        let n = keys.len();
        scratch.weights.resize(rows * n, 0.0);
        scratch.gradients.resize(rows * n, 0.0);
        let (p, ds) = (&mut scratch.weights[..rows * n], &mut scratch.gradients[..rows * n]);
        let block = i0 * dh..i1 * dh;
        let key_block = keys.start * dh..keys.end * dh;
        let (q, g, out) = (&head.q[block.clone()], &head.g[block.clone()], &head.out[block.clone()]);
        let (k, v) = (&head.k[key_block.clone()], &head.v[key_block.clone()]);
        strided_serial(rows, n, dh, shape.scale(), (q, dh, 1), (k, 1, dh), 0.0, (p, n));
        strided_serial(rows, n, dh, 1.0, (g, dh, 1), (v, 1, dh), 0.0, (ds, n));
        vectorised(
            #[inline(always)]
            || {
                for (r, (p, ds)) in p.chunks_exact_mut(n).zip(ds.chunks_exact_mut(n)).enumerate() {
                    let reach = shape.reach(i0 + r);
                    let live = reach.start - keys.start..reach.end - keys.start;
                    let delta: f32 = (0..dh).map(|c| g[r * dh + c] * out[r * dh + c]).sum();
                    let lse = head.lse[i0 + r];
                    p[..live.start].fill(0.0);
                    p[live.end..].fill(0.0);
                    ds[..live.start].fill(0.0);
                    ds[live.end..].fill(0.0);
                    for (p, ds) in p[live.clone()].iter_mut().zip(&mut ds[live]) {
                        *p = exp(*p - lse);
                        *ds = *p * (*ds - delta) * shape.scale();
                    }
                }
            },
        );
        strided_serial(rows, dh, n, 1.0, (ds, n, 1), (k, dh, 1), 0.0, (&mut gq[block], dh));
        strided_serial(n, dh, rows, 1.0, (ds, 1, n), (q, dh, 1), 1.0, (&mut gk[key_block.clone()], dh));
        strided_serial(n, dh, rows, 1.0, (p, 1, n), (g, dh, 1), 1.0, (&mut gv[key_block], dh));
    }
}
