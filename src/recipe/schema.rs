//! The JSON schema of a recipe, from the types of [`super::written`]. Draft 7, which TOML editors read; everything inlined.

use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::written::Written;

/// JSON schema of a recipe: every key with its description, type, range, allowed values and default. `x-instead-of` names
/// keys that exclude this one.
pub fn schema() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = Value::from(settings.into_generator().into_root_schema_for::<Written>());
    without_null(&mut schema);
    schema
}

/// Takes the `null` of optional keys out: TOML has none, a key is left out instead.
fn without_null(schema: &mut Value) {
    if let Value::Array(items) = schema {
        return items.iter_mut().for_each(without_null);
    }
    let Value::Object(entries) = schema else { return };
    if entries.get("default").is_some_and(Value::is_null) {
        entries.remove("default");
    }
    if let Some(Value::Array(types)) = entries.get_mut("type") {
        types.retain(|name| name != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            entries.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = entries.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    if let Some(Value::Array(choices)) = entries.get_mut("anyOf") {
        choices.retain(|choice| choice["type"] != "null");
        if let [Value::Object(only)] = choices.as_slice() {
            let only = only.clone();
            entries.remove("anyOf");
            for (key, value) in only {
                entries.entry(key).or_insert(value);
            }
        }
    }
    entries.values_mut().for_each(without_null);
}
