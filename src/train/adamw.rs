//! The optimiser: AdamW over the flat variables of the trained groups, with a state that is saved and read back bit for
//! bit. A group counts its own updates, so one that begins late is corrected for bias from its own first update.
//! Vectors (the fusion's norm, DoRA's magnitudes) are not decayed: their rest point is not 0.
//!
//! Values are updated on the host and written back; on other devices that is a copy of the trained tensors a step,
//! which are few.

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;

use crate::error::{Error, Result};
use crate::feedback::Tuned;
use crate::files::{read_tensors, write_tensors};
use crate::kernels::adamw::{Update, adamw};
use crate::model::Params;
use crate::recipe::Group;

/// The trained variables in the order of gradients and moments: the layers' adapters, then the feedback weights.
pub fn variables(tuned: &Tuned) -> Vec<(Group, &Params)> {
    let lora = tuned.lora.iter().flat_map(|adapters| &adapters.layers).map(|params| (Group::Lora, params));
    let feedback = tuned.feedback.iter().map(|feedback| (Group::Feedback, &feedback.params));
    lora.chain(feedback).collect()
}

/// A gradient for each of [`variables`]; none where the step trains nothing of it.
pub type Gradients = Vec<Option<Vec<f32>>>;

/// The norm over all gradients together. Sums are f64 in blocks of one order, whatever the number of threads.
pub fn global_norm(gradients: &Gradients) -> f64 {
    let square = |block: &[f32]| block.iter().map(|&g| g as f64 * g as f64).sum::<f64>();
    let sums = gradients.iter().flatten().map(|gradient| {
        let blocks: Vec<f64> = gradient.par_chunks(1 << 14).map(square).collect();
        blocks.iter().sum::<f64>()
    });
    sums.sum::<f64>().sqrt()
}

/// The factor that brings gradients of norm `norm` down to `limit`, as torch's `clip_grad_norm_`.
pub fn clip_factor(norm: f64, limit: Option<f64>) -> f64 {
    limit.map_or(1.0, |limit| (limit / (norm + 1e-6)).min(1.0))
}

/// Moments of one variable.
struct Moments {
    m: Vec<f32>,
    v: Vec<f32>,
}

pub struct AdamW {
    weight_decay: f64,
    /// One for each of [`variables`].
    moments: Vec<Moments>,
    /// Updates that each group has had.
    steps: BTreeMap<Group, u64>,
}

impl AdamW {
    pub fn new(tuned: &Tuned, weight_decay: f64) -> Self {
        let zeros = |(_, params): &(Group, &Params)| Moments { m: vec![0.0; params.len()], v: vec![0.0; params.len()] };
        Self { weight_decay, moments: variables(tuned).iter().map(zeros).collect(), steps: BTreeMap::new() }
    }

    /// Updates of each group so far.
    pub fn steps(&self) -> &BTreeMap<Group, u64> {
        &self.steps
    }

    /// Updates every variable that has a gradient, at its group's rate; `scale` multiplies the gradients.
    pub fn update(
        &mut self,
        tuned: &Tuned,
        gradients: &Gradients,
        lr: impl Fn(Group) -> f64,
        scale: f64,
    ) -> Result<()> {
        let variables = variables(tuned);
        let mut groups: Vec<Group> =
            variables.iter().zip(gradients).filter(|(_, g)| g.is_some()).map(|((group, _), _)| *group).collect();
        groups.dedup();
        for group in groups {
            *self.steps.entry(group).or_default() += 1;
        }
        for (((group, params), gradient), moments) in variables.iter().zip(gradients).zip(&mut self.moments) {
            let Some(gradient) = gradient else { continue };
            let update = Update { lr: lr(*group), weight_decay: self.weight_decay, step: self.steps[group], scale };
            let mut values = params.values()?;
            for slot in params.slots() {
                let range = slot.range.clone();
                let decays = slot.shape.len() >= 2;
                let update = if decays { update } else { Update { weight_decay: 0.0, ..update } };
                let (m, v) = (&mut moments.m[range.clone()], &mut moments.v[range.clone()]);
                adamw(update, &gradient[range.clone()], &mut values[range], m, v);
            }
            params.set(values)?;
        }
        Ok(())
    }

    /// Writes the moments as f32 under torch's names: `<tensor>.exp_avg`, `<tensor>.exp_avg_sq`.
    pub fn save(&self, tuned: &Tuned, path: &Path) -> Result<()> {
        let variables = variables(tuned);
        let tensors = variables.iter().zip(&self.moments).flat_map(|((_, params), moments)| {
            params.slots().iter().flat_map(move |slot| {
                let parts = [("exp_avg", &moments.m), ("exp_avg_sq", &moments.v)];
                parts.map(|(part, values)| {
                    (format!("{}.{part}", slot.name), slot.shape.clone(), &values[slot.range.clone()])
                })
            })
        });
        write_tensors(path, tensors)
    }

    /// Reads what [`AdamW::save`] wrote for the same variables.
    pub fn load(tuned: &Tuned, weight_decay: f64, steps: BTreeMap<Group, u64>, path: &Path) -> Result<Self> {
        let mut adamw = Self { steps, ..Self::new(tuned, weight_decay) };
        let variables = variables(tuned);
        let slots = variables.iter().flat_map(|(_, params)| params.slots());
        let names =
            slots.flat_map(|s| ["exp_avg", "exp_avg_sq"].map(|part| (format!("{}.{part}", s.name), s.shape.clone())));
        let mut tensors = read_tensors(path, &names.collect())?;
        for ((_, params), moments) in variables.iter().zip(&mut adamw.moments) {
            for slot in params.slots() {
                for (part, values) in [("exp_avg", &mut moments.m), ("exp_avg_sq", &mut moments.v)] {
                    let name = format!("{}.{part}", slot.name);
                    let tensor = tensors.remove(&name).ok_or_else(|| Error::Internal(format!("{name} read twice")))?;
                    values[slot.range.clone()].copy_from_slice(&tensor);
                }
            }
        }
        Ok(adamw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_norm_is_taken_over_all_gradients() {
        let gradients = vec![Some(vec![3.0; 40_000]), None, Some(vec![0.0, 4.0])];
        let wanted = (9.0 * 40_000.0 + 16.0f64).sqrt();
        let norm = global_norm(&gradients);
        assert!((norm - wanted).abs() < 1e-9 * wanted);
        assert_eq!(clip_factor(0.5, Some(1.0)), 1.0);
        assert!((clip_factor(4.0, Some(1.0)) - 0.25).abs() < 1e-6);
        assert_eq!(clip_factor(4.0, None), 1.0);
    }
}
