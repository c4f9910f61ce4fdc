//! The order of documents: epochs, micro-batches, steps.

use fullband::corpus::{Plan, plan_epoch, plan_evaluation};
use fullband::random::{Key, Purpose};
use fullband::recipe::Length;
use proptest::prelude::*;

fn lengths(n: usize) -> Vec<usize> {
    let key = Key::new(7, Purpose::Sampling);
    (0..n).map(|i| 2 + key.below(i as u64, 200) as usize).collect()
}

fn sorted(batches: &[Vec<usize>]) -> Vec<usize> {
    let mut all: Vec<usize> = batches.concat();
    all.sort_unstable();
    all
}

proptest! {
    // pains 30 (mlx-lm): the tail is kept, few rows are enough, nothing is dropped or doubled
    #[test]
    fn every_document_is_in_one_batch_within_the_budget(
        lengths in proptest::collection::vec(1usize..400, 1..120),
        budget in 1usize..600,
        packing: bool,
        seed: u64,
        epoch in 0usize..5,
    ) {
        let mut plans = vec![plan_epoch(&lengths, budget, packing, seed, epoch)];
        plans.push(plan_evaluation(&lengths, budget));
        for batches in plans {
            prop_assert_eq!(sorted(&batches), (0..lengths.len()).collect::<Vec<_>>());
            for batch in &batches {
                let tokens: usize = batch.iter().map(|&i| lengths[i]).sum();
                prop_assert!(tokens <= budget || batch.len() == 1, "{} tokens in {:?}", tokens, batch);
            }
        }
    }

    // pains 15 (ms-swift #10084), 27 (transformers #21934), 28 (open-instruct #681)
    #[test]
    fn steps_cut_epochs_into_windows_and_can_be_asked_for_in_any_order(
        n in 1usize..60,
        accumulate in 1usize..5,
        epochs in 1usize..4,
        packing: bool,
        seed: u64,
    ) {
        let lengths = lengths(n);
        let plan = Plan::new(lengths.clone(), 256, accumulate, packing, seed, Length::Epochs(epochs as f64));
        prop_assert_eq!(plan.epochs(), epochs);
        let mut steps: Vec<_> = (0..plan.total_steps()).rev().map(|step| plan.step(step)).collect();
        steps.reverse();
        for epoch in 0..epochs {
            let of_epoch: Vec<_> = steps.iter().filter(|step| step.epoch == epoch).collect();
            prop_assert_eq!(of_epoch.len(), plan.steps_of_epoch(epoch));
            let batches: Vec<Vec<usize>> = of_epoch.iter().flat_map(|step| step.micro_batches.clone()).collect();
            prop_assert_eq!(&batches, &plan_epoch(&lengths, 256, packing, seed, epoch));
            for (i, step) in of_epoch.iter().enumerate() {
                let full = step.micro_batches.len() == accumulate;
                prop_assert!(full || (i + 1 == of_epoch.len() && !step.micro_batches.is_empty()));
            }
        }
        prop_assert!(steps.is_sorted_by_key(|step| step.epoch));
    }
}

// pains 26 (transformers #8876): each epoch has its own order, a function of seed and epoch
#[test]
fn the_order_is_a_function_of_seed_and_epoch() {
    let lengths = lengths(200);
    for packing in [true, false] {
        let plan = |seed, epoch| plan_epoch(&lengths, 512, packing, seed, epoch);
        assert_eq!(plan(1, 0), plan(1, 0));
        assert_ne!(plan(1, 0), plan(1, 1));
        assert_ne!(plan(1, 0), plan(2, 0));
        assert_ne!(plan(1, 1), plan(2, 0));
    }
}

#[test]
fn packing_fills_batches_and_keeps_the_order_random() {
    let lengths = lengths(2000);
    let total: usize = lengths.iter().sum();
    let batches = plan_epoch(&lengths, 1024, true, 3, 0);
    let filled = total as f64 / (batches.len() * 1024) as f64;
    assert!(filled > 0.95, "{filled}");
    assert!(batches.len() <= plan_epoch(&lengths, 1024, false, 3, 0).len());
    // Long and short documents are spread: the mean length of the batches' first half is that of the second.
    let mean = |half: &[Vec<usize>]| {
        let documents = half.concat();
        documents.iter().map(|&i| lengths[i]).sum::<usize>() as f64 / documents.len() as f64
    };
    let (first, second) = batches.split_at(batches.len() / 2);
    assert!((mean(first) / mean(second) - 1.0).abs() < 0.1, "{} {}", mean(first), mean(second));
}

#[test]
fn documents_follow_the_shuffle_without_packing() {
    let lengths = lengths(50);
    let order = plan_epoch(&lengths, 300, false, 9, 2).concat();
    assert_eq!(order, plan_epoch(&lengths, 700, false, 9, 2).concat());
    assert_eq!(plan_evaluation(&lengths, 300).concat(), (0..50).collect::<Vec<_>>());
}

#[test]
fn runs_end_where_the_recipe_says() {
    let lengths = vec![10; 10];
    let steps = |length| Plan::new(lengths.clone(), 20, 2, true, 0, length).total_steps();
    // 5 micro-batches, 3 steps an epoch.
    assert_eq!(steps(Length::Epochs(1.0)), 3);
    assert_eq!(steps(Length::Epochs(2.5)), 8);
    assert_eq!(steps(Length::Epochs(0.01)), 1);
    assert_eq!(steps(Length::Steps(1)), 1);
    assert_eq!(steps(Length::Steps(7)), 7);
    let plan = Plan::new(lengths.clone(), 20, 2, true, 0, Length::Steps(7));
    assert_eq!((plan.epochs(), plan.step(6).epoch, plan.step(2).micro_batches.len()), (3, 2, 1));
    assert_eq!((plan.steps_of_epoch(2), plan.micro_batches_of_epoch(0)), (3, 5));
    // Two rows and a batch larger than the corpus.
    let small = Plan::new(vec![10; 2], 1024, 4, true, 0, Length::Steps(3));
    assert_eq!((small.total_steps(), small.epochs()), (3, 3));
    assert_eq!(small.step(2).micro_batches.concat().len(), 2);
}
