//! The gradients of one optimiser step, over all its micro-batches.
//!
//! `loss = a l_1 + b / (K - 1) * sum_{k >= 2} l_k`, and `l_1` alone where K = 1. Each `l_k` is the weighted sum of
//! token losses over the whole step divided by the sum of the weights over the whole step: how a step is cut into
//! micro-batches does not show in its gradients.

use candle_core::Tensor;

use super::adamw::{Gradients, variables};
use crate::corpus::{Batch, Targets};
use crate::error::{Error, Result};
use crate::feedback::{Plan, Tuned, passes_with};
use crate::model::{Predicted, RunOptions};
use crate::random::{Key, Purpose};
use crate::recipe::{Group, Phase, Prefix, Recipe};

/// What a step is asked to do.
#[derive(Clone, Debug)]
pub struct StepSpec<'a> {
    pub seed: u64,
    /// From 0.
    pub step: usize,
    /// K
    pub passes: usize,
    pub phase: &'a Phase,
    pub prefix: Prefix,
    pub jitter: f64,
    /// Whether adapters drop inputs.
    pub dropout: bool,
    pub prompt_loss_weight: f32,
    pub recompute: bool,
}

impl<'a> StepSpec<'a> {
    pub fn of(recipe: &Recipe, phase: &'a Phase, step: usize, passes: usize) -> Self {
        let feedback = recipe.feedback.as_ref();
        Self {
            seed: recipe.seed,
            step,
            passes,
            phase,
            prefix: feedback.map_or(Prefix::Random, |feedback| feedback.prefix),
            jitter: feedback.map_or(0.0, |feedback| feedback.jitter),
            dropout: recipe.lora.as_ref().is_some_and(|lora| lora.dropout > 0.0),
            prompt_loss_weight: recipe.train.prompt_loss_weight as f32,
            recompute: recipe.train.recompute,
        }
    }

    /// `[K]`: what each pass's loss counts.
    fn coefficients(&self) -> Vec<f64> {
        if self.passes == 1 {
            return vec![1.0];
        }
        let [first, later] = self.phase.loss;
        let mut coefficients = vec![later / (self.passes - 1) as f64; self.passes];
        coefficients[0] = first;
        coefficients
    }

    /// Groups that get a gradient: one pass has no feedback in it.
    pub fn trained(&self) -> Vec<Group> {
        let groups = self.phase.update.iter().copied();
        groups.filter(|&group| group == Group::Lora || self.passes > 1).collect()
    }

    /// `[N]`: the dropout keys of `pass` (from 1): each token's derives from its document and position.
    fn dropout_keys(&self, batch: &Batch, pass: usize) -> Vec<Key> {
        let key = Key::new(self.seed, Purpose::Dropout).at(self.step as u64).at(pass as u64);
        let documents = batch.offsets.windows(2).zip(&batch.documents);
        documents
            .flat_map(|(w, &document)| {
                let key = key.at(document);
                (0..(w[1] - w[0]) as u64).map(move |position| key.at(position))
            })
            .collect()
    }
}

/// What came out of a step's forward and backward.
#[derive(Debug)]
pub struct StepOutcome {
    /// The objective, nats per unit of weight.
    pub loss: f64,
    /// `[K]`: the mean loss of each pass; none where it does not count and was not computed.
    pub pass_losses: Vec<Option<f64>>,
    /// Tokens that entered, once each, and those that were predicted with some weight.
    pub tokens: usize,
    pub predicted: usize,
    /// None for variables that the step does not train, or where nothing in it has weight.
    pub gradients: Gradients,
    /// Whether a fused position stands before something predicted: else the feedback weights have no part in the loss.
    pub feedback_reached: bool,
}

