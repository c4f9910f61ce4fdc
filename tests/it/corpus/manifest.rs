//! Files that other engines wrote: each gives what `manifest.json` says.

use std::path::{Path, PathBuf};

use fullband::corpus::{Encoder, Table, Use};
use fullband::recipe::{Format, Overlong};
use serde_json::Value as Json;

use super::fixtures::*;

fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("FULLBAND_PARQUET")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/parquet"), PathBuf::from);
    if folder.join("manifest.json").exists() {
        return Some(folder);
    }
    println!("skipped: {} is not there", folder.display());
    None
}

fn message_of(path: &Path) -> String {
    let error = train(&recipe(&[path.to_path_buf()]), &PLAIN).unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
    let message = error.to_string();
    assert!(message.contains(&path.display().to_string()), "{message}");
    message
}

// pains 47, 49 (datasets #7222, arrow-rs #9219): every layout that pyarrow, polars and DuckDB write
#[test]
fn each_file_gives_what_the_manifest_says() {
    let Some(folder) = folder() else { return };
    let manifest = std::fs::read_to_string(folder.join("manifest.json")).unwrap();
    let manifest: serde_json::Map<String, Json> = serde_json::from_str(&manifest).unwrap();
    for (name, expected) in &manifest {
        let path = folder.join(format!("{name}.parquet"));
        let said = expected["read"].as_str().unwrap();
        let rows = expected["rows"].as_u64().map(|n| n as usize);
        if let (Some(first), Some(last)) = (expected.get("first_prompt"), expected.get("last_completion")) {
            let corpus = train(&recipe(&[path]), &PLAIN).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(Some(corpus.report.rows), rows, "{name}");
            assert_eq!(corpus.report.usable, corpus.report.rows, "{name}");
            let (head, tail) = (&corpus.examples[0], corpus.examples.last().unwrap());
            assert_eq!(text_of(&head.ids[..head.prompt_len]), *first.as_str().unwrap(), "{name}");
            assert_eq!(learnt(tail, &PLAIN), format!("{}</s>", last.as_str().unwrap()), "{name}");
        } else if let Some(wanted) = said.strip_prefix("error: column 'completion' not found") {
            assert_eq!(wanted, ", lists the columns there are");
            let message = message_of(&path);
            assert!(message.contains("column 'completion' not found"), "{message}");
            assert!(message.contains("the columns are prompt"), "{message}");
        } else if let Some(wanted) = said.strip_prefix("error: ") {
            let message = message_of(&path);
            assert!(message.contains(wanted), "{name}: {message}");
        } else if said.starts_with("error naming the file") {
            assert!(message_of(&path).contains("not a Parquet file"), "{name}");
        } else if let Some(bad) = expected.get("bad_row") {
            let message = message_of(&path);
            assert!(message.contains(&format!("row {bad}: column 'prompt' is not valid UTF-8")), "{message}");
        } else {
            special(name, &path, expected);
        }
    }
    assert_eq!(manifest.len(), 27);
}

fn special(name: &str, path: &Path, expected: &Json) {
    let mut data = recipe(&[path.to_path_buf()]);
    let rows = expected["rows"].as_u64().unwrap() as usize;
    match name {
        "null_cells" => {
            let corpus = train(&data, &PLAIN).unwrap();
            assert_eq!(corpus.report.usable as u64, expected["usable"].as_u64().unwrap());
            for (row, reason) in expected["dropped"].as_object().unwrap() {
                let listed = &corpus.report.dropped[reason.as_str().unwrap()];
                assert_eq!(listed.rows, [format!("null_cells.parquet:{row}")]);
            }
        }
        "chat_messages" | "chat_odd" => {
            data.format = Format::ChatMessages { messages: "messages".to_string() };
            let corpus = train(&data, &PLAIN).unwrap();
            assert_eq!(corpus.report.rows, rows);
            if name == "chat_messages" {
                assert_eq!(corpus.examples.len(), rows);
                assert_eq!(learnt(&corpus.examples[4], &PLAIN), "Electronics<|im_end|>");
                return;
            }
            assert_eq!(corpus.examples.len(), 1);
            assert_eq!(learnt(&corpus.examples[0], &PLAIN), "A<|im_end|>");
            for (row, reason) in expected["dropped"].as_object().unwrap() {
                let listed = &corpus.report.dropped[reason.as_str().unwrap()];
                assert_eq!(listed.rows, [format!("chat_odd.parquet:{row}")]);
            }
            let leading = &corpus.report.dropped["conversation begins with an assistant turn"];
            assert_eq!(leading.rows, ["chat_odd.parquet:2"]);
        }
        "long_row" => {
            let corpus = train(&data, &PLAIN).unwrap();
            assert_eq!(corpus.report.dropped["longer than max_seq_len"].rows, ["long_row.parquet:0"]);
            data.overlong = Overlong::Error;
            let message = train(&data, &PLAIN).unwrap_err().to_string();
            assert!(message.contains("row 0: ") && message.contains("max_seq_len = 512"), "{message}");
            data.overlong = Overlong::Truncate;
            let corpus = train(&data, &PLAIN).unwrap();
            let longest = corpus.report.longest;
            assert!(longest <= 512 && corpus.report.usable + corpus.report.dropped.len() == 2);
        }
        "duplicate_ids" => {
            data.id = Some("id".to_string());
            let corpus = train(&data, &PLAIN).unwrap();
            let names: Vec<&str> = corpus.examples.iter().map(|e| e.row.as_str()).collect();
            assert_eq!(names, ["a", "b", "a", "c", "d"]);
        }
        _ => panic!("{name}: the manifest has a file that no test knows"),
    }
}

// pains 47: a column without any value is null in every row, whatever its type
#[test]
fn other_columns_can_be_used_in_templates() {
    let Some(folder) = folder() else { return };
    let source = "{% if brand %}{{ brand }}{% else %}no brand{% endif %}";
    assert_eq!(rendered(&folder.join("null_type_column.parquet"), source)[4], "no brand");
    let source = "{{ price }} {{ when }} {{ tags | default([]) | join('+') }} {{ attrs.brand }}{{ attrs.n }}";
    let rows = rendered(&folder.join("extra_columns.parquet"), source);
    assert_eq!(rows[0], "12.50 2026-01-01T00:00:00 a+b x1");
    assert_eq!(rows[2], "12.50 2026-01-01T00:00:00  x1");
}

fn rendered(path: &Path, source: &str) -> Vec<String> {
    let format = Format::Text { template: source.to_string() };
    let encoder = Encoder::new(&format, 512, Overlong::Drop, &PLAIN).unwrap();
    let table = Table::open(path).unwrap();
    let columns = encoder.columns(&table, Use::Document).unwrap();
    let prompt = |row: &fullband::corpus::Row| match encoder.encode_prompt(row).unwrap() {
        fullband::corpus::Encoded::Ready(ids) => text_of(&ids),
        fullband::corpus::Encoded::Dropped(reason) => panic!("{reason}"),
    };
    rows(&table, &columns).iter().map(prompt).collect()
}

fn text_of(ids: &[u32]) -> String {
    fullband::corpus::Tokens::decode(&PLAIN, ids).unwrap()
}
