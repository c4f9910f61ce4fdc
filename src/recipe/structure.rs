//! Checks a document against the recipe's JSON schema: unknown and missing keys, types, ranges, allowed values. Reports all
//! that is wrong, each with its place, what was expected and, for a misspelt word, the nearest known one. Reads only the
//! keywords that [`super::schema`] writes.

use serde_json::Value as Json;

use super::document::{Content, Document, Node, Origin, Problem};

/// All that is wrong with `document`; empty: it deserialises.
pub fn check(document: &Document, schema: &Json) -> Vec<Problem> {
    let mut checker = Checker { root: schema, problems: Vec::new() };
    checker.node(&document.root, schema, "");
    checker.problems
}

/// The schema of the key or index `step` of what `schema` describes.
pub fn property<'a>(schema: &'a Json, step: &str) -> Option<&'a Json> {
    schema["properties"]
        .get(step)
        .or_else(|| schema.get("additionalProperties").filter(|more| more.is_object()))
        .or_else(|| schema.get("items").filter(|_| step.parse::<usize>().is_ok()))
}

/// The candidate that `word` most likely was meant to be.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let score = |candidate: &str| strsim::jaro_winkler(&word, candidate);
    let best = candidates.into_iter().max_by(|a, b| score(a).total_cmp(&score(b)))?;
    (score(best) >= 0.75).then_some(best)
}

/// What a value is, for a message.
pub fn describe(content: &Content) -> String {
    match content {
        Content::Table(_) => "a table".into(),
        Content::Array(_) => "a list".into(),
        Content::String(text) => format!("the string {text:?}"),
        Content::Integer(value) => format!("the integer {value}"),
        Content::Float(value) => format!("the number {value:?}"),
        Content::Boolean(value) => format!("the boolean {value}"),
        Content::Datetime(text) => format!("the date {text}"),
    }
}

/// `"x" is not allowed` with the nearest of `allowed` and all of them.
pub fn not_allowed(word: &str, allowed: &[&str]) -> String {
    let hint = nearest(word, allowed.iter().copied()).map_or(String::new(), |near| format!("did you mean {near:?}? "));
    format!("{word:?} is not allowed; {hint}allowed: {}", allowed.join(", "))
}

/// What other tools call our keys.
const ELSEWHERE: [(&str, &str); 20] = [
    ("base_model", "model.base"),
    ("gradient_accumulation_steps", "train.accumulate"),
    ("gradient_checkpointing", "train.recompute"),
    ("learning_rate", "train.lr"),
    ("lora_alpha", "lora.alpha"),
    ("lora_dropout", "lora.dropout"),
    ("lora_r", "lora.rank"),
    ("lora_target_modules", "lora.targets"),
    ("lr_scheduler", "train.schedule"),
    ("lr_scheduler_type", "train.schedule"),
    ("max_grad_norm", "train.clip_norm"),
    ("num_epochs", "train.epochs"),
    ("num_train_epochs", "train.epochs"),
    ("output_dir", "output.adapter"),
    ("r", "lora.rank"),
    ("sample_packing", "data.packing"),
    ("sequence_len", "data.max_seq_len"),
    ("target_modules", "lora.targets"),
    ("val_set_size", "data.validation_fraction"),
    ("warmup_ratio", "train.warmup"),
];

struct Checker<'a> {
    root: &'a Json,
    problems: Vec<Problem>,
}

