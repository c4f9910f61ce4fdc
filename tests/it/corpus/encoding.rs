//! Tokens and labels of text and of prompt and completion.

use fullband::corpus::{Encoded, Tokens};
use fullband::recipe::{Format, Overlong};

use super::fixtures::*;

fn ids(text: &str) -> Vec<u32> {
    PLAIN.encode(text).unwrap()
}

// pains 1 (transformers #23530, trl #976): labels are masked by position; a real EOS stays one, wherever it stands
#[test]
fn a_token_is_masked_by_its_place_never_by_its_id() {
    let (_folder, path) = pairs(&["q</s>"], &["a</s>b"]);
    let corpus = train(&recipe(&[path]), &PLAIN).unwrap();
    let example = &corpus.examples[0];
    assert_eq!(example.ids, ids("q</s>a</s>b</s>"));
    assert_eq!(example.trained, [false, false, true, true, true, true]);
    assert_eq!(example.prompt_len, 2);
}

// pains 2 (trl #1623, #3083): EOS once after an uncut completion, and counted
#[test]
fn eos_ends_each_completion_once() {
    let (_folder, path) = pairs(&["q", "q"], &[" a", " b</s>"]);
    let corpus = train(&recipe(&[path]), &PLAIN).unwrap();
    assert_eq!(corpus.examples[0].ids, ids("q a</s>"));
    assert_eq!(corpus.examples[1].ids, ids("q b</s>"));
    assert!(corpus.examples.iter().all(|e| e.trained.last() == Some(&true)));
    assert_eq!(corpus.report.ending_in_eos, 2);
}

// pains 3 (torchtune #2792): the cap changes no label where nothing is cut
#[test]
fn labels_are_the_same_with_and_without_a_cap_that_cuts_nothing() {
    let (_folder, path) = pairs(&["q1", "longer question"], &[" a", " an answer"]);
    let mut data = recipe(&[path]);
    data.overlong = Overlong::Truncate;
    let free = train(&data, &WITH_BOS).unwrap();
    data.max_seq_len = free.report.longest;
    let capped = train(&data, &WITH_BOS).unwrap();
    assert_eq!(free.examples, capped.examples);
}

// pains 4 (transformers #19742): a cut completion does not teach to stop at the cut
#[test]
fn a_cut_completion_gets_no_eos() {
    let (_folder, path) = pairs(&["1234", "1234"], &["abcdefgh", "abcd"]);
    let mut data = recipe(&[path]);
    (data.max_seq_len, data.overlong) = (8, Overlong::Truncate);
    let corpus = train(&data, &PLAIN).unwrap();
    // The second loses only its EOS, which is a cut all the same.
    for example in &corpus.examples {
        assert_eq!(example.ids, ids("1234abcd"));
        assert!(example.truncated);
    }
    assert_eq!(corpus.report.ending_in_eos, 0);
    assert_eq!(corpus.report.truncated.rows, ["train.parquet:0", "train.parquet:1"]);
    assert!(corpus.report.warnings().iter().any(|w| w.contains("will not learn to stop")));
}

// pains 5, 7 (trl #6668, mlx-lm PR #1355): a prompt that fills the cap leaves nothing to learn
#[test]
fn a_prompt_that_fills_the_cap_drops_the_row() {
    let (_folder, path) = pairs(&["12345678", "123456789", "1234567"], &["abc", "abc", "abc"]);
    let mut data = recipe(std::slice::from_ref(&path));
    (data.max_seq_len, data.overlong) = (8, Overlong::Truncate);
    let corpus = train(&data, &PLAIN).unwrap();
    let dropped = &corpus.report.dropped["prompt alone fills max_seq_len"];
    assert_eq!((dropped.count, dropped.rows[0].as_str()), (2, "train.parquet:0"));
    assert_eq!(learnt(&corpus.examples[0], &PLAIN), "a");
    assert!(corpus.examples[0].prompt_len < corpus.examples[0].ids.len());

    data.max_seq_len = 7;
    let error = train(&data, &PLAIN).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    let message = error.to_string();
    assert!(message.contains("none of 3 rows can be used: 3 x prompt alone fills max_seq_len"), "{message}");
    assert!(message.contains("train.parquet:0"), "{message}");
}

#[test]
fn overlong_rows_are_dropped_or_refused_as_asked() {
    let (_folder, path) = pairs(&["q", "question"], &["a", "a long answer"]);
    let mut data = recipe(&[path]);
    data.max_seq_len = 8;
    let corpus = train(&data, &PLAIN).unwrap();
    assert_eq!(corpus.report.dropped["longer than max_seq_len"].rows, ["train.parquet:1"]);
    data.overlong = Overlong::Error;
    let error = train(&data, &PLAIN).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    assert!(error.to_string().contains("row 1: 22 tokens, more than data.max_seq_len = 8"), "{error}");
}

