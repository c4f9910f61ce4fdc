//! Warm start of a `replace` fusion on a pretrained base: fitted so that the fused pass reproduces the base's own
//! embeddings before training begins. Pairs `(h_{t-1}, e_t)` of the corpus are collected from plain runs of the base;
//! then, without a backward pass through the transformer,
//! 1. with the signed gate `W_U` is the ridge solution of `W_U s = 1` and `W_G` the identity: the value path gives ones
//!    and the gate `tanh(rms(e) / 2)`, nearly `e`'s direction;
//! 2. some hundred Adam steps over random pairs lower `|fused - e|^2 / |e|^2`, with a cosine down to 0.
//!
//! Everything is computed on the host, once.

use super::Feedback;
use crate::error::{Error, Result};
use crate::kernels::adamw::{Update, adamw};
use crate::kernels::fuse::{self, FuseShape};
use crate::kernels::{elementwise, gemm};
use crate::model::{Model, RunOptions, Segments};
use crate::random::{Key, Purpose};

/// Tokens of the corpus that the base is run over.
const TOKENS: usize = 40_000;
/// Pairs that are kept, and the numbers that they may take (256 MB each for states and embeddings).
const PAIRS: usize = 20_000;
const NUMBERS: usize = 64 << 20;
const STEPS: usize = 400;
/// Pairs in an Adam step.
const BATCH: usize = 512;
const LR: f64 = 1e-3;
/// Ridge, as a share of the mean square of the states.
const RIDGE: f64 = 1e-3;

/// How well the fused inputs reproduce the embeddings: the mean of `|fused - e|^2 / |e|^2`, which is 1 for fused
/// inputs of 0.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Fit {
    pub pairs: usize,
    pub before: f64,
    /// After the closed form; equal to `before` with the sigmoid gate.
    pub solved: f64,
    pub after: f64,
}

/// Carried states and the embeddings of the tokens after them.
struct Pairs {
    d: usize,
    /// `[P, D]` each.
    states: Vec<f32>,
    embeddings: Vec<f32>,
}

/// Fits `feedback` (form `replace`) to `base` over the given documents' token ids, run in order with up to
/// `batch_tokens` tokens at a time.
pub fn warm_start<'a>(
    base: &Model,
    feedback: &Feedback,
    documents: impl Iterator<Item = &'a [u32]>,
    batch_tokens: usize,
    seed: u64,
) -> Result<Fit> {
    let shape = feedback.shape();
    if shape.residual {
        return Err(Error::Internal("a residual fusion needs no warm start".into()));
    }
    let pairs = Pairs::collect(base, documents, batch_tokens, seed)?;
    if pairs.len() == 0 {
        return Err(Error::Usage("feedback.init = \"warm_start\": no document has two tokens".into()));
    }
    let mut theta = feedback.params.values()?;
    let before = pairs.error(shape, &theta);
    if shape.signed {
        solve(shape, &pairs, &mut theta)?;
    }
    let solved = pairs.error(shape, &theta);
    descend(shape, &pairs, &mut theta, seed);
    let after = pairs.error(shape, &theta);
    if !after.is_finite() {
        return Err(Error::Diverged { step: 0, message: format!("the warm start's error is {after}") });
    }
    feedback.params.set(theta)?;
    Ok(Fit { pairs: pairs.len(), before, solved, after })
}

