//! Decoding with a base and what is trained on it: STANDARD, SOFT and FUSED, one document, with a key-value cache.

mod decode;
mod sample;

pub use decode::{Decoded, Options, Stop, decode, prefill};
pub use sample::Sampling;

use crate::checkpoint::Tokenizer;
use crate::error::Result;
use crate::feedback::Tuned;
use crate::recipe::Mode;

/// Greedy completion of a prompt as text, special tokens left out.
pub fn complete(
    tuned: &Tuned,
    tokenizer: &Tokenizer,
    prompt: &[u32],
    max_new: usize,
    mode: Mode,
) -> Result<(String, Stop)> {
    let options = Options { mode, max_new, stop: tokenizer.stop.clone(), ..Options::default() };
    let decoded = decode(tuned, prompt, &options, |_| true)?;
    Ok((tokenizer.decode(&decoded.tokens, true)?, decoded.stop))
}
