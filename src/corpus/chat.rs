//! Conversations: a chat's messages become pieces of text, each trained or not.
//!
//! The base's chat template renders the whole conversation. Where an assistant turn lies in it is found by rendering
//! what comes before the turn (with the header that asks for an answer) and what ends with it, and by checking that both
//! are prefixes of the whole. A template that renders them otherwise is an error of the row: guessed spans would train
//! the wrong tokens without a word.

use serde_json::Value as Json;

use super::encode::{Encoded, Tokens};
use super::rows::Row;
use crate::error::Result;

/// A run of the rendered conversation. Pieces are tokenised one by one, so that spans are exact in tokens too.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Piece {
    pub text: String,
    pub trained: bool,
}

/// The messages of a list column's cell, null fields left out. `Dropped`: the conversation cannot be used.
pub(super) fn messages_of(row: &Row, column: &str) -> Result<Encoded<Vec<Json>>> {
    let Some(cell) = row.get(column) else {
        return Ok(Encoded::Dropped(format!("{column} is null")));
    };
    let json = serde_json::to_value(cell).map_err(|e| row.error(format!("column '{column}': {e}")))?;
    let Json::Array(messages) = json else {
        return Err(row.error(format!("column '{column}' is not a list of messages")));
    };
    Ok(match messages.iter().find_map(fault) {
        Some(fault) => Encoded::Dropped(fault.to_string()),
        None => Encoded::Ready(messages),
    })
}

fn fault(message: &Json) -> Option<&'static str> {
    let has = |key: &str| message.get(key).is_some_and(|value| !value.is_null());
    if message.is_null() {
        Some("a message is null")
    } else if !has("role") {
        Some("a message without role")
    } else if !has("content") && !has("tool_calls") {
        Some("a message without content")
    } else {
        None
    }
}

fn is_assistant(message: &Json) -> bool {
    message.get("role").and_then(Json::as_str) == Some("assistant")
}

/// Why a conversation teaches nothing; `None`: it can be trained on.
pub(super) fn unusable(messages: &[Json]) -> Option<&'static str> {
    let empty = |m: &Json| m.get("content").and_then(Json::as_str).is_some_and(|text| text.trim().is_empty());
    let turns = || messages.iter().filter(|m| is_assistant(m));
    if messages.is_empty() {
        Some("empty conversation")
    } else if turns().next().is_none() {
        Some("no assistant turn to learn")
    } else if is_assistant(&messages[0]) {
        // Most templates refuse it, others put a system turn of their own before it.
        Some("conversation begins with an assistant turn")
    } else if turns().any(|m| empty(m) && m.get("tool_calls").is_none()) {
        Some("an assistant turn is empty")
    } else {
        None
    }
}

/// The conversation up to the answer that is asked for: trailing assistant turns are left out.
pub(super) fn before_answer(messages: &[Json]) -> &[Json] {
    let end = messages.iter().rposition(|m| !is_assistant(m)).map_or(0, |last| last + 1);
    &messages[..end]
}

/// Cuts the rendered conversation at the assistant turns. `ask`: the header that asks for an answer follows at the end,
/// and the pieces are those that training puts before that answer.
pub(super) fn pieces(tokens: &dyn Tokens, messages: &[Json], ask: bool) -> Result<Vec<Piece>, String> {
    let render = |messages: &[Json], ask: bool| match tokens.render_chat(messages, ask) {
        Some(rendered) => rendered.map_err(|e| format!("the chat template refuses the conversation: {e}")),
        None => Err("the base has no chat template".to_string()),
    };
    let whole = render(messages, ask)?;
    let mut pieces = Vec::new();
    let mut at = 0;
    for turn in (0..messages.len()).filter(|&i| is_assistant(&messages[i])) {
        let before = render(&messages[..turn], true)?;
        let after = render(&messages[..=turn], false)?;
        let fits = whole.starts_with(&before) && whole.starts_with(&after);
        if !fits || before.len() < at || after.len() <= before.len() {
            return Err(format!(
                "the chat template renders messages 0..={turn} otherwise alone than inside the whole conversation, so \
                 that the assistant's tokens cannot be told apart"
            ));
        }
        pieces.push(Piece { text: whole[at..before.len()].to_string(), trained: false });
        pieces.push(Piece { text: whole[before.len()..after.len()].to_string(), trained: true });
        at = after.len();
    }
    pieces.push(Piece { text: whole[at..].to_string(), trained: false });
    pieces.retain(|piece| !piece.text.is_empty());
    Ok(pieces)
}
