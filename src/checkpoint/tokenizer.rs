//! The base's tokenizer and chat template.

use crate::error::Result;

pub struct Tokenizer {
    /// Put in front of a document; some only where the base's own tokenizer adds it.
    pub bos: Option<u32>,
    /// The token that ends a trained completion.
    pub eos: u32,
    /// All tokens that stop generation (config, generation config and tokenizer agree on them here, once).
    pub stop: Vec<u32>,
    pub chat_template: Option<ChatTemplate>,
}

impl Tokenizer {
    /// Token ids of `text`, nothing added. Special tokens written out in the text are read as such.
    pub fn encode(&self, _text: &str) -> Result<Vec<u32>> {
        todo!()
    }

    pub fn decode(&self, _ids: &[u32], _skip_special: bool) -> Result<String> {
        todo!()
    }

    /// The text of one token, for display.
    pub fn token(&self, _id: u32) -> Option<String> {
        todo!()
    }

    /// Highest id + 1.
    pub fn vocab_size(&self) -> usize {
        todo!()
    }
}

/// A checkpoint's chat template (jinja), rendered as `transformers` does.
pub struct ChatTemplate {
    pub source: String,
}

impl ChatTemplate {
    /// `messages`: objects with `role` and `content`.
    pub fn render(&self, _messages: &[serde_json::Value], _add_generation_prompt: bool) -> Result<String> {
        todo!()
    }
}
