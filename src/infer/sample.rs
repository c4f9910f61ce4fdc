//! Picks a token from logits: greedy, or temperature with top-k and top-p, after a repetition penalty.

use crate::random::{Key, Purpose};

/// How the next token is chosen. The default is greedy.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0: the most likely token.
    pub temperature: f64,
    /// Most likely tokens that stay; 0: all.
    pub top_k: usize,
    /// Smallest set of tokens with this probability stays; 1: all.
    pub top_p: f64,
    /// Logits of tokens already seen are divided by this where positive and multiplied where negative (Keskar et al.
    /// 2019); 1: none.
    pub repetition_penalty: f64,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0, seed: 42 }
    }
}

impl Sampling {
    /// The next token after `prompt` and `tokens`, from `logits [V]`.
    pub fn pick(&self, mut logits: Vec<f32>, prompt: &[u32], tokens: &[u32]) -> u32 {
        if self.repetition_penalty != 1.0 {
            let mut seen: Vec<u32> = prompt.iter().chain(tokens).copied().collect();
            seen.sort_unstable();
            seen.dedup();
            for token in seen {
                let logit = &mut logits[token as usize];
                let penalty = self.repetition_penalty as f32;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        if self.temperature <= 0.0 {
            return argmax(&logits);
        }
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        if self.top_k > 0 {
            order.truncate(self.top_k);
        }
        let top = logits[order[0] as usize] as f64;
        let mut weights: Vec<f64> =
            order.iter().map(|&t| ((logits[t as usize] as f64 - top) / self.temperature).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let mut kept = 0.0;
        let cut = weights.iter().position(|w| {
            kept += w / sum;
            kept >= self.top_p
        });
        weights.truncate(cut.map_or(weights.len(), |cut| cut + 1));
        let mut draw = Key::new(self.seed, Purpose::Sampling).unit(tokens.len() as u64) * weights.iter().sum::<f64>();
        for (weight, &token) in weights.iter().zip(&order) {
            draw -= weight;
            if draw < 0.0 {
                return token;
            }
        }
        order[weights.len() - 1]
    }
}

/// The first of the largest.
fn argmax(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = i;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(Sampling::default().pick(vec![0.0, 2.0, 2.0], &[], &[]), 1);
    }

    #[test]
    fn top_k_and_top_p_cut_the_tail() {
        let logits = vec![1.0, 3.0, 2.0, 0.0];
        for seed in 0..200 {
            let by_k = Sampling { temperature: 5.0, top_k: 2, seed, ..Sampling::default() };
            assert!([1, 2].contains(&by_k.pick(logits.clone(), &[], &[])));
            let by_p = Sampling { temperature: 1.0, top_p: 0.5, seed, ..Sampling::default() };
            assert_eq!(by_p.pick(logits.clone(), &[], &[]), 1);
        }
    }

    #[test]
    fn frequencies_follow_the_softmax() {
        let logits = vec![0.0, (3f32).ln()];
        let draws = 4000;
        let ones = (0..draws)
            .filter(|&seed| {
                Sampling { temperature: 1.0, seed, ..Sampling::default() }.pick(logits.clone(), &[], &[]) == 1
            })
            .count();
        let share = ones as f64 / draws as f64;
        assert!((share - 0.75).abs() < 0.03, "{share}");
    }

    #[test]
    fn a_repetition_penalty_pushes_seen_tokens_down() {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        assert_eq!(sampling.pick(vec![1.0, 1.5], &[1], &[]), 0);
        assert_eq!(sampling.pick(vec![-1.0, -0.9], &[], &[1]), 0);
    }
}
