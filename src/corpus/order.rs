//! The order of training: which documents make which micro-batch of which optimiser step.
//!
//! All of it is a function of the documents' lengths, the recipe and the seed. A resumed run asks for the step it needs
//! and gets what the undisturbed run would have had: nothing is skipped, replayed or remembered.

use std::sync::{Arc, Mutex, PoisonError};

use super::pack::{in_sequence, pack};
use crate::random::{Key, Purpose};
use crate::recipe::Length;

/// The micro-batches of an epoch, each a list of indices into `lengths`; every document is in exactly one. A document
/// longer than `batch_tokens` has a micro-batch to itself; the last one may be small; nothing is left out.
///
/// `packing`: documents fill micro-batches up (the order stays random). Without, they follow each other in shuffled
/// order and a micro-batch ends where the next document does not fit.
pub fn plan_epoch(lengths: &[usize], batch_tokens: usize, packing: bool, seed: u64, epoch: usize) -> Vec<Vec<usize>> {
    let order = Key::new(seed, Purpose::Shuffle).at(epoch as u64).permutation(lengths.len());
    if packing { pack(lengths, &order, batch_tokens) } else { in_sequence(lengths, order, batch_tokens) }
}

/// Micro-batches for evaluation: all documents, in the corpus's own order.
pub fn plan_evaluation(lengths: &[usize], batch_tokens: usize) -> Vec<Vec<usize>> {
    in_sequence(lengths, 0..lengths.len(), batch_tokens)
}

/// All optimiser steps of a run.
#[derive(Debug)]
pub struct Plan {
    lengths: Vec<usize>,
    batch_tokens: usize,
    accumulate: usize,
    packing: bool,
    seed: u64,
    /// `[epochs + 1]`: the first step of each epoch, then the number of steps. The last epoch may be broken off.
    starts: Vec<usize>,
    /// The epoch that was asked for last: steps come one after the other.
    recent: Mutex<Option<(usize, EpochBatches)>>,
}

type EpochBatches = Arc<Vec<Vec<usize>>>;

/// What an optimiser step is made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub epoch: usize,
    /// 1 to `accumulate` lists of document indices; fewer than `accumulate` only at the end of an epoch.
    pub micro_batches: Vec<Vec<usize>>,
}

impl Plan {
    /// `lengths`: tokens of each document, at least one; `batch_tokens` and `accumulate` at least 1. A step never reaches
    /// over the end of an epoch. A fraction of an epoch is rounded up to whole steps; every run has at least one step.
    pub fn new(
        lengths: Vec<usize>,
        batch_tokens: usize,
        accumulate: usize,
        packing: bool,
        seed: u64,
        length: Length,
    ) -> Self {
        let accumulate = accumulate.max(1);
        let mut plan =
            Self { lengths, batch_tokens, accumulate, packing, seed, starts: vec![0], recent: Mutex::new(None) };
        let mut steps = 0;
        for epoch in 0.. {
            // Packing fills an epoch's micro-batches according to its order, so epochs may differ in their number.
            let whole = plan.batches(epoch).len().div_ceil(accumulate);
            let (taken, last) = match length {
                Length::Steps(n) => (whole.min(n.max(1) - steps), steps + whole >= n),
                Length::Epochs(n) => {
                    let left = n - epoch as f64;
                    let share = (left.min(1.0) * whole as f64 - 1e-9).ceil().max(0.0) as usize;
                    (share.max(usize::from(steps == 0)), left <= 1.0)
                }
            };
            steps += taken;
            if taken > 0 {
                plan.starts.push(steps);
            }
            if last || whole == 0 {
                break;
            }
        }
        plan
    }

    pub fn total_steps(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Epochs that are begun.
    pub fn epochs(&self) -> usize {
        self.starts.len() - 1
    }

    /// Steps of an epoch, all of them counted even where the run ends within it.
    pub fn steps_of_epoch(&self, epoch: usize) -> usize {
        self.batches(epoch).len().div_ceil(self.accumulate)
    }

    pub fn micro_batches_of_epoch(&self, epoch: usize) -> usize {
        self.batches(epoch).len()
    }

    /// The micro-batches of a step, `step < total_steps`. Steps count from 0.
    pub fn step(&self, step: usize) -> Step {
        let epoch = self.starts.partition_point(|&start| start <= step).saturating_sub(1);
        let batches = self.batches(epoch);
        let from = ((step - self.starts[epoch]) * self.accumulate).min(batches.len());
        let to = (from + self.accumulate).min(batches.len());
        Step { epoch, micro_batches: batches[from..to].to_vec() }
    }

    fn batches(&self, epoch: usize) -> EpochBatches {
        // A poisoned lock still holds a whole value: it is replaced in one go.
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        match &*recent {
            Some((known, batches)) if *known == epoch => batches.clone(),
            _ => {
                let batches = Arc::new(plan_epoch(&self.lengths, self.batch_tokens, self.packing, self.seed, epoch));
                *recent = Some((epoch, batches.clone()));
                batches
            }
        }
    }
}
