//! Times training steps and prefill of a base, for `benches/peers`: documents of random tokens, every token trained, LoRA on
//! all linear layers, one pass or more.
//!
//! ```text
//! cargo run --release --example step_time -- BASE [--documents 4] [--tokens 256] [--rank 8] [--passes 1] [--steps 5]
//! ```
//!
//! Prints one JSON object: seconds of each training step and prefill after a first one of each that is not counted, and
//! the process's peak memory.

use std::time::Instant;

use fullband::Result;
use fullband::checkpoint::Checkpoint;
use fullband::corpus::{Batch, Example};
use fullband::feedback::{Feedback, Plan, Tuned, passes};
use fullband::kernels::isa::Isa;
use fullband::lora::{self, LoraConfig};
use fullband::model::{LoadOptions, Model};
use fullband::random::{Key, Purpose};
use fullband::recipe::{
    Dtype, FeedbackInit, FeedbackRecipe, Form, Gate, Group, LoraRecipe, LoraVariant, Phase, Prefix, Targets,
};
use fullband::train::adamw::{AdamW, variables};
use fullband::train::step::{StepSpec, run_step};

struct Arguments {
    base: String,
    documents: usize,
    tokens: usize,
    rank: usize,
    passes: usize,
    steps: usize,
}

fn arguments() -> Arguments {
    let mut all = std::env::args().skip(1);
    let base = all.next().expect("the base");
    let mut arguments = Arguments { base, documents: 4, tokens: 256, rank: 8, passes: 1, steps: 5 };
    while let Some(flag) = all.next() {
        let value = all.next().and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("{flag}: expected a number"));
        match flag.as_str() {
            "--documents" => arguments.documents = value,
            "--tokens" => arguments.tokens = value,
            "--rank" => arguments.rank = value,
            "--passes" => arguments.passes = value,
            "--steps" => arguments.steps = value,
            _ => panic!("unknown flag {flag}"),
        }
    }
    arguments
}

fn main() -> Result<()> {
    let arguments = arguments();
    let Arguments { documents, tokens, rank, passes: k, steps, .. } = arguments;
    let base = Model::load(&Checkpoint::open(&arguments.base)?, &LoadOptions::cpu(Dtype::Bf16))?;
    let vocabulary = base.config().vocab_size as u64;
    let draw = Key::new(1, Purpose::Sampling);
    let example = |i: usize| Example {
        row: format!("document {i}"),
        ids: (0..tokens).map(|t| draw.at(i as u64).below(t as u64, vocabulary) as u32).collect(),
        trained: vec![true; tokens],
        prompt_len: 1,
        truncated: false,
    };
    let examples: Vec<Example> = (0..documents).map(example).collect();
    let batch = Batch::pack(examples.iter().enumerate().map(|(i, e)| (i as u64, e)));
    let lora = LoraRecipe { rank, alpha: 16.0, dropout: 0.0, targets: Targets::AllLinear, variant: LoraVariant::Lora };
    let config = LoraConfig::resolve(&lora)?;
    let feedback = FeedbackRecipe {
        form: Form::Residual,
        gate: Gate::Sigmoid,
        init: FeedbackInit::Default,
        prefix: Prefix::Random,
        jitter: 0.02,
    };
    let lora = Some(lora::init(&base, &config, 1)?);
    let feedback = if k > 1 { Some(Feedback::init(&base, &feedback, 1)?) } else { None };
    let tuned = Tuned { base, lora, feedback };
    let phase =
        Phase { until: 1.0, mix: [(k, 1.0)].into(), loss: [1.0, 1.0], update: vec![Group::Lora, Group::Feedback] };
    let mut optimizer = AdamW::new(&tuned, 0.0);
    let mut train_seconds = Vec::new();
    for step in 0..=steps {
        let began = Instant::now();
        let spec = StepSpec {
            seed: 1,
            step,
            passes: k,
            phase: &phase,
            prefix: Prefix::Random,
            jitter: 0.02,
            dropout: false,
            prompt_loss_weight: 0.0,
            recompute: false,
        };
        let outcome = run_step(&tuned, std::slice::from_ref(&batch), &spec)?;
        optimizer.update(&tuned, &outcome.gradients, |_| 1e-4, 1.0)?;
        train_seconds.push(began.elapsed().as_secs_f64());
    }
    let mut prefill_seconds = Vec::new();
    for _ in 0..=steps {
        let began = Instant::now();
        let states = &passes(&tuned, &batch.ids, &batch.offsets, &Plan::default())?[0];
        let last: Vec<u32> = batch.offsets[1..].iter().map(|&end| end as u32 - 1).collect();
        let last = candle_core::Tensor::new(last, states.device())?;
        tuned.base.logits(&states.index_select(&last, 0)?)?;
        prefill_seconds.push(began.elapsed().as_secs_f64());
    }
    let trained: usize = variables(&tuned).iter().map(|(_, params)| params.len()).sum();
    let report = serde_json::json!({
        "isa": Isa::select()?.to_string(),
        "tokens": batch.ids.len(),
        "passes": k,
        "trained_values": trained,
        "train_seconds": train_seconds[1..],
        "prefill_seconds": prefill_seconds[1..],
        "peak_bytes": peak_bytes(),
    });
    println!("{report}");
    Ok(())
}

/// The largest resident size of this process, where `/proc` tells it.
fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib * 1024)
}