impl Checker<'_> {
    fn report(&mut self, origin: Option<&Origin>, key: &str, message: impl std::fmt::Display) {
        self.problems.push(Problem { origin: origin.cloned(), message: format!("{key}: {message}") });
    }

    fn node(&mut self, node: &Node, schema: &Json, key: &str) {
        let choices = schema["anyOf"].as_array().map_or(std::slice::from_ref(schema), Vec::as_slice);
        let Some(schema) = choices.iter().find(|choice| of_type(&node.content, choice)) else {
            let expected: Vec<_> = choices.iter().map(expected).collect();
            let message = format!("expected {}, found {}", expected.join(" or "), describe(&node.content));
            return self.report(Some(&node.origin), key, message);
        };
        match &node.content {
            Content::Table(entries) => {
                for (name, child) in entries {
                    self.entry(name, child, schema, key);
                }
                self.missing(node, schema, key);
            }
            Content::Array(items) => self.array(node, items, schema, key),
            Content::String(text) => {
                let allowed = words(schema);
                if !allowed.is_empty() && !allowed.contains(&text.as_str()) {
                    self.report(Some(&node.origin), key, not_allowed(text, &allowed));
                } else if text.is_empty() && schema["minLength"].as_u64() > Some(0) {
                    self.report(Some(&node.origin), key, "must not be empty");
                }
            }
            Content::Integer(value) => self.number(node, *value as f64, &value.to_string(), schema, key),
            Content::Float(value) => self.number(node, *value, &format!("{value:?}"), schema, key),
            Content::Boolean(_) | Content::Datetime(_) => {}
        }
    }

    fn entry(&mut self, name: &str, child: &Node, schema: &Json, key: &str) {
        let path = join(key, name);
        let names: Vec<_> =
            schema["propertyNames"]["enum"].as_array().into_iter().flatten().flat_map(Json::as_str).collect();
        if !names.is_empty() && !names.contains(&name) {
            return self.report(Some(&child.origin), &path, format!("not allowed here; allowed: {}", names.join(", ")));
        }
        match property(schema, name) {
            Some(schema) => self.node(child, schema, &path),
            None => {
                let hint = self.suggestion(name, schema, key);
                self.report(Some(&child.origin), &path, format!("unknown key; {hint}"));
            }
        }
    }

    /// What to write instead of the unknown `name`: the nearest key at that level, the key that other tools call so, the
    /// same key at another level, or any of the level's keys.
    fn suggestion(&self, name: &str, schema: &Json, key: &str) -> String {
        let known: Vec<_> =
            schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let elsewhere = ELSEWHERE.iter().find(|(theirs, _)| *theirs == name).map(|(_, ours)| ours.to_string());
        let near = || nearest(name, known.iter().copied()).map(|near| join(key, near));
        match elsewhere.or_else(near).or_else(|| find(self.root, name, "")) {
            Some(path) => format!("did you mean {path}?"),
            None => format!("known here: {}", known.join(", ")),
        }
    }

    fn missing(&mut self, node: &Node, schema: &Json, key: &str) {
        let Content::Table(entries) = &node.content else { return };
        for name in schema["required"].as_array().into_iter().flatten().flat_map(Json::as_str) {
            if !entries.contains_key(name) {
                let kind = if schema["properties"][name]["type"] == "object" { "section" } else { "key" };
                let origin = (!key.is_empty()).then_some(&node.origin);
                self.report(origin, &join(key, name), format!("this required {kind} is missing"));
            }
        }
    }

    fn array(&mut self, node: &Node, items: &[Node], schema: &Json, key: &str) {
        let count = items.len() as u64;
        let (min, max) = (schema["minItems"].as_u64().unwrap_or(0), schema["maxItems"].as_u64().unwrap_or(u64::MAX));
        if min == max && count != min {
            self.report(Some(&node.origin), key, format!("expected a list of {min}, found {count}"));
        } else if count < min {
            self.report(Some(&node.origin), key, "must not be empty");
        }
        for (index, item) in items.iter().enumerate() {
            self.node(item, &schema["items"], &format!("{key}[{index}]"));
        }
    }

    fn number(&mut self, node: &Node, value: f64, shown: &str, schema: &Json, key: &str) {
        let limit = |name: &str| schema[name].as_f64();
        let (min, max) = (limit("minimum"), limit("maximum"));
        let (above, below) = (limit("exclusiveMinimum"), limit("exclusiveMaximum"));
        if !value.is_finite() {
            self.report(Some(&node.origin), key, format!("{shown} is not a finite number"));
        } else if min.is_some_and(|min| value < min)
            || max.is_some_and(|max| value > max)
            || above.is_some_and(|above| value <= above)
            || below.is_some_and(|below| value >= below)
        {
            let low = min.map(|min| format!("{min} <= ")).or(above.map(|above| format!("{above} < ")));
            let high = max.map(|max| format!(" <= {max}")).or(below.map(|below| format!(" < {below}")));
            let allowed = format!("{}value{}", low.unwrap_or_default(), high.unwrap_or_default());
            self.report(Some(&node.origin), key, format!("{shown} is out of range, allowed: {allowed}"));
        }
    }
}

fn join(key: &str, name: &str) -> String {
    if key.is_empty() { name.to_string() } else { format!("{key}.{name}") }
}

/// The first place where the recipe has a key called `name`.
fn find(schema: &Json, name: &str, key: &str) -> Option<String> {
    let properties = schema["properties"].as_object()?;
    if properties.contains_key(name) {
        return Some(join(key, name));
    }
    properties.iter().find_map(|(inner, schema)| find(schema, name, &join(key, inner)))
}

/// The words that a string may be; empty: any.
fn words(schema: &Json) -> Vec<&str> {
    let listed = schema["enum"].as_array().into_iter().flatten().flat_map(Json::as_str);
    let described = schema["oneOf"].as_array().into_iter().flatten().flat_map(words);
    schema["const"].as_str().into_iter().chain(listed).chain(described).collect()
}

fn type_name(schema: &Json) -> &str {
    schema["type"].as_str().unwrap_or("string")
}

fn of_type(content: &Content, schema: &Json) -> bool {
    match type_name(schema) {
        "object" => matches!(content, Content::Table(_)),
        "array" => matches!(content, Content::Array(_)),
        "integer" => matches!(content, Content::Integer(_)),
        "number" => matches!(content, Content::Integer(_) | Content::Float(_)),
        "boolean" => matches!(content, Content::Boolean(_)),
        _ => matches!(content, Content::String(_)),
    }
}

fn expected(schema: &Json) -> String {
    match type_name(schema) {
        "object" => "a table".into(),
        "array" => match schema["items"]["type"].as_str() {
            Some("string") => "a list of strings such as [\"a\", \"b\"]".into(),
            Some("number") => "a list of numbers".into(),
            _ => "a list".into(),
        },
        "integer" => "an integer".into(),
        "number" => "a number".into(),
        "boolean" => "true or false".into(),
        _ => match words(schema).as_slice() {
            [] => "a string".into(),
            [only] => format!("{only:?}"),
            words => format!("one of {}", words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")),
        },
    }
}
