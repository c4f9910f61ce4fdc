//! What must hold of every gradient: it is finite, and nothing that a phase trains stays without one. LoRA's A has a
//! gradient of 0 at first, since B is 0, and so has the fusion's gate while `W_U` is 0; after one update both have one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::adamw::{Gradients, variables};
use crate::error::{Error, Result};
use crate::feedback::Tuned;
use crate::recipe::Group;

/// Steps of a phase within which every trained tensor must have had a gradient.
const PATIENCE: usize = 2;

/// Part of the saved run state: a resumed run watches on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Watch {
    phase: usize,
    groups: BTreeMap<Group, Watched>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct Watched {
    /// Steps of the phase that trained the group.
    steps: usize,
    /// Tensors whose gradient was 0 in all of them.
    silent: BTreeSet<String>,
}

impl Watch {
    /// Checks a step's gradients; `step` counts from 1. `feedback_reached` is false where the drawn prefixes left the
    /// feedback weights without a part in the loss: such a step proves nothing about them.
    pub fn check(
        &mut self,
        tuned: &Tuned,
        gradients: &Gradients,
        phase: usize,
        step: usize,
        feedback_reached: bool,
    ) -> Result<()> {
        if phase != self.phase {
            *self = Self { phase, groups: BTreeMap::new() };
        }
        let mut silent: BTreeMap<Group, BTreeSet<String>> = BTreeMap::new();
        for ((group, params), gradient) in variables(tuned).iter().zip(gradients) {
            let Some(gradient) = gradient else { continue };
            let silent = silent.entry(*group).or_default();
            for slot in params.slots() {
                let part = &gradient[slot.range.clone()];
                if let Some(bad) = part.iter().find(|g| !g.is_finite()) {
                    let message = format!("the gradient of tensor '{}' has the value {bad}", slot.name);
                    return Err(Error::Diverged { step, message });
                }
                if part.iter().all(|&g| g == 0.0) {
                    silent.insert(slot.name.clone());
                }
            }
        }
        for (group, silent) in silent {
            if group == Group::Lora || feedback_reached {
                self.groups.entry(group).or_default().add(silent, phase, step)?;
            }
        }
        Ok(())
    }
}

impl Watched {
    fn add(&mut self, silent: BTreeSet<String>, phase: usize, step: usize) -> Result<()> {
        if self.steps >= PATIENCE {
            return Ok(());
        }
        self.silent = if self.steps == 0 { silent } else { self.silent.intersection(&silent).cloned().collect() };
        self.steps += 1;
        match self.silent.first() {
            Some(first) if self.steps == PATIENCE => {
                let others = match self.silent.len() - 1 {
                    0 => String::new(),
                    n => format!(" (and {n} more)"),
                };
                let message = format!(
                    "tensor '{first}'{others} had no gradient in the first {PATIENCE} steps that train it in phase {}: \
                     nothing reaches it",
                    phase + 1
                );
                Err(Error::Diverged { step, message })
            }
            _ => Ok(()),
        }
    }
}