impl Pairs {
    fn collect<'a>(
        base: &Model,
        documents: impl Iterator<Item = &'a [u32]>,
        batch_tokens: usize,
        seed: u64,
    ) -> Result<Self> {
        let mut tokens = 0;
        let documents: Vec<&[u32]> = documents
            .filter(|ids| ids.len() > 1)
            .take_while(|ids| {
                tokens += ids.len();
                tokens <= TOKENS || tokens == ids.len()
            })
            .collect();
        let d = base.config().hidden_size;
        let total: usize = documents.iter().map(|ids| ids.len() - 1).sum();
        let wanted = total.min(PAIRS).min(NUMBERS / d);
        let mut kept = vec![false; total];
        let order = Key::new(seed, Purpose::WarmStart).permutation(total);
        order[..wanted].iter().for_each(|&pair| kept[pair] = true);

        let mut pairs = Self { d, states: Vec::new(), embeddings: Vec::new() };
        let mut kept = kept.into_iter();
        let mut rest = &documents[..];
        while !rest.is_empty() {
            let mut n = 0;
            let fits = |ids: &&&[u32]| {
                n += ids.len();
                n <= batch_tokens
            };
            let count = rest.iter().take_while(fits).count().max(1);
            pairs.run(base, &rest[..count], &mut kept)?;
            rest = &rest[count..];
        }
        Ok(pairs)
    }

    /// Runs the base over some documents and adds the pairs that `kept` picks.
    fn run(&mut self, base: &Model, documents: &[&[u32]], kept: &mut impl Iterator<Item = bool>) -> Result<()> {
        let ids = documents.concat();
        let mut offsets = vec![0];
        for document in documents {
            offsets.push(offsets[offsets.len() - 1] + document.len());
        }
        let inputs = base.embed(&ids)?;
        let states = base.trunk(&inputs, &Segments::whole(&offsets), None, &RunOptions::default())?;
        let states = states.flatten_all()?.to_vec1::<f32>()?;
        let inputs = inputs.flatten_all()?.to_vec1::<f32>()?;
        let d = self.d;
        for document in offsets.windows(2) {
            for t in document[0] + 1..document[1] {
                if kept.next() == Some(true) {
                    self.states.extend_from_slice(&states[(t - 1) * d..t * d]);
                    self.embeddings.extend_from_slice(&inputs[t * d..(t + 1) * d]);
                }
            }
        }
        Ok(())
    }

    fn len(&self) -> usize {
        self.states.len() / self.d
    }

    fn rows(&self, rows: std::ops::Range<usize>) -> (&[f32], &[f32]) {
        let range = rows.start * self.d..rows.end * self.d;
        (&self.states[range.clone()], &self.embeddings[range])
    }

    fn error(&self, shape: FuseShape, theta: &[f32]) -> f64 {
        let mut sum = 0.0;
        for start in (0..self.len()).step_by(BATCH) {
            let (h, e) = self.rows(start..(start + BATCH).min(self.len()));
            let fused = fuse::forward(shape, theta, h, e, None).0;
            sum += fused.chunks_exact(self.d).zip(e.chunks_exact(self.d)).map(|(f, e)| relative(f, e)).sum::<f64>();
        }
        sum / self.len() as f64
    }
}

/// `|f - e|^2 / |e|^2`
fn relative(f: &[f32], e: &[f32]) -> f64 {
    let off: f64 = f.iter().zip(e).map(|(f, e)| ((f - e) as f64).powi(2)).sum();
    off / square(e)
}

fn square(e: &[f32]) -> f64 {
    e.iter().map(|&x| (x as f64).powi(2)).sum::<f64>().max(f64::MIN_POSITIVE)
}

/// Every row of `W_U` is the `w` that minimises `sum (w s - 1)^2 + ridge |w|^2`; `W_G` is the identity.
fn solve(shape: FuseShape, pairs: &Pairs, theta: &mut [f32]) -> Result<()> {
    let d = shape.hidden;
    let mut s = vec![0.0; pairs.states.len()];
    elementwise::rms_norm(&pairs.states, &vec![1.0; d], shape.eps, &mut s);
    let mut gram = vec![0.0; d * d];
    gemm::tn(d, d, pairs.len(), 1.0, &s, &s, 0.0, &mut gram);
    let mut matrix: Vec<f64> = gram.iter().map(|&x| x as f64).collect();
    let mut w = vec![0f64; d];
    for row in s.chunks_exact(d) {
        w.iter_mut().zip(row).for_each(|(w, &s)| *w += s as f64);
    }
    let trace: f64 = (0..d).map(|i| matrix[i * d + i]).sum();
    (0..d).for_each(|i| matrix[i * d + i] += RIDGE * trace / d as f64);
    cholesky_solve(&mut matrix, &mut w)?;
    let row: Vec<f32> = w.iter().map(|&w| w as f32).collect();
    theta[shape.state_proj()].chunks_exact_mut(d).for_each(|out| out.copy_from_slice(&row));
    theta[shape.token_gate()].chunks_exact_mut(d).enumerate().for_each(|(i, out)| {
        out.fill(0.0);
        out[i] = 1.0;
    });
    Ok(())
}

