//! The three decode modes over one document.
//!
//! STANDARD: plain prefill, each new token enters as its embedding. SOFT: plain prefill, a new token enters fused with
//! the state that sampled it. FUSED(p): the prompt's inputs are rebuilt p times from the shifted states of the run
//! before, each time into a fresh cache; then as SOFT.

use candle_core::{IndexOp, Tensor};

use super::sample::Sampling;
use crate::error::{Error, Result};
use crate::feedback::Tuned;
use crate::model::{KvCache, Segments};
use crate::recipe::Mode;

#[derive(Clone, Debug)]
pub struct Options {
    pub mode: Mode,
    /// Extra prefill passes of FUSED, at least 1.
    pub prefill_passes: usize,
    pub max_new: usize,
    /// Tokens that end the document; they are not part of the result.
    pub stop: Vec<u32>,
    pub sampling: Sampling,
}

impl Default for Options {
    fn default() -> Self {
        Self { mode: Mode::Standard, prefill_passes: 1, max_new: 128, stop: Vec::new(), sampling: Sampling::default() }
    }
}

/// Why decoding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A stop token.
    Token,
    /// `max_new` tokens.
    Length,
    /// The base's last position.
    Positions,
    /// The caller asked for it.
    Caller,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    pub tokens: Vec<u32>,
    pub stop: Stop,
}

/// Decodes one prompt (at least one token). `each` is told every new token and returns whether to go on.
pub fn decode(tuned: &Tuned, prompt: &[u32], options: &Options, mut each: impl FnMut(u32) -> bool) -> Result<Decoded> {
    let reach = tuned.base.config().max_positions;
    let (mut cache, mut state) = prefill(tuned, prompt, options.mode, options.prefill_passes)?;
    let mut tokens = Vec::new();
    let stop = loop {
        if tokens.len() == options.max_new {
            break Stop::Length;
        }
        let logits = tuned.base.logits(&state)?.i(0)?.to_vec1::<f32>()?;
        let token = options.sampling.pick(logits, prompt, &tokens);
        if options.stop.contains(&token) {
            break Stop::Token;
        }
        tokens.push(token);
        if !each(token) {
            break Stop::Caller;
        }
        let past = prompt.len() + tokens.len() - 1;
        if past == reach {
            break Stop::Positions;
        }
        let embedding = tuned.base.embed(&[token])?;
        let input = match (options.mode, &tuned.feedback) {
            (Mode::Standard, _) => embedding,
            (_, Some(feedback)) => feedback.fuse_next(&embedding, &state)?,
            (mode, None) => return Err(no_feedback(mode)),
        };
        let segments = Segments { offsets: vec![0, 1], past: vec![past] };
        state = tuned.base.trunk_cached(&input, &segments, tuned.lora.as_ref(), &mut cache)?;
    };
    Ok(Decoded { tokens, stop })
}

fn no_feedback(mode: Mode) -> Error {
    let mode = if mode == Mode::Soft { "SOFT" } else { "FUSED" };
    Error::Usage(format!("{mode} decoding needs latent-feedback weights, and this model has none"))
}

/// Runs the prompt as `mode` asks; the filled cache and the last position's state `[1, D]`.
pub fn prefill(tuned: &Tuned, prompt: &[u32], mode: Mode, passes: usize) -> Result<(KvCache, Tensor)> {
    if prompt.is_empty() {
        return Err(Error::Usage("the prompt has no token".into()));
    }
    if mode != Mode::Standard && tuned.feedback.is_none() {
        return Err(no_feedback(mode));
    }
    let base = &tuned.base;
    let embeddings = base.embed(prompt)?;
    let segments = Segments::single(prompt.len());
    let run = |inputs: &Tensor| -> Result<(KvCache, Tensor)> {
        let mut cache = KvCache::new();
        let states = base.trunk_cached(inputs, &segments, tuned.lora.as_ref(), &mut cache)?;
        Ok((cache, states))
    };
    let (mut cache, mut states) = run(&embeddings)?;
    if let (Mode::Fused, Some(feedback)) = (mode, &tuned.feedback) {
        let rows: Vec<usize> = (1..prompt.len()).collect();
        for _ in 0..passes.max(1) {
            let inputs = feedback.fuse(&embeddings, &states, &rows, None, false)?;
            (cache, states) = run(&inputs)?;
        }
    }
    let last = states.narrow(0, prompt.len() - 1, 1)?.contiguous()?;
    Ok((cache, last))
}
