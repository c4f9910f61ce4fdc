//! Rows to tokens: the one place where a document or a prompt becomes token ids, in training and in inference.
//!
//! - BOS stands in front where the base's tokenizer wants one, and never twice: text or a chat template that already
//!   begins with it gets none.
//! - EOS follows a completion or text once, and is trained; a document cut at `max_seq_len` gets none, since it would
//!   teach to stop there. Chats end as the base's template ends them.
//! - Prompt and completion are tokenised apart, so that inference, which has the prompt alone, sees the same ids.
//! - What is trained is known by position, never by token id: a completion may hold any token.

use serde_json::{Value as Json, json};

use super::Example;
use super::chat;
use super::rows::Row;
use super::table::{Table, among};
use super::template::{Rendered, Template};
use crate::checkpoint::Tokenizer;
use crate::error::{Error, Result};
use crate::recipe::{Format, Overlong};

/// What encoding needs of a tokenizer. [`Tokenizer`] is the one that bases bring.
pub trait Tokens: Sync {
    /// Put in front of a document; `None`: the base wants none.
    fn bos(&self) -> Option<u32>;
    fn eos(&self) -> u32;
    /// Whether a token ends a turn: EOS or another stop token of the base.
    fn is_stop(&self, id: u32) -> bool;
    /// Ids of `text`, nothing added.
    fn encode(&self, text: &str) -> Result<Vec<u32>>;
    /// Text of ids, special tokens written out.
    fn decode(&self, ids: &[u32]) -> Result<String>;
    /// The base's chat template over messages of `{role, content}`; `None`: it has none.
    fn render_chat(&self, messages: &[Json], add_generation_prompt: bool) -> Option<Result<String>>;
}

impl Tokens for Tokenizer {
    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn eos(&self) -> u32 {
        self.eos
    }

    fn is_stop(&self, id: u32) -> bool {
        id == self.eos || self.stop.contains(&id)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Tokenizer::encode(self, text)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        Tokenizer::decode(self, ids, false)
    }

    fn render_chat(&self, messages: &[Json], add_generation_prompt: bool) -> Option<Result<String>> {
        self.chat_template.as_ref().map(|template| template.render(messages, add_generation_prompt))
    }
}

/// What became of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Encoded<T> {
    Ready(T),
    /// The row cannot be used, for this reason.
    Dropped(String),
}

/// What rows are read for: a whole document, or the prompt that a completion is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    Document,
    Prompt,
}

// One of these exists in a run: its size does not matter.
#[allow(clippy::large_enum_variant)]
pub(super) enum Parts {
    Text(Template),
    PromptCompletion { prompt: Template, completion: Template },
    Messages(String),
    Turns { system: Option<Template>, user: Template, assistant: Template },
}

impl Parts {
    /// Parses the templates. Errors name the recipe's key.
    pub(super) fn of(format: &Format) -> Result<Self> {
        Ok(match format {
            Format::Text { template } => Self::Text(Template::parse("data.text.template", template)?),
            Format::PromptCompletion { prompt, completion } => Self::PromptCompletion {
                prompt: Template::parse("data.prompt_completion.prompt", prompt)?,
                completion: Template::parse("data.prompt_completion.completion", completion)?,
            },
            Format::ChatMessages { messages } => Self::Messages(messages.clone()),
            Format::ChatTurns { system, user, assistant } => Self::Turns {
                system: system.as_ref().map(|source| Template::parse("data.chat.system", source)).transpose()?,
                user: Template::parse("data.chat.user", user)?,
                assistant: Template::parse("data.chat.assistant", assistant)?,
            },
        })
    }

    /// The templates that a row is rendered with; none where a column holds whole conversations.
    pub(super) fn templates(&self, purpose: Use) -> Vec<&Template> {
        let document = purpose == Use::Document;
        match self {
            Self::Text(template) => vec![template],
            Self::PromptCompletion { prompt, completion } if document => vec![prompt, completion],
            Self::PromptCompletion { prompt, .. } => vec![prompt],
            Self::Messages(_) => Vec::new(),
            Self::Turns { system, user, assistant } => {
                system.iter().chain([user]).chain(document.then_some(assistant)).collect()
            }
        }
    }

    /// Checks a file's columns; returns those to read.
    pub(super) fn columns(&self, table: &Table, purpose: Use) -> Result<Vec<String>> {
        if let Self::Messages(column) = self {
            check_messages(table, column)?;
            return Ok(vec![column.clone()]);
        }
        let mut columns = Vec::new();
        for template in self.templates(purpose) {
            for column in template.check(table)? {
                if !columns.contains(&column) {
                    columns.push(column);
                }
            }
        }
        Ok(columns)
    }
}

/// Turns rows into documents and prompts, as the recipe's `[data]` says.
pub struct Encoder<'a> {
    tokens: &'a dyn Tokens,
    parts: Parts,
    max_seq_len: usize,
    overlong: Overlong,
}

