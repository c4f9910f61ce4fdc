//! Fine-tunes a pretrained language model where domain data is scarce: LoRA adapters and latent-feedback weights, from a
//! Parquet corpus and a recipe. Source of the feedback method: *Full-bandwidth transformer*, arXiv:2608.08888.
//!
//! # How data flows
//!
//! ```text
//! recipe.toml --recipe--> Recipe                     what to do, checked before any work
//! base        --checkpoint--> Config, tensors, Tokenizer
//! *.parquet   --corpus--> Example --> Batch          flat runs of tokens with document offsets; no padding exists
//! Config, tensors --model--> Model                   frozen; embed, trunk, head
//! Model + lora::Adapters + feedback::Feedback = feedback::Tuned
//! Batch, Tuned --feedback::passes--> states of K passes --train--> loss, gradients, AdamW --> adapter folder
//! prompt, Tuned --infer--> tokens                    STANDARD, SOFT, FUSED
//! ```
//!
//! # Which module owns what
//!
//! Dependencies point downwards only.
//!
//! | module | owns |
//! |---|---|
//! | [`cli`] | one file a subcommand: wiring and printing; nothing else prints |
//! | [`train`] | the loop, schedules, AdamW, run folder and exact resume, metrics |
//! | [`infer`] | decode modes, sampling, stop conditions |
//! | [`eval`] | losses per mode, contraction trace |
//! | [`tuned`] | opening what a user calls a model: a base, or an adapter with its base |
//! | [`feedback`] | fusion, warm start, multi-pass plan (prefix mixin, jitter) |
//! | [`lora`] | which modules get an adapter, starting values, PEFT's folder |
//! | [`corpus`] | Parquet -> rows -> templates -> tokens and labels -> flat batches |
//! | [`recipe`] | typed recipes: parse, defaults, overrides, checks, schema |
//! | [`model`] | the decoder-only transformer over segments, its cache, trained variables |
//! | [`checkpoint`] | bases: folder, GGUF, hub id; config, tokenizer, chat template |
//! | [`kernels`] | CPU operations with their backward; `unsafe` lives here alone |
//! | [`files`] | files that are never half written |
//! | [`random`] | counter-based randomness: f(seed, purpose, step, document) |
//! | [`error`] | the one error type, its exit codes |
//!
//! # Words
//!
//! *State*: what the head reads, the top layer after the final norm, `[N, D]`. *Fused input*: a layer-0 input made of the
//! previous position's state and the present token's embedding. *Pass*: one run over the whole sequence; pass 1 is
//! ordinary, pass k uses the states of pass k - 1. *Document*: one training example; states, attention and positions never
//! cross its edge.
//!
//! # A shared piece of arithmetic
//!
//! Randomness depends on what it is for, never on what was drawn before, so a resumed run draws what an undisturbed one
//! would have drawn:
//!
//! ```
//! use fullband::random::{Key, Purpose};
//!
//! let cut = |step, document| Key::new(42, Purpose::PrefixCut).at(step).at(document).below(2, 100);
//! assert_eq!(cut(7, 3), cut(7, 3));
//! assert_ne!(cut(7, 3), cut(8, 3));
//! ```

pub mod checkpoint;
pub mod cli;
pub mod corpus;
pub mod error;
pub mod eval;
pub mod feedback;
pub mod files;
pub mod infer;
pub mod kernels;
pub mod lora;
pub mod model;
pub mod random;
pub mod recipe;
pub mod train;
pub mod tuned;

pub use error::{Error, Result};
