//! What a step is, as pure functions of its number: the factor on the learning rates, the phase, the passes. Nothing
//! here remembers anything, so a resumed run cannot be off by one. Steps count from 0.

use crate::random::{Key, Purpose};
use crate::recipe::{Phase, Schedule};

/// Share of the steps over which `wsd` decays.
const WSD_DECAY: f64 = 0.2;

/// The factor on the learning rates at `step` of `total`. It rises as `(step + 1) / (w + 1)` over the `w` steps of
/// the warm-up, so that no step is wasted at 0; then `cosine` and `linear` fall and reach 0 just after the last step,
/// `constant` stays, and `wsd` stays until it falls linearly over the last fifth.
pub fn lr_factor(schedule: Schedule, step: usize, total: usize, warmup: f64) -> f64 {
    let warmup = warmup_steps(total, warmup);
    if step < warmup {
        return (step + 1) as f64 / (warmup + 1) as f64;
    }
    // Share of what remains after `start`: 1 at `start`, 0 after the last step.
    let remaining = |start: usize| (total.saturating_sub(step)) as f64 / total.saturating_sub(start).max(1) as f64;
    match schedule {
        Schedule::Constant => 1.0,
        Schedule::Linear => remaining(warmup).min(1.0),
        Schedule::Cosine => 0.5 - 0.5 * (std::f64::consts::PI * remaining(warmup).min(1.0)).cos(),
        Schedule::Wsd => {
            let decay = (WSD_DECAY * total as f64).round() as usize;
            let start = total.saturating_sub(decay).max(warmup);
            if step < start { 1.0 } else { remaining(start).min(1.0) }
        }
    }
}

/// Steps of the warm-up; at least one step is left after it.
pub fn warmup_steps(total: usize, warmup: f64) -> usize {
    ((warmup * total as f64).round() as usize).min(total.saturating_sub(1))
}

/// Index of the phase that `step` belongs to: the first one that ends after it. A phase too short for a whole step has
/// none.
pub fn phase_at(phases: &[Phase], step: usize, total: usize) -> usize {
    let ends_after = |phase: &Phase| step < phase_end(phase, total);
    phases.iter().position(ends_after).unwrap_or(phases.len().saturating_sub(1))
}

/// The step after the last one of `phase`.
pub fn phase_end(phase: &Phase, total: usize) -> usize {
    // Products such as 0.6 * 5 come out a little over the whole number that is meant.
    (phase.until * total as f64 - 1e-9).ceil().max(0.0) as usize
}

/// The number of passes K of `step`, drawn from the phase's mixture.
pub fn passes_at(phase: &Phase, seed: u64, step: usize) -> usize {
    let draw = Key::new(seed, Purpose::Passes).unit(step as u64);
    let mut sum = 0.0;
    let mut last = 1;
    for (&passes, &share) in phase.mix.iter().filter(|&(_, &share)| share > 0.0) {
        sum += share;
        last = passes;
        if draw < sum {
            break;
        }
    }
    last
}

/// Most passes that any phase can draw.
pub fn most_passes(phases: &[Phase]) -> usize {
    let drawn = phases.iter().flat_map(|phase| phase.mix.iter().filter(|&(_, &share)| share > 0.0));
    drawn.map(|(&passes, _)| passes).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Group;

    fn phase(until: f64, mix: &[(usize, f64)]) -> Phase {
        Phase { until, mix: mix.iter().copied().collect(), loss: [1.0, 1.0], update: vec![Group::Lora] }
    }

    // pains 25 (transformers #34053): the rate of a step is a function of the step alone, whatever ran before it
    #[test]
    fn rates_depend_on_the_step_alone() {
        let factors = |steps: &mut dyn Iterator<Item = usize>| -> Vec<f64> {
            steps.map(|step| lr_factor(Schedule::Cosine, step, 10, 0.2)).collect()
        };
        let straight = factors(&mut (0..10));
        assert_eq!(factors(&mut (5..10)), straight[5..]);
        assert_eq!(straight[..3], [1.0 / 3.0, 2.0 / 3.0, 1.0]);
        for (step, factor) in straight.iter().enumerate().skip(2) {
            let wanted = 0.5 * (1.0 + (std::f64::consts::PI * (step - 2) as f64 / 8.0).cos());
            assert!((factor - wanted).abs() < 1e-12, "step {step}: {factor} instead of {wanted}");
        }
    }

    #[test]
    fn schedules_have_their_shapes() {
        let at = |schedule, step| lr_factor(schedule, step, 10, 0.0);
        assert_eq!((0..10).map(|s| at(Schedule::Constant, s)).sum::<f64>(), 10.0);
        assert_eq!((at(Schedule::Linear, 0), at(Schedule::Linear, 5), at(Schedule::Linear, 9)), (1.0, 0.5, 0.1));
        let wsd: Vec<f64> = (6..10).map(|s| at(Schedule::Wsd, s)).collect();
        assert_eq!(wsd, [1.0, 1.0, 1.0, 0.5]);
        for schedule in [Schedule::Cosine, Schedule::Linear, Schedule::Constant, Schedule::Wsd] {
            for total in 1..6 {
                let factors = (0..total).map(|step| lr_factor(schedule, step, total, 0.9));
                assert!(factors.into_iter().all(|f| f > 0.0 && f <= 1.0), "{schedule:?} over {total} steps");
            }
        }
    }

    #[test]
    fn phases_end_at_their_share() {
        let phases = [phase(0.5, &[(1, 1.0)]), phase(0.6, &[(2, 1.0)]), phase(1.0, &[(2, 0.9), (3, 0.1)])];
        let of = |total: usize| -> Vec<usize> { (0..total).map(|step| phase_at(&phases, step, total)).collect() };
        assert_eq!(of(10), [0, 0, 0, 0, 0, 1, 2, 2, 2, 2]);
        // Shares are rounded up to whole steps: two steps never come to the last phase.
        assert_eq!(of(2), [0, 1]);
        assert_eq!(of(5), [0, 0, 0, 2, 2]);
        assert_eq!(most_passes(&phases), 3);
    }

    #[test]
    fn passes_follow_the_mixture() {
        let phase = phase(1.0, &[(1, 0.75), (2, 0.22), (3, 0.03), (4, 0.0)]);
        let mut counts = [0usize; 5];
        (0..10_000).for_each(|step| counts[passes_at(&phase, 7, step)] += 1);
        assert_eq!((counts[0], counts[4]), (0, 0));
        for (passes, share) in [(1, 0.75), (2, 0.22), (3, 0.03)] {
            let drawn = counts[passes] as f64 / 10_000.0;
            assert!((drawn - share).abs() < 0.02, "{passes} passes: {drawn} instead of {share}");
        }
        assert_eq!(passes_at(&phase, 7, 123), passes_at(&phase, 7, 123));
    }
}
