//! Small Parquet files and a tokenizer whose ids can be read off the text.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow_buffer::{NullBuffer, OffsetBuffer};
use arrow_schema::{DataType, Field, Fields};
use fullband::corpus::{Corpus, Encoder, Row, Table, Tokens, Use, load};
use fullband::recipe::{DataRecipe, Format, Overlong, Validation};
use fullband::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use serde_json::Value as Json;

pub fn text(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

pub fn words(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

pub fn numbers(values: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

/// Writes a file with row groups of `group` rows.
pub fn write_groups(path: &Path, columns: &[(&str, ArrayRef)], group: usize) {
    write_with(path, columns, WriterProperties::builder().set_max_row_group_row_count(Some(group)).build());
}

pub fn write_with(path: &Path, columns: &[(&str, ArrayRef)], properties: WriterProperties) {
    let batch = RecordBatch::try_from_iter_with_nullable(columns.iter().map(|(n, a)| (*n, a.clone(), true))).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Writes `name` into `folder`.
pub fn write(folder: &tempfile::TempDir, name: &str, columns: &[(&str, ArrayRef)]) -> PathBuf {
    let path = folder.path().join(name);
    write_groups(&path, columns, 1024);
    path
}

/// A messages column: rows of (role, content, name).
pub type Message<'a> = (&'a str, Option<&'a str>, Option<&'a str>);

pub fn conversations(rows: &[&[Message]]) -> ArrayRef {
    let flat: Vec<Message> = rows.iter().flat_map(|row| row.iter().copied()).collect();
    let names = ["role", "content", "name"].map(|name| Field::new(name, DataType::Utf8, true));
    let columns = vec![
        text(&flat.iter().map(|m| Some(m.0)).collect::<Vec<_>>()),
        text(&flat.iter().map(|m| m.1).collect::<Vec<_>>()),
        text(&flat.iter().map(|m| m.2).collect::<Vec<_>>()),
    ];
    let messages = arrow_array::StructArray::new(Fields::from(names.to_vec()), columns, None::<NullBuffer>);
    let field = Arc::new(Field::new("element", arrow_array::Array::data_type(&messages).clone(), true));
    let offsets = OffsetBuffer::from_lengths(rows.iter().map(|row| row.len()));
    Arc::new(arrow_array::ListArray::new(field, offsets, Arc::new(messages), None))
}

/// A list of texts in each row; `None`: a null list.
pub fn lists(rows: &[Option<&[Option<&str>]>]) -> ArrayRef {
    let mut builder = arrow_array::builder::ListBuilder::new(arrow_array::builder::StringBuilder::new());
    for row in rows {
        if let Some(items) = row {
            items.iter().for_each(|item| builder.values().append_option(*item));
        }
        builder.append(row.is_some());
    }
    Arc::new(builder.finish())
}

pub const BOS: u32 = 256;
pub const EOS: u32 = 257;
pub const START: u32 = 258;
pub const END: u32 = 259;
/// The merge `:a`, so that tokens over a seam between `:` and `a` differ from those of the parts.
pub const MERGED: u32 = 260;

pub const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}\
                          {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// One token a byte, special tokens spelled out, and one merge.
#[derive(Clone)]
pub struct Bytes {
    pub bos: Option<u32>,
    pub template: Option<&'static str>,
}

pub const PLAIN: Bytes = Bytes { bos: None, template: Some(CHATML) };
pub const WITH_BOS: Bytes = Bytes { bos: Some(BOS), template: Some(CHATML) };

const SPECIAL: [(&str, u32); 5] =
    [("<s>", BOS), ("</s>", EOS), ("<|im_start|>", START), ("<|im_end|>", END), (":a", MERGED)];

impl Tokens for Bytes {
    fn bos(&self) -> Option<u32> {
        self.bos
    }

    fn eos(&self) -> u32 {
        EOS
    }

    fn is_stop(&self, id: u32) -> bool {
        id == EOS || id == END
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        let mut rest = text.as_bytes();
        while let [first, tail @ ..] = rest {
            match SPECIAL.iter().find(|(spelled, _)| rest.starts_with(spelled.as_bytes())) {
                Some((spelled, id)) => {
                    ids.push(*id);
                    rest = &rest[spelled.len()..];
                }
                None => {
                    ids.push(u32::from(*first));
                    rest = tail;
                }
            }
        }
        Ok(ids)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        let mut bytes = Vec::new();
        for &id in ids {
            match SPECIAL.iter().find(|(_, special)| *special == id) {
                Some((spelled, _)) => bytes.extend_from_slice(spelled.as_bytes()),
                None => bytes.push(id as u8),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn render_chat(&self, messages: &[Json], add_generation_prompt: bool) -> Option<Result<String>> {
        let mut environment = minijinja::Environment::new();
        let syntax = minijinja::syntax::SyntaxConfig::builder().keep_trailing_newline(true).build().unwrap();
        environment.set_syntax(syntax);
        let messages = minijinja::Value::from(minijinja::value::Serde(messages));
        let context = minijinja::context! { messages, add_generation_prompt };
        Some(environment.render_str(self.template?, context).map_err(|e| Error::Internal(e.to_string())))
    }
}

pub fn prompt_completion(prompt: &str, completion: &str) -> Format {
    Format::PromptCompletion { prompt: prompt.to_string(), completion: completion.to_string() }
}

/// `{{ prompt }}` and `{{ completion }}` over one or more files.
pub fn recipe(train: &[PathBuf]) -> DataRecipe {
    DataRecipe {
        train: train.to_vec(),
        validation: Validation::None,
        max_seq_len: 512,
        overlong: Overlong::Drop,
        packing: true,
        id: None,
        format: prompt_completion("{{ prompt }}", "{{ completion }}"),
    }
}

pub fn load_with(data: &DataRecipe, tokens: &Bytes) -> Result<(Corpus, Option<Corpus>)> {
    let encoder = Encoder::new(&data.format, data.max_seq_len, data.overlong, tokens)?;
    load(data, 42, &encoder)
}

pub fn train(data: &DataRecipe, tokens: &Bytes) -> Result<Corpus> {
    Ok(load_with(data, tokens)?.0)
}

/// The ids that inference would start from, row by row.
pub fn prompts(data: &DataRecipe, tokens: &Bytes) -> Vec<fullband::corpus::Encoded<Vec<u32>>> {
    let encoder = Encoder::new(&data.format, data.max_seq_len, data.overlong, tokens).unwrap();
    let table = Table::open(&data.train[0]).unwrap();
    let columns = encoder.columns(&table, Use::Prompt).unwrap();
    rows(&table, &columns).iter().map(|row| encoder.encode_prompt(row).unwrap()).collect()
}

pub fn rows(table: &Table, columns: &[String]) -> Vec<Row> {
    table.rows(columns).unwrap().flat_map(|batch| batch.unwrap()).collect()
}

/// A folder, and a file in it with prompts and completions.
pub fn pairs(prompts: &[&str], completions: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "train.parquet", &[("prompt", words(prompts)), ("completion", words(completions))]);
    (folder, path)
}

/// The text of the trained tokens.
pub fn learnt(example: &fullband::corpus::Example, tokens: &Bytes) -> String {
    let ids = example.ids.iter().zip(&example.trained).filter(|(_, trained)| **trained).map(|(id, _)| *id);
    tokens.decode(&ids.collect::<Vec<_>>()).unwrap()
}
