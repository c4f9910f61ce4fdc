//! Parquet files: layouts, projection, row groups, faults.

use std::sync::Arc;

use arrow_array::types::{Int8Type, Int16Type, Int32Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BinaryViewArray, DictionaryArray, FixedSizeBinaryArray, Int8Array, LargeBinaryArray,
    LargeStringArray, NullArray, RunArray, StringArray, StringViewArray,
};
use arrow_schema::DataType;
use fullband::corpus::{NotText, Table, as_text, is_text};
use parquet::file::properties::WriterProperties;

use super::fixtures::*;

const WORDS: [Option<&str>; 4] = [Some("sof\u{e1}"), None, Some(""), Some("a rather long piece of text")];

fn dictionary<K: arrow_array::types::ArrowDictionaryKeyType>() -> ArrayRef {
    Arc::new(WORDS.into_iter().collect::<DictionaryArray<K>>())
}

fn layouts() -> Vec<ArrayRef> {
    let bytes = || WORDS.iter().map(|word| word.map(str::as_bytes)).collect::<Vec<_>>();
    let views: ArrayRef = Arc::new(StringViewArray::from(WORDS.to_vec()));
    let keys = Int8Array::from(vec![Some(0), None, Some(2), Some(3)]);
    vec![
        Arc::new(StringArray::from(WORDS.to_vec())),
        Arc::new(LargeStringArray::from(WORDS.to_vec())),
        views.clone(),
        Arc::new(BinaryArray::from(bytes())),
        Arc::new(LargeBinaryArray::from(bytes())),
        Arc::new(BinaryViewArray::from(bytes())),
        dictionary::<Int8Type>(),
        dictionary::<Int16Type>(),
        dictionary::<Int32Type>(),
        dictionary::<UInt8Type>(),
        dictionary::<UInt16Type>(),
        dictionary::<UInt32Type>(),
        dictionary::<UInt64Type>(),
        // Dictionaries of views, with a null among the keys (arrow-rs #9219) and with one among the values.
        Arc::new(DictionaryArray::<Int8Type>::new(keys, views.clone())),
        Arc::new(DictionaryArray::<Int8Type>::new(Int8Array::from(vec![0, 1, 2, 3]), views)),
        Arc::new(WORDS.into_iter().collect::<RunArray<Int32Type>>()),
    ]
}

// pains 49 (arrow-rs #9219, PR #10831; datafusion-ducklake #160): one reading for every text layout
#[test]
fn every_text_layout_reads_alike() {
    for array in layouts() {
        assert!(is_text(array.data_type()), "{}", array.data_type());
        for (row, word) in WORDS.iter().enumerate() {
            assert_eq!(as_text(array.as_ref(), row), Ok(*word), "{}", array.data_type());
        }
    }
    let fixed = FixedSizeBinaryArray::try_from_iter([b"ab", b"\xff\xfe"].into_iter()).unwrap();
    assert_eq!(as_text(&fixed, 0), Ok(Some("ab")));
    assert_eq!(as_text(&fixed, 1), Err(NotText::Utf8));
    assert_eq!(as_text(&NullArray::new(1), 0), Ok(None));
    assert_eq!(as_text(numbers(&[1]).as_ref(), 0), Err(NotText::Type(DataType::Int64)));
}

// pains 49: the same through a file, as far as Parquet stores the layout
#[test]
fn every_text_layout_reads_alike_from_a_file() {
    let folder = tempfile::tempdir().unwrap();
    for array in layouts().into_iter().take(13) {
        let path = write(&folder, "one.parquet", &[("c", array.clone())]);
        let rows = rows(&Table::open(&path).unwrap(), &["c".to_string()]);
        let read: Vec<_> = rows.iter().map(|row| row.get("c").and_then(|value| value.as_str())).collect();
        assert_eq!(read, WORDS, "{}", array.data_type());
    }
}

