//! What of a step's later passes is fused: prefix mixin and jitter, drawn from seed, step and document alone.

use crate::corpus::Batch;
use crate::random::{Key, Purpose};
use crate::recipe::Prefix;

/// The later passes over one batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// `[K - 1][docs]`: length of the plain prefix of each document, at least 1; the rest is fused.
    pub cuts: Vec<Vec<usize>>,
    /// Half width of the uniform noise on the carried state; 0: none.
    pub jitter: f64,
    key: Option<Key>,
    documents: Vec<u64>,
}

impl Plan {
    /// Given cuts, no jitter: validation, decoding, tests.
    pub fn fixed(cuts: Vec<Vec<usize>>) -> Self {
        Self { cuts, ..Self::default() }
    }

    /// Every position but each document's first is fused, as FUSED prefill does.
    pub fn fused(batch: &Batch, passes: usize) -> Self {
        Self::fixed(vec![vec![1; batch.documents.len()]; passes - 1])
    }

    /// The prompts stay plain, as in SOFT.
    pub fn prompts(batch: &Batch, passes: usize) -> Self {
        Self::fixed(vec![batch.prompt_lens.clone(); passes - 1])
    }

    /// A training step's draw.
    pub fn draw(batch: &Batch, passes: usize, prefix: Prefix, jitter: f64, seed: u64, step: usize) -> Self {
        let cuts = (2..=passes as u64)
            .map(|pass| {
                let documents = batch.offsets.windows(2).zip(&batch.documents).zip(&batch.prompt_lens);
                documents
                    .map(|((w, &document), &prompt)| match prefix {
                        Prefix::None => 1,
                        Prefix::Prompt => prompt,
                        Prefix::Random => {
                            let key = Key::new(seed, Purpose::PrefixCut).at(step as u64).at(document);
                            1 + key.below(pass, (w[1] - w[0]) as u64) as usize
                        }
                    })
                    .collect()
            })
            .collect();
        let key = Key::new(seed, Purpose::Jitter).at(step as u64);
        Self { cuts, jitter, key: Some(key), documents: batch.documents.clone() }
    }

    /// Number of passes.
    pub fn passes(&self) -> usize {
        self.cuts.len() + 1
    }

    /// Rows of the flat batch that `pass` (from 2) fuses.
    pub fn rows(&self, offsets: &[usize], pass: usize) -> Vec<usize> {
        let documents = offsets.windows(2).zip(&self.cuts[pass - 2]);
        documents.flat_map(|(w, &cut)| w[0] + cut.max(1)..w[1]).collect()
    }

    /// `[rows, D]`: noise on the carried states of `rows` in `pass`.
    pub fn noise(&self, offsets: &[usize], pass: usize, rows: &[usize], d: usize) -> Option<Vec<f32>> {
        let key = self.key.filter(|_| self.jitter > 0.0)?;
        let mut noise = Vec::with_capacity(rows.len() * d);
        let mut document = 0;
        for &row in rows {
            while row >= offsets[document + 1] {
                document += 1;
            }
            let position = (row - offsets[document]) as u64;
            let key = key.at(self.documents[document]).at(pass as u64).at(position);
            noise.extend((0..d as u64).map(|i| ((key.unit(i) * 2.0 - 1.0) * self.jitter) as f32));
        }
        Some(noise)
    }
}
