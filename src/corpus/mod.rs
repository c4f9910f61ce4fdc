//! The corpus: Parquet -> rows -> templates -> tokens and labels -> flat batches.

mod batch;

pub use batch::{Batch, Targets};

/// One document ready for the model.
///
/// Invariants: `trained.len() == ids.len() >= 2`; at least one `trained[t]` with `t >= 1`; `1 <= prompt_len < ids.len()`
/// except for the `text` format, where `prompt_len == 1`.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// What reports and errors call the row: the id column's value or `file:row`.
    pub row: String,
    /// Token ids, BOS first where the base's tokenizer wants one, EOS last unless `truncated`.
    pub ids: Vec<u32>,
    /// `trained[t]`: token t is a label with weight 1 (completion, assistant turn, any token of `text`). Other tokens
    /// are the prompt's, and weigh `prompt_loss_weight`. Token 0 is never predicted.
    pub trained: Vec<bool>,
    /// Tokens before the first trained one: the plain prefix of `prefix = "prompt"`.
    pub prompt_len: usize,
    pub truncated: bool,
}
