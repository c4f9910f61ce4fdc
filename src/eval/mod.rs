//! What a model is worth: losses per decode mode over given documents (validation during training, `eval`), contraction.

mod contraction;

pub use contraction::contraction;

use candle_core::Tensor;

use crate::corpus::{Batch, Example, plan_evaluation};
use crate::error::{Error, Result};
use crate::feedback::{Feedback, Plan, Tuned, passes};
use crate::model::Predicted;
use crate::recipe::Mode;

/// Mean over all trained tokens of all documents, however they are batched.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModeLoss {
    /// Nats per token.
    pub loss: f64,
    /// Trained tokens: completions, assistant turns, all but the first of a `text` document.
    pub tokens: usize,
}

/// The loss in one mode, see [`losses_by_mode`].
pub fn losses(
    tuned: &Tuned,
    examples: &[Example],
    batch_tokens: usize,
    mode: Mode,
    prefill: usize,
) -> Result<ModeLoss> {
    Ok(losses_by_mode(tuned, examples, batch_tokens, &[mode], prefill)?[0].1)
}

/// Losses of the given documents, teacher-forced, without noise:
/// - STANDARD: pass 1;
/// - FUSED: pass `1 + prefill`, every position but each document's first fused in the passes after the first;
/// - SOFT: pass 2 with the prompts plain.
///
/// The passes that modes share are run once. `batch_tokens` bounds the tokens that are run at a time; it does not
/// change results. Later passes without feedback weights are refused.
pub fn losses_by_mode(
    tuned: &Tuned,
    examples: &[Example],
    batch_tokens: usize,
    modes: &[Mode],
    prefill: usize,
) -> Result<Vec<(Mode, ModeLoss)>> {
    if let Some(mode) = modes.iter().find(|&&mode| mode != Mode::Standard && tuned.feedback.is_none()) {
        return Err(Error::Usage(format!("mode {mode:?} needs feedback weights, which the model does not have")));
    }
    // A fusion that adds nothing leaves one pass to run, whatever the mode.
    let silent = tuned.feedback.as_ref().map_or(Ok(false), Feedback::adds_nothing)?;
    let lengths: Vec<usize> = examples.iter().map(|example| example.ids.len()).collect();
    let mut sums = vec![(0.0, 0); modes.len()];
    for documents in plan_evaluation(&lengths, batch_tokens) {
        let batch = Batch::pack(documents.iter().map(|&i| (i as u64, &examples[i])));
        for (mode, nll, tokens) in batch_losses(tuned, &batch, modes, prefill, silent)? {
            for (sum, _) in sums.iter_mut().zip(modes).filter(|(_, m)| **m == mode) {
                *sum = (sum.0 + nll, sum.1 + tokens);
            }
        }
    }
    let mean = |(nll, tokens): (f64, usize)| ModeLoss { loss: nll / tokens.max(1) as f64, tokens };
    Ok(modes.iter().zip(sums).map(|(&mode, sum)| (mode, mean(sum))).collect())
}

/// Mode, sum of token losses, tokens.
fn batch_losses(
    tuned: &Tuned,
    batch: &Batch,
    modes: &[Mode],
    prefill: usize,
    silent: bool,
) -> Result<Vec<(Mode, f64, usize)>> {
    let targets = batch.targets(0.0);
    let predicted = Predicted { positions: &targets.positions, tokens: &targets.tokens };
    let sum = |state: &Tensor| -> Result<f64> {
        Ok(tuned.base.token_losses(state, predicted)?.iter().map(|&nll| nll as f64).sum())
    };
    let run = |plan: Plan| passes(tuned, &batch.ids, &batch.offsets, &plan);
    let count = targets.tokens.len();
    if silent {
        let loss = sum(&run(Plan::default())?[0])?;
        return Ok(modes.iter().map(|&mode| (mode, loss, count)).collect());
    }
    let (standard, fused) = (modes.contains(&Mode::Standard), modes.contains(&Mode::Fused));
    let mut out = Vec::new();
    if modes.contains(&Mode::Soft) {
        let states = run(Plan::prompts(batch, 2))?;
        out.push((Mode::Soft, sum(&states[1])?, count));
        if standard && !fused {
            out.push((Mode::Standard, sum(&states[0])?, count));
            return Ok(out);
        }
    }
    if standard || fused {
        let states = run(Plan::fused(batch, if fused { prefill + 1 } else { 1 }))?;
        if standard {
            out.push((Mode::Standard, sum(&states[0])?, count));
        }
        if let (true, Some(last)) = (fused, states.last()) {
            out.push((Mode::Fused, sum(last)?, count));
        }
    }
    Ok(out)
}