/// The value of an [`Encoded`]; a dropped row leaves the function with its reason.
macro_rules! ready {
    ($encoded:expr) => {
        match $encoded {
            Encoded::Ready(value) => value,
            Encoded::Dropped(reason) => return Ok(Encoded::Dropped(reason)),
        }
    };
}

impl<'a> Encoder<'a> {
    /// Parses the templates. Errors name the recipe's key.
    pub fn new(format: &Format, max_seq_len: usize, overlong: Overlong, tokens: &'a dyn Tokens) -> Result<Self> {
        let parts = Parts::of(format)?;
        let is_chat = matches!(parts, Parts::Messages(_) | Parts::Turns { .. });
        let probe = [json!({"role": "user", "content": ""})];
        if is_chat && tokens.render_chat(&probe, true).is_none() {
            let message =
                "data.chat: the base has no chat template; use data.prompt_completion with a template of yours";
            return Err(Error::Usage(message.to_string()));
        }
        Ok(Self { tokens, parts, max_seq_len, overlong })
    }

    pub fn tokens(&self) -> &'a dyn Tokens {
        self.tokens
    }

    /// Checks a file's columns against the templates; returns those to read.
    pub fn columns(&self, table: &Table, purpose: Use) -> Result<Vec<String>> {
        self.parts.columns(table, purpose)
    }

    /// A row as a document to train on, called `name` in reports.
    pub fn encode(&self, row: &Row, name: String) -> Result<Encoded<Example>> {
        let (ids, trained) = match &self.parts {
            Parts::Text(template) => {
                let text = ready!(self.filled(template, row, "text")?);
                let mut ids = self.with_bos(self.ids(row, &text)?);
                self.end(&mut ids);
                let trained = (0..ids.len()).map(|t| t > 0).collect();
                (ids, trained)
            }
            Parts::PromptCompletion { completion, .. } => {
                let mut ids = ready!(self.encode_prompt(row)?);
                let text = ready!(self.filled(completion, row, "completion")?);
                let mut answer = self.ids(row, &text)?;
                self.end(&mut answer);
                let trained = (0..ids.len() + answer.len()).map(|t| t >= ids.len()).collect();
                ids.extend(answer);
                (ids, trained)
            }
            Parts::Messages(_) | Parts::Turns { .. } => {
                let messages = ready!(self.messages(row, Use::Document)?);
                if let Some(reason) = chat::unusable(&messages) {
                    return Ok(Encoded::Dropped(reason.to_string()));
                }
                self.conversation(row, &messages, false)?
            }
        };
        self.fit(row, name, ids, trained)
    }

    /// The ids that come before the completion: exactly those that [`Encoder::encode`] puts there. For `text`: the text
    /// without EOS. For chats: the conversation up to the answer, with the header that asks for it.
    pub fn encode_prompt(&self, row: &Row) -> Result<Encoded<Vec<u32>>> {
        let text = match &self.parts {
            Parts::Text(template) | Parts::PromptCompletion { prompt: template, .. } => template.render(row)?,
            Parts::Messages(_) | Parts::Turns { .. } => {
                let messages = ready!(self.messages(row, Use::Prompt)?);
                let messages = chat::before_answer(&messages);
                return match messages.is_empty() {
                    true => Ok(Encoded::Dropped("empty conversation".to_string())),
                    false => Ok(Encoded::Ready(self.conversation(row, messages, true)?.0)),
                };
            }
        };
        let ids = match text {
            Rendered::Text(text) => self.with_bos(self.ids(row, &text)?),
            Rendered::Null(reason) => return Ok(Encoded::Dropped(reason)),
        };
        // Without BOS nothing would be there to predict the first token from.
        Ok(if ids.is_empty() { Encoded::Dropped("prompt is empty".to_string()) } else { Encoded::Ready(ids) })
    }

    fn messages(&self, row: &Row, purpose: Use) -> Result<Encoded<Vec<Json>>> {
        let (system, user, assistant) = match &self.parts {
            Parts::Messages(column) => return chat::messages_of(row, column),
            Parts::Turns { system, user, assistant } => (system, user, assistant),
            _ => return Err(Error::Internal("the format has no messages".to_string())),
        };
        let mut messages = Vec::new();
        if let Some(template) = system {
            // An empty system text is no system turn: the template's own default applies.
            match template.render(row)? {
                Rendered::Text(text) if text.trim().is_empty() => {}
                Rendered::Text(text) => messages.push(json!({"role": "system", "content": text})),
                Rendered::Null(reason) => return Ok(Encoded::Dropped(reason)),
            }
        }
        messages.push(json!({"role": "user", "content": ready!(self.filled(user, row, "user turn")?)}));
        if purpose == Use::Document {
            let text = ready!(self.filled(assistant, row, "assistant turn")?);
            messages.push(json!({"role": "assistant", "content": text}));
        }
        Ok(Encoded::Ready(messages))
    }

    /// Ids of a conversation and which are trained: the assistant's turns up to the token that ends each.
    fn conversation(&self, row: &Row, messages: &[Json], ask: bool) -> Result<(Vec<u32>, Vec<bool>)> {
        let pieces = chat::pieces(self.tokens, messages, ask).map_err(|message| row.error(message))?;
        let (mut ids, mut trained) = (Vec::new(), Vec::new());
        for piece in &pieces {
            let mut part = self.ids(row, &piece.text)?;
            if ids.is_empty() {
                part = self.with_bos(part);
            }
            // The line break that many templates write after the end of a turn is never generated.
            let end = part.iter().rposition(|&id| self.tokens.is_stop(id)).map_or(part.len(), |last| last + 1);
            trained.extend((0..part.len()).map(|t| piece.trained && t < end));
            ids.extend(part);
        }
        Ok((ids, trained))
    }

    /// A part that must not be empty.
    fn filled(&self, template: &Template, row: &Row, part: &str) -> Result<Encoded<String>> {
        Ok(match template.render(row)? {
            Rendered::Text(text) if text.trim().is_empty() => Encoded::Dropped(format!("{part} is empty")),
            Rendered::Text(text) => Encoded::Ready(text),
            Rendered::Null(reason) => Encoded::Dropped(reason),
        })
    }

    fn ids(&self, row: &Row, text: &str) -> Result<Vec<u32>> {
        self.tokens.encode(text).map_err(|e| row.error(format!("cannot be tokenised: {e}")))
    }

    fn with_bos(&self, ids: Vec<u32>) -> Vec<u32> {
        with_bos(self.tokens, ids)
    }

    fn end(&self, ids: &mut Vec<u32>) {
        if ids.last() != Some(&self.tokens.eos()) {
            ids.push(self.tokens.eos());
        }
    }

    /// Applies `max_seq_len`.
    fn fit(&self, row: &Row, name: String, mut ids: Vec<u32>, mut trained: Vec<bool>) -> Result<Encoded<Example>> {
        let Some(prompt_len) = trained.iter().position(|&t| t) else {
            return Ok(Encoded::Dropped("nothing to learn".to_string()));
        };
        let truncated = ids.len() > self.max_seq_len;
        if truncated {
            match self.overlong {
                Overlong::Drop => return Ok(Encoded::Dropped("longer than max_seq_len".to_string())),
                Overlong::Error => {
                    let (n, max) = (ids.len(), self.max_seq_len);
                    let message = format!("{n} tokens, more than data.max_seq_len = {max} (data.overlong = \"error\")");
                    return Err(row.error(message));
                }
                Overlong::Truncate if prompt_len >= self.max_seq_len => {
                    return Ok(Encoded::Dropped("prompt alone fills max_seq_len".to_string()));
                }
                Overlong::Truncate => {
                    ids.truncate(self.max_seq_len);
                    trained.truncate(self.max_seq_len);
                }
            }
        }
        Ok(Encoded::Ready(Example { row: name, ids, trained, prompt_len, truncated }))
    }
}

