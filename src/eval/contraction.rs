//! Contraction trace: how much repeated fused passes still change the states.

use candle_core::D;

use crate::error::Result;
use crate::feedback::{Plan, Tuned, passes};
use crate::model::{RunOptions, Segments};

/// `rms(s^(k) - s^(k-1))` for k = 2..=`last`, `s` the normalised states, over documents of a flat batch with all
/// positions but each document's first fused. Falling and flat: a stable map.
pub fn contraction(tuned: &Tuned, ids: &[u32], offsets: &[usize], last: usize) -> Result<Vec<f64>> {
    let eps = tuned.base.config().rms_norm_eps;
    let carried = |states: &candle_core::Tensor| -> Result<candle_core::Tensor> {
        Ok(states.broadcast_div(&(states.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?)?)
    };
    let plan = Plan::fixed(Vec::new());
    let mut states = passes(tuned, ids, offsets, &plan)?.remove(0);
    let embeddings = tuned.base.embed(ids)?;
    let segments = Segments::whole(offsets);
    let rows: Vec<usize> = offsets.windows(2).flat_map(|w| w[0] + 1..w[1]).collect();
    let mut trace = Vec::new();
    if let Some(feedback) = &tuned.feedback {
        for _ in 2..=last {
            let inputs = feedback.fuse(&embeddings, &states, &rows, None, false)?;
            let next = tuned.base.trunk(&inputs, &segments, tuned.lora.as_ref(), &RunOptions::default())?;
            let change = (carried(&next)? - carried(&states)?)?;
            trace.push((change.sqr()?.mean_all()?.to_scalar::<f32>()? as f64).sqrt());
            states = next;
        }
    }
    Ok(trace)
}
