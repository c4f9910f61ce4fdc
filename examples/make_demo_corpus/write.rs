//! Rows to Parquet files: zstd, row groups of 1,000 rows, the columns that `datasets/*/README.md` describe.

use std::{fs::File, path::Path, sync::Arc};

use arrow_array::builder::{ListBuilder, StringBuilder, StructBuilder};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};

use crate::generate::{attributes::Product, chat::Conversation, recommend::Basket};

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

pub fn attributes(path: &Path, rows: &[Product]) -> Result {
    let price = Float64Array::from_iter(rows.iter().map(|r| r.price));
    let columns = [
        ("id", text(rows, |r| &r.id)),
        ("title", text(rows, |r| &r.title)),
        ("category", text(rows, |r| &r.category)),
        ("attributes", text(rows, |r| &r.attributes)),
        ("price", Arc::new(price) as ArrayRef),
    ];
    write(path, RecordBatch::try_from_iter(columns)?)
}

pub fn chat(path: &Path, rows: &[Conversation]) -> Result {
    let fields = vec![Field::new("role", DataType::Utf8, true), Field::new("content", DataType::Utf8, true)];
    let mut messages = ListBuilder::new(StructBuilder::from_fields(fields, rows.len()));
    for row in rows {
        let turns = messages.values();
        for turn in &row.messages {
            for (column, value) in [turn.role, &turn.content].into_iter().enumerate() {
                turns.field_builder::<StringBuilder>(column).ok_or("not a text column")?.append_value(value);
            }
            turns.append(true);
        }
        messages.append(true);
    }
    let columns = [("id", text(rows, |r| &r.id)), ("messages", Arc::new(messages.finish()) as ArrayRef)];
    write(path, RecordBatch::try_from_iter(columns)?)
}

pub fn recommend(path: &Path, rows: &[Basket]) -> Result {
    let index = Int64Array::from_iter_values(rows.iter().map(|r| r.target_index as i64));
    let columns = [
        ("id", text(rows, |r| &r.id)),
        ("history", list(rows, |r| &r.history)),
        ("candidates", list(rows, |r| &r.candidates)),
        ("target", text(rows, |r| &r.target)),
        ("target_index", Arc::new(index) as ArrayRef),
    ];
    write(path, RecordBatch::try_from_iter(columns)?)
}

fn text<R>(rows: &[R], column: impl Fn(&R) -> &String) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(rows.iter().map(column)))
}

fn list<R>(rows: &[R], column: impl Fn(&R) -> &Vec<String>) -> ArrayRef {
    let mut builder = ListBuilder::new(StringBuilder::new());
    for row in rows {
        builder.append_value(column(row).iter().map(Some));
    }
    Arc::new(builder.finish())
}

fn write(path: &Path, batch: RecordBatch) -> Result {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(9)?))
        .set_max_row_group_row_count(Some(1000))
        .build();
    let mut writer = ArrowWriter::try_new(File::create(path)?, batch.schema(), Some(properties))?;
    writer.write(&batch)?;
    writer.close()?;
    Ok(())
}
