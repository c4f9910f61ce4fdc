//! Conversations: only the assistant's turns are trained.

use std::path::PathBuf;

use fullband::corpus::{Encoded, Tokens};
use fullband::recipe::{DataRecipe, Format, Overlong};

use super::fixtures::*;

/// One conversation of (role, content) as a recipe over a file.
fn chat(turns: &[(&str, &str)]) -> (tempfile::TempDir, DataRecipe) {
    let turns: Vec<Message> = turns.iter().map(|(role, content)| (*role, Some(*content), None)).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "chat.parquet", &[("messages", conversations(&[&turns]))]);
    (folder, over(path))
}

/// The prompt of the first row.
fn ready(data: &DataRecipe, tokens: &Bytes) -> Vec<u32> {
    match prompts(data, tokens).remove(0) {
        Encoded::Ready(ids) => ids,
        Encoded::Dropped(reason) => panic!("{reason}"),
    }
}

fn over(path: PathBuf) -> DataRecipe {
    let mut data = recipe(&[path]);
    data.format = Format::ChatMessages { messages: "messages".to_string() };
    data
}

// pains 8 (marin #7237): spans come from rendered prefixes; a stock template without generation marks is enough
#[test]
fn only_assistant_turns_are_trained_with_their_end() {
    let (_folder, data) =
        chat(&[("system", "s"), ("user", "u1"), ("assistant", "a1"), ("user", "u2"), ("assistant", "a2")]);
    let corpus = train(&data, &PLAIN).unwrap();
    let shown = fullband::corpus::display(&corpus.examples[0], &PLAIN, false).unwrap();
    assert_eq!(
        shown,
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu1<|im_end|>\n<|im_start|>assistant\n[[a1<|im_end|>]]\n\
         <|im_start|>user\nu2<|im_end|>\n<|im_start|>assistant\n[[a2<|im_end|>]]\n"
    );
    assert_eq!(corpus.report.ending_in_eos, 1);
}

// pains 9: a span's tokens are those of its text, whatever would merge over its edge
#[test]
fn spans_are_exact_in_tokens_too() {
    let colon = "{% for m in messages %}{{ m.role + ':' + m.content + '</s>' }}{% endfor %}\
                 {% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}";
    let tokens = Bytes { bos: None, template: Some(colon) };
    let (_folder, data) = chat(&[("user", "u"), ("assistant", "abc")]);
    let corpus = train(&data, &tokens).unwrap();
    assert_eq!(learnt(&corpus.examples[0], &tokens), "abc</s>");
    assert_eq!(prompts(&data, &tokens), [Encoded::Ready(tokens.encode("user:u</s>assistant:").unwrap())]);
}

// pains 9, 10 (trl #5138, #6105): a template that renders a prefix otherwise is an error with the row, no warning
#[test]
fn a_template_whose_prefix_differs_is_refused() {
    // As thinking templates do: the last assistant turn keeps what earlier ones lose.
    let thinking = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}\
                    {% if m.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}\
                    {{ m.content + '<|im_end|>' }}{% endfor %}\
                    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let tokens = Bytes { bos: None, template: Some(thinking) };
    let (_folder, data) = chat(&[("user", "u1"), ("assistant", "a1"), ("user", "u2"), ("assistant", "a2")]);
    let error = train(&data, &tokens).unwrap_err();
    assert_eq!(error.exit_code(), 3);
    let message = error.to_string();
    assert!(message.contains("chat.parquet: row 0: ") && message.contains("messages 0..=1 otherwise"), "{message}");
    // One turn renders alike alone and as a whole.
    let (_folder, data) = chat(&[("user", "u1"), ("assistant", "a1")]);
    assert_eq!(learnt(&train(&data, &tokens).unwrap().examples[0], &tokens), "<think></think>a1<|im_end|>");
}

// pains 11: a template that writes BOS itself gets no second one; one that does not gets the tokenizer's
#[test]
fn a_templates_own_bos_is_not_doubled() {
    let with_bos = "<s>{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}\
                    {% if add_generation_prompt %}{{ '>' }}{% endif %}";
    let without = "{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}\
                   {% if add_generation_prompt %}{{ '' }}{% endif %}";
    let (_folder, data) = chat(&[("user", "u"), ("assistant", ">a")]);
    for template in [with_bos, without] {
        let tokens = Bytes { bos: Some(BOS), template: Some(template) };
        let corpus = train(&data, &tokens).unwrap();
        let ids = &corpus.examples[0].ids;
        assert_eq!(ids.iter().filter(|&&id| id == BOS).count(), 1, "{template}");
        assert_eq!(ids[0], BOS);
        let prompt = ready(&data, &tokens);
        assert_eq!(prompt.iter().filter(|&&id| id == BOS).count(), 1, "{template}");
    }
}

