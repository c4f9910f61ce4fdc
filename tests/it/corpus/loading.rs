//! Whole corpora: splits, ids, reports.

use fullband::corpus::Batch;
use fullband::recipe::Validation;

use super::fixtures::*;

fn many(n: usize) -> (tempfile::TempDir, std::path::PathBuf) {
    let prompts: Vec<String> = (0..n).map(|i| format!("question {i}")).collect();
    let completions: Vec<String> = (0..n).map(|i| format!(" {i}")).collect();
    let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
    let completions: Vec<&str> = completions.iter().map(String::as_str).collect();
    pairs(&prompts, &completions)
}

#[test]
fn a_fraction_is_held_out_by_seed_and_row() {
    let (_folder, path) = many(400);
    let mut data = recipe(&[path]);
    data.validation = Validation::Fraction(0.25);
    let (training, validation) = load_with(&data, &PLAIN).unwrap();
    let validation = validation.unwrap();
    assert_eq!(training.examples.len() + validation.examples.len(), 400);
    assert!((70..=130).contains(&validation.examples.len()), "{}", validation.examples.len());
    assert_eq!(training.report.rows + validation.report.rows, 400);
    assert_eq!(validation.report.also_in_training, Some(0));
    // The same again; and a row's side does not depend on what else is dropped.
    let again = load_with(&data, &PLAIN).unwrap();
    assert_eq!(again.0.examples, training.examples);
    data.max_seq_len = 16;
    let shorter = load_with(&data, &PLAIN).unwrap();
    assert!(shorter.0.examples.len() < training.examples.len());
    assert!(shorter.0.examples.iter().all(|example| training.examples.contains(example)));
}

#[test]
fn a_split_leaves_a_row_on_each_side() {
    for fraction in [0.001, 0.999] {
        let (_folder, path) = many(2);
        let mut data = recipe(&[path]);
        data.validation = Validation::Fraction(fraction);
        let (training, validation) = load_with(&data, &PLAIN).unwrap();
        assert_eq!((training.examples.len(), validation.unwrap().examples.len()), (1, 1));
    }
    let (_folder, path) = many(1);
    let mut data = recipe(&[path]);
    data.validation = Validation::Fraction(0.5);
    assert!(load_with(&data, &PLAIN).unwrap_err().to_string().contains("one usable row"));
}

#[test]
fn rows_are_named_by_the_id_column_or_by_file_and_row() {
    let folder = tempfile::tempdir().unwrap();
    let columns = |a: &'static str| {
        [("sku", text(&[Some(a), None])), ("prompt", words(&["p", "p"])), ("completion", words(&["c", "d"]))]
    };
    std::fs::create_dir(folder.path().join("b")).unwrap();
    let first = write(&folder, "rows.parquet", &columns("x"));
    let second = write(&folder, "b/rows.parquet", &columns("y"));
    let mut data = recipe(&[first.clone(), second.clone()]);
    data.id = Some("sku".to_string());
    let names: Vec<String> = train(&data, &PLAIN).unwrap().examples.into_iter().map(|e| e.row).collect();
    let at = |path: &std::path::Path| format!("{}:1", path.display());
    assert_eq!(names, ["x".to_string(), at(&first), "y".to_string(), at(&second)]);
    data.id = Some("skew".to_string());
    assert!(train(&data, &PLAIN).unwrap_err().to_string().contains("column 'skew' not found; did you mean 'sku'?"));
}

#[test]
fn the_report_counts_what_the_corpus_holds() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = text(&[Some("q"), Some("q"), None, Some("a longer q"), Some("r")]);
    let completions = words(&["a", "a", "b", "c", ""]);
    let path = write(&folder, "train.parquet", &[("prompt", prompts), ("completion", completions)]);
    let held_out =
        write(&folder, "held.parquet", &[("prompt", words(&["q", "s"])), ("completion", words(&["a", "t"]))]);
    let mut data = recipe(&[path]);
    data.validation = Validation::Files(vec![held_out]);
    let (training, validation) = load_with(&data, &PLAIN).unwrap();
    let report = &training.report;
    assert_eq!((report.rows, report.usable, report.files[0].rows), (5, 3, 5));
    // q a EOS, twice; "a longer q" c EOS.
    assert_eq!((report.tokens, report.trained_tokens, report.longest), (3 + 3 + 12, 6, 12));
    assert_eq!(report.longest_row, "train.parquet:3");
    assert_eq!((report.ending_in_eos, report.duplicates, report.truncated.count), (3, 1, 0));
    assert_eq!(report.lengths.iter().map(|bin| bin.documents).sum::<usize>(), 3);
    assert_eq!(report.dropped["prompt is null"].rows, ["train.parquet:2"]);
    assert_eq!(report.dropped["completion is empty"].rows, ["train.parquet:4"]);
    let validation = validation.unwrap().report;
    assert_eq!(validation.also_in_training, Some(1));
    assert!(validation.warnings().iter().any(|w| w.contains("training documents too")));

    let lines = report.render("train");
    for line in ["train: 3 of 5 rows usable", "1: prompt is null (train.parquet:2)", "6 (33.3 %)"] {
        assert!(lines.contains(line), "{line} is not in\n{lines}");
    }
    let json = serde_json::to_value(report).unwrap();
    assert_eq!(json["dropped"]["prompt is null"]["count"], 1);
}

#[test]
fn long_lists_of_rows_are_counted_but_not_listed() {
    let mut completions = [""; 50];
    completions[49] = "c";
    let (_folder, path) = pairs(&["p"; 50], &completions);
    let corpus = train(&recipe(&[path]), &PLAIN).unwrap();
    let dropped = &corpus.report.dropped["completion is empty"];
    assert_eq!((dropped.count, dropped.rows.len()), (49, 20));
    assert!(corpus.report.render("train").contains("and 29 more"));
}

// pains 23 (trl #805, LlamaFactory #2289): documents keep their borders; no label crosses one
#[test]
fn a_batch_knows_its_documents() {
    let (_folder, path) = pairs(&["q", "pq"], &["ab", "c"]);
    let corpus = train(&recipe(&[path]), &PLAIN).unwrap();
    let batch = Batch::pack([1, 0].map(|i| (i as u64, &corpus.examples[i])));
    assert_eq!(batch.offsets, [0, 4, 8]);
    assert_eq!(batch.prompt_lens, [2, 1]);
    assert_eq!(batch.documents, [1, 0]);
    let targets = batch.targets(0.0);
    // pq c EOS | q a b EOS: nothing predicts the first token of a document.
    assert_eq!(targets.positions, [1, 2, 4, 5, 6]);
    assert_eq!(targets.tokens, [b'c' as u32, EOS, b'a' as u32, b'b' as u32, EOS]);
    assert_eq!(batch.targets(0.5).weights, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0]);
}

// pains 6 (torchtune #2344): a batch without any label counts nothing, it does not divide by it
#[test]
fn a_batch_without_labels_weighs_nothing() {
    let (_folder, path) = pairs(&["q"], &["a"]);
    let mut example = train(&recipe(&[path]), &PLAIN).unwrap().examples.remove(0);
    example.trained.fill(false);
    let targets = Batch::pack([(0, &example)]).targets(0.0);
    assert!(targets.positions.is_empty());
    assert_eq!(targets.weight_sum(), 0.0);
}
