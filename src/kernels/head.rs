//! Head and loss together: only the positions that are predicted enter, in chunks of rows, and the gradient with
//! respect to the state is made in the same sweep; `[M, vocab]` never exists.

use rayon::prelude::*;

use super::attention::{exponentials, max};
use super::packed::PackedWeight;
use super::pool::Buffer;
use super::profile::{Part, timed};
use super::simd::vectorised;

/// Rows whose logits exist at the same time: the head's weights are read once for so many.
pub const CHUNK: usize = 256;

pub struct Loss {
    /// `[M]`: `-log p(token)`, in nats.
    pub nll: Vec<f32>,
    /// `[M, D]`: gradient of `sum_i weights[i] * nll[i]` with respect to the states.
    pub gradient: Option<Vec<f32>>,
}

/// Token losses at `states [M, D]`, and with `weights [M]` their weighted sum's gradient.
pub fn loss(head: &PackedWeight, states: &[f32], tokens: &[u32], weights: Option<&[f32]>) -> Loss {
    timed(Part::Head, || loss_of(head, states, tokens, weights))
}

fn loss_of(head: &PackedWeight, states: &[f32], tokens: &[u32], weights: Option<&[f32]>) -> Loss {
    let (d, vocab) = (head.in_features(), head.out_features());
    let m = tokens.len();
    assert_eq!(states.len(), m * d);
    let mut nll = vec![0.0; m];
    let mut gradient = weights.map(|_| vec![0.0; m * d]);
    for start in (0..m).step_by(CHUNK) {
        let rows = start..(start + CHUNK).min(m);
        let mut logits = Buffer::scratch(rows.len() * vocab);
        head.forward(&states[rows.start * d..rows.end * d], rows.len(), &mut logits);
        logits.par_chunks_mut(vocab).zip(&mut nll[rows.clone()]).zip(&tokens[rows.clone()]).enumerate().for_each(
            |(i, ((row, nll), &token))| {
                let weight = weights.map(|w| w[start + i]);
                *nll = row_loss(row, token as usize, weight);
            },
        );
        if let Some(gradient) = &mut gradient {
            head.backward(&logits, rows.len(), &mut gradient[rows.start * d..rows.end * d], false);
        }
    }
    Loss { nll, gradient }
}

/// Loss of one row of logits; with a weight the row becomes its gradient, `weight * (softmax - onehot)`.
fn row_loss(row: &mut [f32], token: usize, weight: Option<f32>) -> f32 {
    vectorised(
        #[inline(always)]
        || {
            let top = max(row);
            let target = row[token];
            let sum = exponentials(row, top);
            if let Some(weight) = weight {
                let scale = weight / sum;
                row.iter_mut().for_each(|x| *x *= scale);
                row[token] -= weight;
            }
            sum.ln() + top - target
        },
    )
}
