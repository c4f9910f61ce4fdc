//! A flat batch: tokens of several documents one after the other, with offsets. Padding does not exist.

use super::Example;

/// Documents packed into one flat run of `N` tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// `[N]`
    pub ids: Vec<u32>,
    /// `[docs + 1]`, first 0, last `N` (`cu_seqlens`).
    pub offsets: Vec<usize>,
    /// `[N]`, see [`Example::trained`].
    pub trained: Vec<bool>,
    /// `[docs]`
    pub prompt_lens: Vec<usize>,
    /// `[docs]`: each document's index in its corpus, the identity that its randomness derives from.
    pub documents: Vec<u64>,
}

/// What is predicted: the state at `positions[i]` predicts `tokens[i]`, which counts `weights[i]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Targets {
    /// `[M]`, rows of the flat batch, rising.
    pub positions: Vec<u32>,
    /// `[M]`
    pub tokens: Vec<u32>,
    /// `[M]`, greater than 0.
    pub weights: Vec<f32>,
}

impl Targets {
    pub fn weight_sum(&self) -> f64 {
        self.weights.iter().map(|&w| w as f64).sum()
    }
}

impl Batch {
    /// Packs `documents` (index in the corpus, example) in the given order.
    pub fn pack<'a>(documents: impl IntoIterator<Item = (u64, &'a Example)>) -> Self {
        let mut batch = Self { offsets: vec![0], ..Self::default() };
        for (index, example) in documents {
            batch.ids.extend_from_slice(&example.ids);
            batch.trained.extend_from_slice(&example.trained);
            batch.offsets.push(batch.ids.len());
            batch.prompt_lens.push(example.prompt_len);
            batch.documents.push(index);
        }
        batch
    }

    pub fn len(&self) -> usize {
        self.ids.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Labels shifted by one inside each document: trained tokens weigh 1, the others `prompt_weight`; those that
    /// weigh nothing are left out.
    pub fn targets(&self, prompt_weight: f32) -> Targets {
        let mut targets = Targets::default();
        for document in self.offsets.windows(2) {
            for t in document[0] + 1..document[1] {
                let weight = if self.trained[t] { 1.0 } else { prompt_weight };
                if weight > 0.0 {
                    targets.positions.push(t as u32 - 1);
                    targets.tokens.push(self.ids[t]);
                    targets.weights.push(weight);
                }
            }
        }
        targets
    }
}