/// Losses and gradients over the micro-batches `batches`.
pub fn run_step(tuned: &Tuned, batches: &[Batch], spec: &StepSpec) -> Result<StepOutcome> {
    let targets: Vec<Targets> = batches.iter().map(|batch| batch.targets(spec.prompt_loss_weight)).collect();
    let weight: f64 = targets.iter().map(Targets::weight_sum).sum();
    let coefficients = spec.coefficients();
    let mut outcome = StepOutcome {
        loss: 0.0,
        pass_losses: coefficients.iter().map(|&c| (c != 0.0).then_some(0.0)).collect(),
        tokens: batches.iter().map(Batch::len).sum(),
        predicted: targets.iter().map(|targets| targets.tokens.len()).sum(),
        gradients: variables(tuned).iter().map(|_| None).collect(),
        feedback_reached: false,
    };
    // A micro-batch in which nothing has weight adds nothing, and costs nothing.
    for (batch, targets) in batches.iter().zip(&targets).filter(|(_, targets)| !targets.tokens.is_empty()) {
        let plan = Plan::draw(batch, spec.passes, spec.prefix, spec.jitter, spec.seed, spec.step);
        outcome.feedback_reached |= reaches(batch, &plan, targets);
        let objective = forward(tuned, batch, targets, &plan, spec, &coefficients, weight, &mut outcome)?;
        if let Some(objective) = objective.filter(Tensor::track_op) {
            backward(tuned, &objective, &spec.trained(), &mut outcome.gradients)?;
        }
    }
    let counted = coefficients.iter().zip(&outcome.pass_losses);
    outcome.loss = counted.map(|(c, loss)| c * loss.unwrap_or(0.0)).sum();
    Ok(outcome)
}

/// The micro-batch's part of the objective; adds its losses to `outcome`.
#[allow(clippy::too_many_arguments)]
fn forward(
    tuned: &Tuned,
    batch: &Batch,
    targets: &Targets,
    plan: &Plan,
    spec: &StepSpec,
    coefficients: &[f64],
    weight: f64,
    outcome: &mut StepOutcome,
) -> Result<Option<Tensor>> {
    let options = |pass: usize| RunOptions {
        recompute: spec.recompute,
        dropout: spec.dropout.then(|| spec.dropout_keys(batch, pass)),
        ..RunOptions::default()
    };
    let states = passes_with(tuned, &batch.ids, &batch.offsets, plan, &spec.trained(), options)?;
    let predicted = Predicted { positions: &targets.positions, tokens: &targets.tokens };
    let mut objective: Option<Tensor> = None;
    for (pass, (state, &coefficient)) in states.iter().zip(coefficients).enumerate() {
        let Some(sum) = &mut outcome.pass_losses[pass] else { continue };
        let loss = tuned.base.loss(state, predicted, &targets.weights)?;
        let value = loss.to_scalar::<f32>()? as f64;
        if !value.is_finite() {
            let message = format!("the loss of pass {} of {} is {value}", pass + 1, spec.passes);
            return Err(Error::Diverged { step: spec.step + 1, message });
        }
        *sum += value / weight;
        let part = (loss * (coefficient / weight))?;
        objective = Some(match objective {
            Some(before) => (before + part)?,
            None => part,
        });
    }
    Ok(objective)
}

/// Adds the gradients of `objective` to those of the trained variables.
fn backward(tuned: &Tuned, objective: &Tensor, trained: &[Group], gradients: &mut Gradients) -> Result<()> {
    let mut found = objective.backward()?;
    for ((group, params), sum) in variables(tuned).iter().zip(gradients) {
        if !trained.contains(group) {
            continue;
        }
        let gradient = match found.remove(params.var().as_tensor()) {
            Some(gradient) => gradient.flatten_all()?.to_vec1::<f32>()?,
            None => vec![0.0; params.len()],
        };
        match sum {
            Some(sum) => sum.iter_mut().zip(&gradient).for_each(|(sum, g)| *sum += g),
            None => *sum = Some(gradient),
        }
    }
    Ok(())
}

fn reaches(batch: &Batch, plan: &Plan, targets: &Targets) -> bool {
    let mut last = vec![None; batch.documents.len()];
    let mut document = 0;
    for &position in &targets.positions {
        while position as usize >= batch.offsets[document + 1] {
            document += 1;
        }
        last[document] = Some(position as usize);
    }
    let reached = |cuts: &Vec<usize>| {
        let documents = cuts.iter().zip(&batch.offsets).zip(&last);
        documents.into_iter().any(|((&cut, &offset), last)| last.is_some_and(|last| last >= offset + cut.max(1)))
    };
    plan.cuts.iter().any(reached)
}
