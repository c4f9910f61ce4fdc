//! Phases of training: the defaults, and whether what is written can be trained.

use std::collections::BTreeMap;

use super::document::{Document, Problem};
use super::written::PhaseWritten;
use super::{Group, Phase};

/// The weights that a recipe has.
#[derive(Clone, Copy)]
pub struct Parts {
    pub lora: bool,
    pub feedback: bool,
}

/// What is trained when the recipe has no phases: LoRA with one pass; with feedback too, LoRA first and the feedback late
/// (design section 5); feedback alone on the frozen base with two or three passes, the constant loss of pass 1 left out.
pub fn defaults(parts: Parts) -> Vec<Phase> {
    let phase = |until, mix: &[(usize, f64)], loss, update: &[Group]| Phase {
        until,
        mix: mix.iter().copied().collect(),
        loss,
        update: update.to_vec(),
    };
    let late = [(2, 0.9), (3, 0.1)];
    match parts {
        Parts { feedback: false, .. } => vec![phase(1.0, &[(1, 1.0)], [1.0, 1.0], &[Group::Lora])],
        Parts { lora: false, .. } => vec![phase(1.0, &late, [0.0, 1.0], &[Group::Feedback])],
        _ => vec![
            phase(0.5, &[(1, 1.0)], [1.0, 1.0], &[Group::Lora]),
            phase(0.6, &[(2, 1.0)], [0.0, 1.0], &[Group::Feedback]),
            phase(1.0, &late, [0.3, 1.0], &[Group::Lora, Group::Feedback]),
        ],
    }
}

/// The written phases with their problems. Ranges have been checked.
pub fn resolve(document: &Document, written: &[PhaseWritten], parts: Parts, problems: &mut Vec<Problem>) -> Vec<Phase> {
    let mut start = 0.0;
    let mut phases = Vec::new();
    for (index, phase) in written.iter().enumerate() {
        let key = format!("train.phases[{index}]");
        let mut report = |inner: &str, message: String| {
            problems.push(document.problem(&format!("{key}.{inner}"), message));
        };
        if phase.until <= start {
            report("until", format!("{} does not rise: the phase before ends at {start}", phase.until));
        }
        if index + 1 == written.len() && phase.until != 1.0 {
            report("until", format!("the last phase must end at 1, found {}", phase.until));
        }
        start = phase.until;
        let mix = mixture(&phase.mix);
        check(phase, &mix, parts, &mut report);
        phases.push(Phase { until: phase.until, mix, loss: phase.loss, update: phase.update.clone() });
    }
    let all = |group| phases.iter().all(|phase| !phase.update.contains(&group));
    if parts.lora && all(Group::Lora) {
        problems.push(document.problem("train.phases", "no phase updates \"lora\", but there is a [lora] section"));
    }
    if parts.feedback && all(Group::Feedback) {
        problems
            .push(document.problem("train.phases", "no phase updates \"feedback\", but there is a [feedback] section"));
    }
    phases
}

/// The structure check has let only `1` to `8` through.
fn mixture(written: &BTreeMap<String, f64>) -> BTreeMap<usize, f64> {
    written.iter().filter_map(|(passes, share)| Some((passes.parse().ok()?, *share))).collect()
}

fn check(phase: &PhaseWritten, mix: &BTreeMap<usize, f64>, parts: Parts, report: &mut impl FnMut(&str, String)) {
    let sum = mix.values().fold(0.0, |sum, share| sum + share);
    if (sum - 1.0).abs() > 1e-6 {
        return report("mix", format!("the probabilities sum to {sum}, expected 1"));
    }
    let drawn = |passes: usize| mix.get(&passes).is_some_and(|share| *share > 0.0);
    let multi = (2..=8).find(|passes| drawn(*passes));
    let [first, later] = phase.loss;
    if let (Some(passes), false) = (multi, parts.feedback) {
        report("mix", format!("{passes} passes need feedback weights, but there is no [feedback] section"));
    }
    if first == 0.0 && later == 0.0 {
        return report("loss", "both weights are 0, nothing would be trained".into());
    }
    if first == 0.0 && drawn(1) {
        report("loss", "the weight of pass 1 is 0, but mix draws steps of one pass: they would train nothing".into());
    }
    let has = |group| phase.update.contains(&group);
    if (1..phase.update.len()).any(|index| phase.update[..index].contains(&phase.update[index])) {
        report("update", "a group is listed twice".into());
    }
    if has(Group::Lora) && !parts.lora {
        report("update", "\"lora\" cannot be updated without a [lora] section".into());
    }
    if !has(Group::Feedback) {
        return;
    }
    if !parts.feedback {
        report("update", "\"feedback\" cannot be updated without a [feedback] section".into());
    } else if multi.is_none() {
        report("update", "\"feedback\" gets no gradient: mix draws steps of one pass only".into());
    } else if later == 0.0 {
        report("update", "\"feedback\" gets no gradient: the loss weight of the later passes is 0".into());
    } else if !has(Group::Lora) && drawn(1) {
        report("mix", "steps of one pass give \"feedback\" no gradient, and the phase updates nothing else".into());
    }
}
