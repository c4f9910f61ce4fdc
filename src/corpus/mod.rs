//! The corpus: Parquet -> rows -> templates -> tokens and labels -> flat batches.
//!
//! [`Table`] opens a Parquet file and streams [`Row`]s; [`Encoder`] makes an [`Example`] of a row (and, for inference,
//! the same prompt without the completion); [`load`] does both for a recipe and reports on the data; [`Plan`] says which
//! documents make which micro-batch of which step; [`Batch`] is what the model is given.

mod batch;
mod chat;
mod encode;
mod load;
mod order;
mod pack;
mod report;
mod rows;
mod table;
mod template;

pub use batch::{Batch, Targets};
pub use encode::{Encoded, Encoder, Tokens, Use, prompt_ids};
pub use load::{Corpus, check, load};
pub use order::{Plan, Step, plan_epoch, plan_evaluation};
pub use report::{DataReport, FileRows, LengthBin, Listed, display};
pub use rows::{NotText, Row, as_text, is_text};
pub use table::{Rows, Table};
pub use template::{Rendered, Template};

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