/// Solves `a x = b` for a symmetric positive definite `a [n, n]`; `b` becomes x, `a` its lower factor.
fn cholesky_solve(a: &mut [f64], b: &mut [f64]) -> Result<()> {
    let n = b.len();
    for j in 0..n {
        let (done, rest) = a.split_at_mut(j * n);
        let row_j = &mut rest[..n];
        for k in 0..j {
            let row_k = &done[k * n..k * n + k];
            let dot: f64 = row_j[..k].iter().zip(row_k).map(|(x, y)| x * y).sum();
            row_j[k] = (row_j[k] - dot) / done[k * n + k];
        }
        let pivot = row_j[j] - row_j[..j].iter().map(|x| x * x).sum::<f64>();
        if pivot.is_nan() || pivot <= 0.0 {
            return Err(Error::Diverged { step: 0, message: "the warm start's least squares cannot be solved".into() });
        }
        row_j[j] = pivot.sqrt();
    }
    for i in 0..n {
        let dot: f64 = (0..i).map(|k| a[i * n + k] * b[k]).sum();
        b[i] = (b[i] - dot) / a[i * n + i];
    }
    for i in (0..n).rev() {
        let dot: f64 = (i + 1..n).map(|k| a[k * n + i] * b[k]).sum();
        b[i] = (b[i] - dot) / a[i * n + i];
    }
    Ok(())
}

fn descend(shape: FuseShape, pairs: &Pairs, theta: &mut [f32], seed: u64) {
    let d = shape.hidden;
    let key = Key::new(seed, Purpose::WarmStart);
    let (mut m, mut v) = (vec![0.0; theta.len()], vec![0.0; theta.len()]);
    let mut gradient = vec![0.0; theta.len()];
    let n = BATCH.min(pairs.len());
    let (mut h, mut e) = (Vec::with_capacity(n * d), Vec::with_capacity(n * d));
    for step in 0..STEPS {
        h.clear();
        e.clear();
        for i in 0..n as u64 {
            let pair = key.at(step as u64).below(i, pairs.len() as u64) as usize;
            let (state, embedding) = pairs.rows(pair..pair + 1);
            h.extend_from_slice(state);
            e.extend_from_slice(embedding);
        }
        let (mut g, saved) = fuse::forward(shape, theta, &h, &e, None);
        for (g, e) in g.chunks_exact_mut(d).zip(e.chunks_exact(d)) {
            let scale = (2.0 / (square(e) * n as f64)) as f32;
            g.iter_mut().zip(e).for_each(|(g, e)| *g = (*g - e) * scale);
        }
        gradient.fill(0.0);
        fuse::backward(shape, theta, &h, &saved, &g, false, Some(&mut gradient));
        let lr = LR * 0.5 * (1.0 + (std::f64::consts::PI * step as f64 / STEPS as f64).cos());
        let update = Update { lr, weight_decay: 0.0, step: step as u64 + 1, scale: 1.0 };
        adamw(update, &gradient, theta, &mut m, &mut v);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_is_solved() {
        let x = [1.0, -2.0, 0.5];
        let a = [4.0, 2.0, 1.0, 2.0, 5.0, 3.0, 1.0, 3.0, 6.0];
        let mut b: Vec<f64> = a.chunks(3).map(|row| row.iter().zip(x).map(|(a, x)| a * x).sum()).collect();
        cholesky_solve(&mut a.clone(), &mut b).unwrap();
        assert!(b.iter().zip(x).all(|(b, x)| (b - x).abs() < 1e-12), "{b:?}");
        assert!(cholesky_solve(&mut [1.0, 2.0, 2.0, 1.0], &mut [1.0, 1.0]).is_err());
    }
}
