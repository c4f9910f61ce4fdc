//! Templates over the columns of a row.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Int64Array, StructArray};
use arrow_schema::{DataType, Field, Fields};
use fullband::corpus::{Rendered, Table, Template};

use super::fixtures::*;

/// Renders `source` over every row of a file with these columns.
fn rendered(columns: &[(&str, ArrayRef)], source: &str) -> fullband::Result<Vec<Rendered>> {
    let folder = tempfile::tempdir().unwrap();
    let path = write(&folder, "rows.parquet", columns);
    let table = Table::open(&path).unwrap();
    let template = Template::parse("data.text.template", source)?;
    let columns = template.check(&table)?;
    rows(&table, &columns).iter().map(|row| template.render(row)).collect()
}

fn written(columns: &[(&str, ArrayRef)], source: &str) -> Vec<String> {
    let one = |row| match row {
        Rendered::Text(text) => text,
        Rendered::Null(reason) => format!("<{reason}>"),
    };
    rendered(columns, source).unwrap().into_iter().map(one).collect()
}

fn refusal(columns: &[(&str, ArrayRef)], source: &str) -> String {
    rendered(columns, source).unwrap_err().to_string()
}

fn shop() -> Vec<(&'static str, ArrayRef)> {
    let brand = text(&[Some("Acme"), None]);
    let n: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), None]));
    let fields = Fields::from(vec![Field::new("brand", DataType::Utf8, true), Field::new("n", DataType::Int64, true)]);
    vec![
        ("title", words(&["Mug <b>", "Cup"])),
        ("brand", brand.clone()),
        ("price", Arc::new(Float32Array::from(vec![0.85, 12.0])) as ArrayRef),
        ("tags", lists(&[Some(&[Some("a"), Some("b")]), Some(&[Some("c"), None])])),
        ("attrs", Arc::new(StructArray::new(fields, vec![brand, n], None))),
        ("Pack size", words(&["1", "2"])),
    ]
}

#[test]
fn a_null_cell_drops_the_row_wherever_it_would_be_written() {
    for source in ["{{ brand }}", "{{ title }} {{ brand | upper }}", "{{ 'by ' ~ brand }}", "{{ 'by ' + brand }}"] {
        assert_eq!(written(&shop(), source)[1], "<brand is null>", "{source}");
    }
    for source in ["{{ brand.lower() }}", "{% for c in brand %}{{ c }}{% endfor %}", "{{ brand | tojson }}"] {
        assert_eq!(written(&shop(), source)[1], "<brand is null>", "{source}");
    }
    assert_eq!(written(&shop(), "{% set b = brand %}{{ b | upper }}")[1], "<brand is null>");
    assert_eq!(written(&shop(), "{{ row['brand'] }}"), ["Acme", "<brand is null>"]);
    assert_eq!(written(&shop(), "{{ attrs.n }}"), ["7", "<attrs.n is null>"]);
}

#[test]
fn a_null_cell_can_be_provided_for() {
    let source = "{{ title }}{% if brand %} by {{ brand }}{% endif %}";
    assert_eq!(written(&shop(), source), ["Mug <b> by Acme", "Cup"]);
    assert_eq!(written(&shop(), "{{ brand | default('unknown') }}"), ["Acme", "unknown"]);
    assert_eq!(written(&shop(), "{{ brand or 'unknown' }}"), ["Acme", "unknown"]);
    assert_eq!(written(&shop(), "{{ title }}{{ ' by ' ~ brand if brand }}")[1], "Cup");
    assert_eq!(written(&shop(), "{{ 'n' if brand is none else 'y' }}"), ["y", "n"]);
    assert_eq!(written(&shop(), "{% if brand is defined %}y{% else %}n{% endif %}"), ["y", "n"]);
}

// pains 48: null fields are absent, in JSON too; a null inside a list is never written as nothing
#[test]
fn nulls_inside_a_cell_are_seen() {
    assert_eq!(written(&shop(), "{{ attrs | tojson }}"), [r#"{"brand": "Acme", "n": 7}"#, "{}"]);
    assert_eq!(written(&shop(), "{{ tags | tojson }}"), [r#"["a", "b"]"#, r#"["c", null]"#]);
    assert_eq!(written(&shop(), "{{ tags | join(', ') }}"), ["a, b", "<tags holds a null>"]);
    assert_eq!(written(&shop(), "{% for t in tags if t %}{{ t }};{% endfor %}"), ["a;b;", "c;"]);
}

#[test]
fn lists_structs_and_numbers_are_usable() {
    assert_eq!(written(&shop(), "{{ tags | join(' / ') }}")[0], "a / b");
    assert_eq!(written(&shop(), "{{ attrs.brand }} {{ price }}")[0], "Acme 0.85");
    assert_eq!(written(&shop(), "{{ attrs.items() | list | length }}"), ["2", "0"]);
    assert_eq!(written(&shop(), "{{ row['Pack size'] }}"), ["1", "2"]);
    assert_eq!(written(&shop(), "{{ title.upper().split(' ')[0] }}"), ["MUG", "CUP"]);
}

#[test]
fn text_is_written_as_it_is() {
    assert_eq!(written(&shop(), "{{ title }}\n"), ["Mug <b>\n", "Cup\n"]);
    assert_eq!(written(&shop(), "{{ title | tojson }}")[0], "\"Mug <b>\"");
    assert_eq!(written(&shop(), "{{ attrs | tojson(indent=1) }}")[0], "{\n \"brand\": \"Acme\",\n \"n\": 7\n}");
    let source = "Tags:\n  {% for t in tags if t %}\n- {{ t }}\n  {% endfor %}\nEnd";
    assert_eq!(written(&shop(), source)[0], "Tags:\n- a\n- b\nEnd");
}

#[test]
fn a_column_alone_must_be_text_and_a_list_is_never_text() {
    let message = refusal(&shop(), "{{ price }}");
    assert!(message.contains("column 'price' is Float32, expected text"), "{message}");
    assert!(message.contains("{{ price | string }}"), "{message}");
    assert_eq!(written(&shop(), "{{ price | string }}"), ["0.85", "12.0"]);
    assert!(refusal(&shop(), "{{ tags }}").contains("expected text"));
    let message = refusal(&shop(), "Tags: {{ tags }}");
    assert!(message.contains("rows.parquet: row 0: data.text.template: a sequence is not text"), "{message}");
}

#[test]
fn what_is_not_there_is_named() {
    let message = refusal(&shop(), "{{ title }} {{ brnd }}");
    assert!(
        message.contains("column 'brnd' not found; did you mean 'brand'? the columns are title, brand"),
        "{message}"
    );
    let message = refusal(&shop(), "{{ attrs.brnd }}");
    assert!(message.contains("column 'attrs' has no field 'brnd'; did you mean 'brand'?"), "{message}");
    let message = refusal(&shop(), "{{ title }}: {{ tags[5] }}");
    assert!(message.contains("row 0: ") && message.contains("undefined"), "{message}");
    // A null that the template provides for is not to blame.
    let message = refusal(&shop(), "{{ brand | default('') }}{{ title[100] }}");
    assert!(message.contains("row 0: ") && message.contains("title[100]"), "{message}");
    let message = refusal(&shop(), "{{ title | shout }}");
    assert!(message.contains("row 0: ") && message.contains("shout"), "{message}");

    let error = Template::parse("data.text.template", "{{ title ").unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().starts_with("data.text.template: "), "{error}");
}
