//! Chat templates, rendered as transformers does.

use fullband::checkpoint::{ChatTemplate, Checkpoint, Family};
use serde_json::{Map, Value, json};
use tempfile::tempdir;

use crate::tiny;
use crate::tiny::refusal;

fn template(source: &str) -> ChatTemplate {
    let variables = json!({"bos_token": "<s>", "eos_token": "</s>"});
    ChatTemplate::new("chat template of base", source, variables.as_object().unwrap().clone())
}

fn conversation() -> Vec<Value> {
    vec![json!({"role": "user", "content": " Hi "}), json!({"role": "assistant", "content": "Hello"})]
}

fn render(source: &str) -> String {
    template(source).render(&conversation(), false).unwrap()
}

#[test]
fn blocks_are_trimmed_and_python_methods_work() {
    let source = "{{ bos_token }}{% for m in messages %}\n    {% if m['role'] == 'user' %}\n[{{ m.content.strip() }}]\
        \n    {% else %}\n{{ m['content'].upper() + eos_token }}\n    {% endif %}\n{% endfor %}\n";
    // jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source).render(...)
    assert_eq!(render(source), "<s>[Hi]\nHELLO</s>\n");
}

#[test]
fn generation_prompt_and_loop_controls() {
    let source = "{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";
    assert_eq!(template(source).render(&conversation(), true).unwrap(), "user<assistant>");
    assert_eq!(template(source).render(&conversation(), false).unwrap(), "user");
}

// pains 8 (marin #7237): templates with and without generation tags render alike
#[test]
fn generation_tags_change_nothing_in_the_text() {
    let marked = "{% for m in messages %}\n{% if m.role == 'assistant' %}\n{% generation %}\n{{ m.content }}\n\
        {%- endgeneration %}\n!{% else %}\n?{% endif %}\n{% endfor %}";
    let plain = marked.replace("endgeneration", "endif").replace("generation", "if true");
    assert_eq!(render(marked), render(&plain));
    assert_eq!(render(marked), "?Hello!");
}

#[test]
fn tojson_is_pythons() {
    // json.dumps(x, ensure_ascii=False) and with indent=2
    let set = "{% set x = {'b': [1, 2.5, none, true], 'a': 'é\"<'} %}";
    assert_eq!(render(&format!("{set}{{{{ x|tojson }}}}")), r#"{"b": [1, 2.5, null, true], "a": "é\"<"}"#);
    assert_eq!(
        render(&format!("{set}{{{{ x|tojson(indent=2) }}}}")),
        "{\n  \"b\": [\n    1,\n    2.5,\n    null,\n    true\n  ],\n  \"a\": \"é\\\"<\"\n}"
    );
    assert_eq!(
        render(&format!("{set}{{{{ x|tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}}}")),
        r#"{"a":"\u00e9\"<","b":[1,2.5,null,true]}"#
    );
    assert_eq!(render("{{ {}|tojson(indent=4) }}{{ []|tojson(indent=4) }}"), "{}[]");
}

#[test]
fn tools_are_none_and_dates_are_there() {
    assert_eq!(render("{{ 'no' if tools is none }}{{ 'undefined' if unk_token is not defined }}"), "noundefined");
    let year = render("{{ strftime_now('%Y') }}");
    assert!(year.len() == 4 && year.parse::<u32>().is_ok_and(|y| y >= 2024), "{year}");
}

#[test]
fn errors_name_the_template() {
    let raised = template("\n{{ raise_exception('roles must alternate') }}");
    let message = refusal(raised.render(&conversation(), false));
    assert_eq!(message, "chat template of base: line 2: roles must alternate");
    let broken = template("{% for m in messages %}");
    let message = refusal(broken.render(&conversation(), false));
    assert!(message.starts_with("chat template of base: line 1: syntax error"), "{message}");
}

/// Renders with the template that a folder's tokenizer gives.
fn from_folder(config: Value, jinja: Option<&str>) -> fullband::Result<Option<String>> {
    let dir = tempdir().unwrap();
    tiny::folder(dir.path(), &tiny::config(Family::Llama));
    let mut names: Map<String, Value> = tiny::tokenizer_config().as_object().unwrap().clone();
    names.extend(config.as_object().unwrap().clone());
    tiny::write_json(&dir.path().join("tokenizer_config.json"), &Value::Object(names));
    if let Some(source) = jinja {
        std::fs::write(dir.path().join("chat_template.jinja"), source).unwrap();
    }
    let tokenizer = Checkpoint::open_path("tiny", dir.path())?.tokenizer()?;
    tokenizer.chat_template.map(|t| t.render(&conversation(), false)).transpose()
}

#[test]
fn where_a_template_comes_from() {
    let chatml = "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n";
    assert_eq!(from_folder(json!({}), None).unwrap().as_deref(), Some(chatml));
    assert_eq!(from_folder(json!({"chat_template": null}), None).unwrap(), None);
    let named = json!({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]});
    assert_eq!(from_folder(named.clone(), None).unwrap().as_deref(), Some("D"));
    assert_eq!(from_folder(named, Some("{{ eos_token }}")).unwrap().as_deref(), Some("<|im_end|>"));
    let unnamed = json!({"chat_template": [{"name": "a", "template": "A"}, {"name": "b", "template": "B"}]});
    assert!(refusal(from_folder(unnamed, None)).contains("no template named 'default'"));
}
