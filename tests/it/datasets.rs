//! The demo corpora: the committed files are what the committed generator makes, and they are fit to train on.

use std::{collections::HashSet, fs::File, path::Path};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

#[path = "../../examples/make_demo_corpus/generate/mod.rs"]
mod generate;

use generate::{SEED, attributes, chat, recommend};

const SPLITS: [&str; 2] = ["train", "validation"];

fn read(corpus: &str, split: &str) -> Vec<RecordBatch> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("datasets").join(corpus).join(format!("{split}.parquet"));
    let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
    reader.collect::<Result<_, _>>().unwrap()
}

fn column<T>(batches: &[RecordBatch], name: &str, cell: impl Fn(&ArrayRef, usize) -> T) -> Vec<T> {
    let cells = |batch: &RecordBatch| {
        let array = batch.column_by_name(name).unwrap_or_else(|| panic!("no column {name}")).clone();
        (0..array.len()).map(|row| cell(&array, row)).collect::<Vec<T>>()
    };
    batches.iter().flat_map(cells).collect()
}

fn text(array: &ArrayRef, row: usize) -> String {
    assert!(array.is_valid(row));
    array.as_string::<i32>().value(row).to_string()
}

fn list(array: &ArrayRef, row: usize) -> Vec<String> {
    let items = array.as_list::<i32>().value(row);
    (0..items.len()).map(|i| text(&items, i)).collect()
}

fn turns(array: &ArrayRef, row: usize) -> Vec<(String, String)> {
    let items = array.as_list::<i32>().value(row);
    let (roles, contents) = (items.as_struct().column(0), items.as_struct().column(1));
    (0..items.len()).map(|i| (text(roles, i), text(contents, i))).collect()
}

#[test]
fn attribute_files_are_what_the_generator_makes() {
    for (split, rows) in SPLITS.into_iter().zip(attributes::splits(SEED)) {
        let batches = read("shop-attributes", split);
        assert_eq!(column(&batches, "id", text), rows.iter().map(|r| r.id.clone()).collect::<Vec<_>>());
        assert_eq!(column(&batches, "title", text), rows.iter().map(|r| r.title.clone()).collect::<Vec<_>>());
        assert_eq!(column(&batches, "category", text), rows.iter().map(|r| r.category.clone()).collect::<Vec<_>>());
        assert_eq!(column(&batches, "attributes", text), rows.iter().map(|r| r.attributes.clone()).collect::<Vec<_>>());
        let price = |a: &ArrayRef, row| a.is_valid(row).then(|| a.as_primitive::<Float64Type>().value(row));
        assert_eq!(column(&batches, "price", price), rows.iter().map(|r| r.price).collect::<Vec<_>>());
    }
}

#[test]
fn chat_files_are_what_the_generator_makes() {
    let products = attributes::splits(SEED);
    for (split, rows) in SPLITS.into_iter().zip(chat::splits(SEED, &products)) {
        let batches = read("shop-chat", split);
        assert_eq!(column(&batches, "id", text), rows.iter().map(|r| r.id.clone()).collect::<Vec<_>>());
        let turn = |t: &chat::Turn| (t.role.to_string(), t.content.clone());
        let expected: Vec<Vec<_>> = rows.iter().map(|r| r.messages.iter().map(turn).collect()).collect();
        assert_eq!(column(&batches, "messages", turns), expected);
    }
}

#[test]
fn recommend_files_are_what_the_generator_makes() {
    for (split, rows) in SPLITS.into_iter().zip(recommend::splits(SEED)) {
        let batches = read("shop-recommend", split);
        assert_eq!(column(&batches, "id", text), rows.iter().map(|r| r.id.clone()).collect::<Vec<_>>());
        assert_eq!(column(&batches, "history", list), rows.iter().map(|r| r.history.clone()).collect::<Vec<_>>());
        assert_eq!(column(&batches, "candidates", list), rows.iter().map(|r| r.candidates.clone()).collect::<Vec<_>>());
        assert_eq!(column(&batches, "target", text), rows.iter().map(|r| r.target.clone()).collect::<Vec<_>>());
        let index = |a: &ArrayRef, row| a.as_primitive::<Int64Type>().value(row) as usize;
        assert_eq!(column(&batches, "target_index", index), rows.iter().map(|r| r.target_index).collect::<Vec<_>>());
    }
}

#[test]
fn attributes_are_words_of_the_title() {
    let mut categories = HashSet::new();
    let mut stated = 0;
    for row in attributes::splits(SEED).iter().flatten() {
        for (key, value) in row.pairs() {
            assert!(
                !value.trim().is_empty() && row.title.contains(&value),
                "{}: {key} {value:?} in {:?}",
                row.id,
                row.title
            );
            stated += 1;
        }
        assert!(!row.title.contains("  ") && row.title == row.title.trim(), "{}: {:?}", row.id, row.title);
        categories.insert(row.category.clone());
    }
    assert!(categories.len() >= 10);
    assert!(stated > 4 * (attributes::TRAIN + attributes::VALIDATION), "{stated} attributes");
}

#[test]
fn validation_titles_are_not_in_training() {
    let [train, validation] = attributes::splits(SEED);
    let known: HashSet<String> = train.iter().map(|r| r.title.to_lowercase()).collect();
    assert_eq!(known.len(), attributes::TRAIN);
    assert!(validation.iter().all(|r| !known.contains(&r.title.to_lowercase())));
    let ids: HashSet<&String> = train.iter().chain(&validation).map(|r| &r.id).collect();
    assert_eq!(ids.len(), attributes::TRAIN + attributes::VALIDATION);
}

#[test]
fn a_basket_names_its_target_once() {
    for row in recommend::splits(SEED).iter().flatten() {
        assert_eq!(row.candidates.len(), recommend::CANDIDATES);
        assert_eq!(row.candidates.iter().filter(|c| **c == row.target).count(), 1, "{}", row.id);
        assert_eq!(row.candidates[row.target_index], row.target, "{}", row.id);
    }
}

#[test]
fn talks_end_with_the_assistant() {
    let products = attributes::splits(SEED);
    for row in chat::splits(SEED, &products).iter().flatten() {
        let roles: Vec<&str> = row.messages.iter().map(|t| t.role).filter(|r| *r != "system").collect();
        assert!(roles.chunks(2).all(|pair| pair == ["user", "assistant"]), "{}: {roles:?}", row.id);
    }
}