/// Puts BOS in front where the base wants one and none is there.
fn with_bos(tokens: &dyn Tokens, mut ids: Vec<u32>) -> Vec<u32> {
    match tokens.bos() {
        Some(bos) if ids.first() != Some(&bos) => ids.insert(0, bos),
        _ => {}
    }
    ids
}

/// A prompt that comes from the command line instead of a row: the ids that training puts before a completion.
pub fn prompt_ids(tokens: &dyn Tokens, text: &str) -> Result<Vec<u32>> {
    Ok(with_bos(tokens, tokens.encode(text)?))
}

/// The column of a chat is a list of structs with role and content.
fn check_messages(table: &Table, column: &str) -> Result<()> {
    use arrow_schema::DataType;
    let data_type = table.require(column)?;
    let item = match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item.data_type(),
        DataType::ListView(item) | DataType::LargeListView(item) => item.data_type(),
        DataType::Null => return Ok(()),
        other => {
            let message = format!("column '{column}' is {other}, expected a list of {{role, content}}");
            return Err(Error::data(table.path(), message));
        }
    };
    let fields: Vec<&str> = match item {
        DataType::Struct(fields) => fields.iter().map(|field| field.name().as_str()).collect(),
        DataType::Map(..) | DataType::Null => return Ok(()),
        other => {
            let message = format!("column '{column}' is a list of {other}, expected a list of {{role, content}}");
            return Err(Error::data(table.path(), message));
        }
    };
    for wanted in ["role", "content"] {
        if !fields.contains(&wanted) {
            let message =
                format!("column '{column}': messages have no field '{wanted}'{}", among("fields", wanted, &fields));
            return Err(Error::data(table.path(), message));
        }
    }
    Ok(())
}
