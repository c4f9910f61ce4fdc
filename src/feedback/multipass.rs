//! Several passes over one batch: pass 1 is ordinary, pass k takes inputs fused with the states of pass k - 1.
//! Gradients flow through the states into the earlier passes.

use candle_core::{D, Tensor};

use super::{Plan, Tuned};
use crate::error::{Error, Result};
use crate::kernels::fuse::FuseShape;
use crate::model::{RunOptions, Segments};
use crate::recipe::Group;

/// States `[N, D]` of each pass, `plan.passes()` of them, without gradients or dropout.
pub fn passes(tuned: &Tuned, ids: &[u32], offsets: &[usize], plan: &Plan) -> Result<Vec<Tensor>> {
    passes_with(tuned, ids, offsets, plan, &[], |_| RunOptions::default())
}

/// As [`passes`], with gradients to the groups in `train` and trunk options for each pass (from 1).
pub fn passes_with(
    tuned: &Tuned,
    ids: &[u32],
    offsets: &[usize],
    plan: &Plan,
    train: &[Group],
    options: impl Fn(usize) -> RunOptions,
) -> Result<Vec<Tensor>> {
    let base = &tuned.base;
    let embeddings = base.embed(ids)?;
    let segments = Segments::whole(offsets);
    let train_adapters = train.contains(&Group::Lora);
    let run = |inputs: &Tensor, pass: usize| {
        base.trunk(inputs, &segments, tuned.lora.as_ref(), &RunOptions { train_adapters, ..options(pass) })
    };
    let mut states = vec![run(&embeddings, 1)?];
    for pass in 2..=plan.passes() {
        let feedback = tuned.feedback.as_ref();
        let feedback = feedback.ok_or_else(|| Error::Internal("a later pass without feedback weights".into()))?;
        let rows = plan.rows(offsets, pass);
        let noise = plan.noise(offsets, pass, &rows, base.config().hidden_size);
        let previous = states.last().expect("pass 1 ran");
        let inputs = feedback.fuse(&embeddings, previous, &rows, noise, train.contains(&Group::Feedback))?;
        states.push(run(&inputs, pass)?);
    }
    Ok(states)
}

/// Fusion in composed operations for other devices.
pub(super) fn fuse_composed(
    shape: FuseShape,
    embeddings: &Tensor,
    states: &Tensor,
    rows: &[usize],
    jitter: Option<Vec<f32>>,
    theta: &Tensor,
) -> Result<Tensor> {
    if rows.is_empty() {
        return Ok(embeddings.clone());
    }
    let device = embeddings.device();
    let before = Tensor::from_iter(rows.iter().map(|&row| row as u32 - 1), device)?;
    let at = Tensor::from_iter(rows.iter().map(|&row| row as u32), device)?;
    let e = embeddings.index_select(&at, 0)?;
    let jitter = jitter.map(|j| Tensor::from_vec(j, e.shape(), device)).transpose()?;
    let fused = fuse_rows(shape, &e, &states.index_select(&before, 0)?, jitter.as_ref(), theta)?;
    Ok(embeddings.index_add(&at, &(fused - e)?, 0)?)
}

pub(super) fn fuse_rows(
    shape: FuseShape,
    e: &Tensor,
    h: &Tensor,
    jitter: Option<&Tensor>,
    theta: &Tensor,
) -> Result<Tensor> {
    let rms = |x: &Tensor| x.broadcast_div(&(x.sqr()?.mean_keepdim(D::Minus1)? + shape.eps as f64)?.sqrt()?);
    let d = shape.hidden;
    let part = |range: std::ops::Range<usize>| theta.narrow(0, range.start, range.len());
    let mut s = rms(h)?;
    if let Some(jitter) = jitter {
        s = (s + jitter)?;
    }
    let v = s.matmul(&part(shape.state_proj())?.reshape((d, d))?.t()?)?;
    let z = rms(e)?.matmul(&part(shape.token_gate())?.reshape((d, d))?.t()?)?;
    let sigmoid = (z.neg()?.exp()? + 1.0)?.recip()?;
    let gate = if shape.signed { ((sigmoid * 2.0)? - 1.0)? } else { sigmoid };
    let product = (v * gate)?;
    let norm = part(shape.norm())?;
    if shape.residual { Ok((e + product.broadcast_mul(&norm)?)?) } else { Ok(rms(&product)?.broadcast_mul(&norm)?) }
}