#[test]
fn only_the_columns_asked_for_are_read_in_row_groups() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("groups.parquet");
    let names: Vec<String> = (0..2500).map(|i| format!("n{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    write_groups(&path, &[("a", words(&names)), ("b", numbers(&(0..2500).collect::<Vec<_>>()))], 700);
    let table = Table::open(&path).unwrap();
    assert_eq!((table.num_rows(), table.num_row_groups()), (2500, 4));
    let rows = rows(&table, &["b".to_string()]);
    assert_eq!(rows.len(), 2500);
    for (i, row) in rows.iter().enumerate() {
        assert_eq!(row.index, i);
        assert_eq!(row.get("b").and_then(|v| v.as_i64()), Some(i as i64));
        assert!(row.get("a").is_none());
    }
    assert_eq!(rows[3].name(Some("b")), "3");
    assert_eq!(rows[3].name(None), "groups.parquet:3");
}

// pains 47 (datasets #7222, ray #49338): null throughout in one file or row group, text in another
#[test]
fn a_column_may_be_null_throughout_in_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let nulls: ArrayRef = Arc::new(NullArray::new(2));
    let first = write(&folder, "first.parquet", &[("prompt", words(&["a", "b"])), ("completion", nulls)]);
    let second = folder.path().join("second.parquet");
    let completion = text(&[None, Some("x")]);
    write_groups(&second, &[("prompt", words(&["c", "d"])), ("completion", completion)], 1);
    let corpus = train(&recipe(&[first, second]), &PLAIN).unwrap();
    assert_eq!(corpus.examples.len(), 1);
    assert_eq!(corpus.examples[0].row, "second.parquet:1");
    let dropped = &corpus.report.dropped["completion is null"];
    assert_eq!(dropped.rows, ["first.parquet:0", "first.parquet:1", "second.parquet:0"]);
}

#[test]
fn faults_name_the_file_and_come_before_any_row() {
    let (folder, good) = pairs(&["p"], &["c"]);
    let short = write(&folder, "short.parquet", &[("prompt", words(&["p"])), ("completions", words(&["c"]))]);
    let message = train(&recipe(&[good.clone(), short]), &PLAIN).unwrap_err().to_string();
    assert!(message.contains("short.parquet: column 'completion' not found; did you mean 'completions'?"), "{message}");
    assert!(message.contains("the columns are prompt, completions"), "{message}");

    let typed = write(&folder, "typed.parquet", &[("prompt", words(&["p"])), ("completion", numbers(&[1]))]);
    let message = train(&recipe(&[good.clone(), typed]), &PLAIN).unwrap_err().to_string();
    assert!(message.contains("typed.parquet: column 'completion' is Int64, expected text"), "{message}");

    let bytes = std::fs::read(&good).unwrap();
    let cut = folder.path().join("cut.parquet");
    std::fs::write(&cut, &bytes[..bytes.len() - 20]).unwrap();
    let error = train(&recipe(&[cut]), &PLAIN).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("cut.parquet: not a Parquet file or cut short"), "{error}");

    let other = folder.path().join("other.parquet");
    std::fs::write(&other, "prompt,completion\np,c\n").unwrap();
    assert!(train(&recipe(&[other]), &PLAIN).unwrap_err().to_string().contains("other.parquet: not a Parquet file"));

    let empty = write(&folder, "empty.parquet", &[("prompt", words(&[])), ("completion", words(&[]))]);
    assert!(train(&recipe(&[empty]), &PLAIN).unwrap_err().to_string().ends_with("empty.parquet: no rows"));

    let message = train(&recipe(&[folder.path().join("absent.parquet")]), &PLAIN).unwrap_err().to_string();
    assert!(message.contains("absent.parquet"), "{message}");
}

#[test]
fn bytes_that_are_not_text_name_their_row() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![&b"ok"[..], &b"\xff\xfe"[..]]));
    let path = write(&folder, "binary.parquet", &[("prompt", bytes), ("completion", words(&["a", "b"]))]);
    let message = train(&recipe(&[path]), &PLAIN).unwrap_err().to_string();
    assert!(message.contains("binary.parquet: row 1: column 'prompt' is not valid UTF-8"), "{message}");

    // The same bytes in columns that claim to be text, which the reader itself refuses: row by row, or a dictionary
    // whole.
    for (dictionary, place) in [(false, "row 3: "), (true, "rows from 0 on: ")] {
        let path = folder.path().join("claimed.parquet");
        let completions = words(&["QQ1", "QQ2", "QQ3", "QQ4", "QQ5"]);
        let properties = WriterProperties::builder().set_dictionary_enabled(dictionary).build();
        write_with(&path, &[("prompt", words(&["fine"; 5])), ("completion", completions)], properties);
        let mut file = std::fs::read(&path).unwrap();
        let at = file.windows(3).position(|window| window == b"QQ4").unwrap();
        file[at] = 0xff;
        std::fs::write(&path, file).unwrap();
        let error = train(&recipe(&[path]), &PLAIN).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains(&format!("claimed.parquet: {place}")), "{error}");
    }
}