// pains 9 (trl #5213): tokens over the seam of prompt and completion are never merged
#[test]
fn prompt_and_completion_are_tokenised_apart() {
    assert_eq!(ids("q:a"), [u32::from(b'q'), MERGED]);
    let (_folder, path) = pairs(&["q:"], &["a"]);
    let data = recipe(&[path]);
    let corpus = train(&data, &PLAIN).unwrap();
    let example = &corpus.examples[0];
    assert_eq!(example.ids[..2], ids("q:"));
    assert_eq!(example.ids[2..], ids("a</s>"));
    assert_eq!(prompts(&data, &PLAIN), [Encoded::Ready(ids("q:"))]);
}

// pains 11 (trl #1400, open-r1 #462): exactly one BOS, in training and in inference
#[test]
fn bos_stands_in_front_once() {
    let (_folder, path) = pairs(&["q", "<s>q"], &["a", "a"]);
    let data = recipe(&[path]);
    for example in train(&data, &WITH_BOS).unwrap().examples {
        assert_eq!(example.ids, ids("<s>qa</s>"));
        assert_eq!(example.prompt_len, 2);
    }
    for prompt in prompts(&data, &WITH_BOS) {
        assert_eq!(prompt, Encoded::Ready(ids("<s>q")));
    }
    assert_eq!(fullband::corpus::prompt_ids(&WITH_BOS, "<s>q").unwrap(), ids("<s>q"));
    assert_eq!(fullband::corpus::prompt_ids(&WITH_BOS, "q").unwrap(), ids("<s>q"));
    assert_eq!(fullband::corpus::prompt_ids(&PLAIN, "q").unwrap(), ids("q"));
}

// pains 12 (Soup #781): inference sends the ids that training put before the completion
#[test]
fn inference_starts_where_training_put_the_completion() {
    let (_folder, path) = pairs(&["one:", "two ", "", "sof\u{e1} \u{1f50c}"], &["a", " b", "c", "d"]);
    for tokens in [&PLAIN, &WITH_BOS] {
        let data = recipe(std::slice::from_ref(&path));
        let corpus = train(&data, tokens).unwrap();
        let ready = prompts(&data, tokens).into_iter().filter_map(|prompt| match prompt {
            Encoded::Ready(ids) => Some(ids),
            Encoded::Dropped(reason) => {
                assert_eq!(reason, "prompt is empty");
                None
            }
        });
        let ready: Vec<Vec<u32>> = ready.collect();
        assert_eq!(ready.len(), if tokens.bos.is_some() { 4 } else { 3 });
        assert_eq!(ready.len(), corpus.examples.len());
        for (example, prompt) in corpus.examples.iter().zip(&ready) {
            assert_eq!(example.ids[..example.prompt_len], prompt[..]);
        }
    }
}

#[test]
fn every_token_of_text_but_the_first_is_a_label() {
    let (_folder, path) = pairs(&["words", "<s>words</s>", "  "], &["-", "-", "-"]);
    let mut data = recipe(&[path]);
    data.format = Format::Text { template: "{{ prompt }}".to_string() };
    let corpus = train(&data, &WITH_BOS).unwrap();
    assert_eq!(corpus.examples.len(), 2);
    for example in &corpus.examples {
        assert_eq!(example.ids, ids("<s>words</s>"));
        assert_eq!(example.trained, [false, true, true, true, true, true, true]);
        assert_eq!(example.prompt_len, 1);
    }
    assert_eq!(corpus.report.dropped["text is empty"].rows, ["train.parquet:2"]);
    // A cut text ends without EOS.
    (data.max_seq_len, data.overlong) = (4, Overlong::Truncate);
    assert_eq!(train(&data, &WITH_BOS).unwrap().examples[0].ids, ids("<s>wor"));
}

#[test]
fn an_example_is_shown_with_its_trained_tokens_marked() {
    let (_folder, path) = pairs(&["q: "], &["yes"]);
    let corpus = train(&recipe(&[path]), &WITH_BOS).unwrap();
    let shown = |ansi| fullband::corpus::display(&corpus.examples[0], &WITH_BOS, ansi).unwrap();
    assert_eq!(shown(false), "<s>q: [[yes</s>]]");
    assert_eq!(shown(true), "<s>q: \u{1b}[32myes</s>\u{1b}[0m");
}