// pains 12: the prompt of inference is what training put before the last answer, turns before it cut alike
#[test]
fn a_chat_prompt_is_what_training_put_before_the_answer() {
    let turns = [("user", "u1:"), ("assistant", "a1"), ("user", "u2:"), ("assistant", "a2")];
    let (_folder, data) = chat(&turns);
    let example = train(&data, &WITH_BOS).unwrap().examples.remove(0);
    let (_folder, asked) = chat(&turns[..3]);
    let prompt = ready(&asked, &WITH_BOS);
    assert_eq!(example.ids[..prompt.len()], prompt[..]);
    assert_eq!(example.ids[prompt.len()..], WITH_BOS.encode("a2<|im_end|>\n").unwrap());
    // The answer may be there already: it is not part of the prompt.
    assert_eq!(ready(&data, &WITH_BOS), prompt);
}

// pains 48 (ms-swift #10125): absent keys come back null from a list of structs, and are absent for the template
#[test]
fn null_fields_are_absent() {
    let names = "{% for m in messages %}{% if m.name is defined %}{{ m.name + '=' }}{% endif %}\
                 {{ m.content + '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '' }}{% endif %}";
    let tokens = Bytes { bos: None, template: Some(names) };
    let folder = tempfile::tempdir().unwrap();
    let rows: [&[Message]; 4] = [
        &[("user", Some("u"), Some("Ada")), ("assistant", Some("a"), None)],
        &[("user", None, None), ("assistant", Some("a"), None)],
        &[("user", Some("u"), None), ("assistant", Some(" "), None)],
        &[],
    ];
    let path = folder.path().join("chat.parquet");
    // A row group a row: lists of structs must stream.
    write_groups(&path, &[("messages", conversations(&rows))], 1);
    let corpus = train(&over(path), &tokens).unwrap();
    let shown = fullband::corpus::display(&corpus.examples[0], &tokens, false).unwrap();
    assert_eq!(shown, "Ada=u</s>[[a</s>]]");
    let reasons: Vec<&str> = corpus.report.dropped.keys().map(String::as_str).collect();
    assert_eq!(reasons, ["a message without content", "an assistant turn is empty", "empty conversation"]);
}

#[test]
fn turns_are_written_from_templates() {
    let folder = tempfile::tempdir().unwrap();
    let columns = [
        ("rules", text(&[Some("r"), Some(""), None])),
        ("q", text(&[Some("q1"), Some("q2"), Some("q3")])),
        ("a", text(&[Some("a1"), Some("a2"), Some("a3")])),
    ];
    let mut data = recipe(&[write(&folder, "turns.parquet", &columns)]);
    data.format = Format::ChatTurns {
        system: Some("{{ rules }}".to_string()),
        user: "Q {{ q }}".to_string(),
        assistant: "{{ a }}".to_string(),
    };
    let corpus = train(&data, &PLAIN).unwrap();
    let shown = |i: usize| fullband::corpus::display(&corpus.examples[i], &PLAIN, false).unwrap();
    let tail = |n: u8| format!("<|im_start|>user\nQ q{n}<|im_end|>\n<|im_start|>assistant\n[[a{n}<|im_end|>]]\n");
    assert_eq!(shown(0), format!("<|im_start|>system\nr<|im_end|>\n{}", tail(1)));
    assert_eq!(shown(1), tail(2));
    assert_eq!(corpus.report.dropped["rules is null"].rows, ["turns.parquet:2"]);
    let prompt = ready(&data, &PLAIN);
    assert_eq!(corpus.examples[0].ids[..corpus.examples[0].prompt_len], prompt[..]);
}

#[test]
fn a_long_conversation_is_cut_at_its_end() {
    let (_folder, mut data) = chat(&[("user", "u1"), ("assistant", "a1"), ("user", "u2"), ("assistant", "a2")]);
    let whole = train(&data, &PLAIN).unwrap().examples[0].clone();
    (data.overlong, data.max_seq_len) = (Overlong::Truncate, whole.prompt_len + 4);
    let cut = train(&data, &PLAIN).unwrap().examples.remove(0);
    assert_eq!(cut.ids, whole.ids[..whole.prompt_len + 4]);
    assert_eq!(learnt(&cut, &PLAIN), "a1<|im_end|>");
    assert!(cut.truncated);
    data.max_seq_len = whole.prompt_len;
    let message = train(&data, &PLAIN).unwrap_err().to_string();
    assert!(message.contains("prompt alone fills max_seq_len"), "{message}");
}

#[test]
fn a_base_without_template_or_a_column_of_another_shape_is_refused() {
    let (_folder, data) = chat(&[("user", "u"), ("assistant", "a")]);
    let error = train(&data, &Bytes { bos: None, template: None }).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("no chat template"), "{error}");

    let (_folder, path) = pairs(&["q"], &["a"]);
    let mut data = over(path);
    data.format = Format::ChatMessages { messages: "prompt".to_string() };
    let message = train(&data, &PLAIN).unwrap_err().to_string();
    assert!(message.contains("column 'prompt' is Utf8, expected a list of {role, content}"), "{message}");
}
