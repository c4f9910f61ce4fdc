//! A TOML document whose values know where they were written: a line of the file or a `--set`. Owns the reading of TOML,
//! the merging of overrides, and the wording of places; knows of the recipe only its JSON schema.

use std::ops::Range;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use serde_json::Value as Json;
use toml_edit::{Document as Toml, Item, TableLike, Value};

use super::structure::{describe, property};
use crate::error::{Error, Result};

/// Where a value was written.
#[derive(Clone, Debug, PartialEq)]
pub enum Origin {
    /// Line of the file, from 1.
    Line(usize),
    /// The text behind `--set`.
    Set(String),
}

#[derive(Clone, Debug)]
pub struct Node {
    pub origin: Origin,
    pub content: Content,
}

#[derive(Clone, Debug)]
pub enum Content {
    Table(IndexMap<String, Node>),
    Array(Vec<Node>),
    String(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
    /// Kept only to be named in a message: no key takes one.
    Datetime(String),
}

/// Something wrong with the recipe, at the place of `key` or of the nearest part of it that is there.
#[derive(Clone, Debug)]
pub struct Problem {
    pub origin: Option<Origin>,
    pub message: String,
}

/// The tree of a recipe, and the file it was read from.
pub struct Document {
    pub path: PathBuf,
    pub root: Node,
}

impl Document {
    /// Parses `text`, naming `path` in errors.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let toml = Toml::parse(text).map_err(|e| {
            let line = e.span().map_or(0, |span| line_at(text, span.start));
            Error::recipe(path, line, format!("not valid TOML: {}", e.message()))
        })?;
        let place = |span: Option<Range<usize>>, around: &Origin| {
            span.map_or(around.clone(), |span| Origin::Line(line_at(text, span.start)))
        };
        let root = node(toml.as_item(), Origin::Line(1), &place);
        Ok(Self { path: path.to_path_buf(), root })
    }

    /// The recipe as JSON, to be deserialised. Floats are finite once [`super::structure::check`] has passed.
    pub fn to_json(&self) -> Json {
        self.root.to_json()
    }

    /// A problem with `key` (`train.phases[0].until`, or empty for the whole), placed where `key` or its nearest
    /// existing parent is written.
    pub fn problem(&self, key: &str, message: impl std::fmt::Display) -> Problem {
        let mut node = &self.root;
        for step in steps(key) {
            match node.child(&step) {
                Some(next) => node = next,
                None => break,
            }
        }
        let origin = (!std::ptr::eq(node, &self.root)).then(|| node.origin.clone());
        let message = if key.is_empty() { message.to_string() } else { format!("{key}: {message}") };
        Problem { origin, message }
    }

    /// All problems as one error, each with its place; the file's first, by line.
    pub fn error(&self, mut problems: Vec<Problem>) -> Error {
        problems.sort_by_key(|problem| match &problem.origin {
            None => (0, 0),
            Some(Origin::Line(line)) => (0, *line),
            Some(Origin::Set(_)) => (1, 0),
        });
        let mut places = problems.into_iter().map(|problem| match problem.origin {
            Some(Origin::Set(text)) => Error::Usage(format!("--set {text}: {}", problem.message)),
            Some(Origin::Line(line)) => Error::recipe(&self.path, line, problem.message),
            None => Error::recipe(&self.path, 0, problem.message),
        });
        let Some(first) = places.next() else { return Error::Internal("an empty list of problems".into()) };
        let rest: String = places.map(|error| format!("\n{error}")).collect();
        match first {
            Error::Recipe { path, line, message } => Error::Recipe { path, line, message: message + &rest },
            other => Error::Usage(other.to_string() + &rest),
        }
    }

    /// Applies `key=value` overrides in their order. A key may name what is not there yet; `phases[0]` and `phases.0` index
    /// a list, and may be one past its end. The value is TOML; a bare word is a string. Setting one of two keys that
    /// exclude each other (`schema`'s `x-instead-of`) takes the other away where the file has it. An empty value removes
    /// the key (`feedback=`).
    pub fn set(&mut self, overrides: &[String], schema: &Json) -> Result<()> {
        for text in overrides {
            self.set_one(text, schema).map_err(|message| Error::Usage(format!("--set {text}: {message}")))?;
        }
        Ok(())
    }

    fn set_one(&mut self, text: &str, schema: &Json) -> Result<(), String> {
        let (key, value) = text.split_once('=').ok_or("expected key=value, such as train.lr=1e-4")?;
        let path = steps(key.trim());
        if path.iter().any(String::is_empty) || path.is_empty() {
            return Err("expected key=value, such as train.lr=1e-4".into());
        }
        if value.trim().is_empty() {
            return self.root.remove(&path).ok_or_else(|| format!("{}: there is no such key to remove", key.trim()));
        }
        let origin = Origin::Set(text.to_string());
        let mut node = &mut self.root;
        let mut schema = schema;
        for (depth, step) in path.iter().enumerate() {
            let last = depth + 1 == path.len();
            let at = path[..=depth].join(".");
            schema = property(schema, step).unwrap_or(&Json::Null);
            node = match &mut node.content {
                Content::Table(entries) => {
                    if let Some(others) = schema.get("x-instead-of").and_then(Json::as_array) {
                        let from_file = |name: &str, node: &Node| {
                            matches!(node.origin, Origin::Line(_)) && others.iter().any(|other| other == name)
                        };
                        entries.retain(|name, node| !from_file(name, node));
                    }
                    let new = || Node { origin: origin.clone(), content: empty(schema) };
                    let entry = entries.entry(step.clone()).or_insert_with(new);
                    if last {
                        entry.origin = origin.clone();
                    }
                    entry
                }
                Content::Array(items) => {
                    let count = items.len();
                    let index = step.parse::<usize>().ok().filter(|index| *index <= count).ok_or_else(|| {
                        format!("{at}: expected an index from 0 to {count}, this is a list of {count}")
                    })?;
                    if index == count {
                        items.push(Node { origin: origin.clone(), content: empty(schema) });
                    }
                    &mut items[index]
                }
                other => {
                    let parent = path[..depth].join(".");
                    return Err(format!("{at}: {parent} is {}, it has no keys", describe(other)));
                }
            };
        }
        *node = Node { content: override_value(value.trim(), schema, &origin)?, origin };
        Ok(())
    }
}

/// What a part that an override runs through is before anything is set in it.
fn empty(schema: &Json) -> Content {
    match schema["type"].as_str() {
        Some("array") => Content::Array(Vec::new()),
        _ => Content::Table(IndexMap::new()),
    }
}

/// Where a string is wanted, what does not begin with a quote is the string itself (`name=2024`, `model.base=a/b`).
fn override_value(text: &str, schema: &Json, origin: &Origin) -> Result<Content, String> {
    let quoted = text.starts_with(['"', '\'']);
    if schema["type"] == "string" && !quoted {
        return Ok(Content::String(text.to_string()));
    }
    match text.parse::<Value>() {
        Ok(parsed) => Ok(node(&Item::Value(parsed), origin.clone(), &|_, _| origin.clone()).content),
        Err(_) if !text.is_empty() && !quoted && !text.starts_with(['[', '{']) => Ok(Content::String(text.to_string())),
        Err(e) => Err(format!("the value is not valid TOML: {}", e.message())),
    }
}

/// `a.b[0].c` as `a`, `b`, `0`, `c`.
fn steps(key: &str) -> Vec<String> {
    if key.is_empty() {
        return Vec::new();
    }
    key.replace('[', ".").replace(']', "").split('.').map(|step| step.trim_matches('"').trim().to_string()).collect()
}

impl Node {
    fn child(&self, step: &str) -> Option<&Node> {
        match &self.content {
            Content::Table(entries) => entries.get(step),
            Content::Array(items) => items.get(step.parse::<usize>().ok()?),
            _ => None,
        }
    }

    /// Removes what `path` names; none: it is not there.
    fn remove(&mut self, path: &[String]) -> Option<()> {
        let (first, rest) = path.split_first()?;
        match (&mut self.content, rest.is_empty()) {
            (Content::Table(entries), true) => entries.shift_remove(first).map(drop),
            (Content::Table(entries), false) => entries.get_mut(first)?.remove(rest),
            (Content::Array(items), leaf) => {
                let index = first.parse().ok().filter(|index| *index < items.len())?;
                if leaf {
                    items.remove(index);
                    return Some(());
                }
                items[index].remove(rest)
            }
            _ => None,
        }
    }

    fn to_json(&self) -> Json {
        match &self.content {
            Content::Table(entries) => entries.iter().map(|(key, node)| (key.clone(), node.to_json())).collect(),
            Content::Array(items) => items.iter().map(Node::to_json).collect(),
            Content::String(text) | Content::Datetime(text) => text.clone().into(),
            Content::Integer(value) => (*value).into(),
            Content::Float(value) => (*value).into(),
            Content::Boolean(value) => (*value).into(),
        }
    }
}

/// Gives the origin of a value from its span, or of the value around it where it has none.
type Place<'a> = dyn Fn(Option<Range<usize>>, &Origin) -> Origin + 'a;

fn node(item: &Item, origin: Origin, place: &Place) -> Node {
    let content = match item {
        Item::None => Content::Table(IndexMap::new()),
        Item::Table(entries) => table(entries, &origin, place),
        Item::ArrayOfTables(tables) => Content::Array(
            tables
                .iter()
                .map(|entries| {
                    let origin = place(entries.span(), &origin);
                    Node { content: table(entries, &origin, place), origin }
                })
                .collect(),
        ),
        Item::Value(value) => match value {
            Value::String(text) => Content::String(text.value().clone()),
            Value::Integer(value) => Content::Integer(*value.value()),
            Value::Float(value) => Content::Float(*value.value()),
            Value::Boolean(value) => Content::Boolean(*value.value()),
            Value::Datetime(value) => Content::Datetime(value.value().to_string()),
            Value::InlineTable(entries) => table(entries, &origin, place),
            Value::Array(items) => Content::Array(
                items.iter().map(|item| node(&Item::Value(item.clone()), place(item.span(), &origin), place)).collect(),
            ),
        },
    };
    Node { origin, content }
}

fn table(entries: &dyn TableLike, around: &Origin, place: &Place) -> Content {
    let placed = entries.iter().map(|(name, item)| {
        let span = entries.get_key_value(name).and_then(|(key, _)| key.span());
        (name.to_string(), node(item, place(span, around), place))
    });
    Content::Table(placed.collect())
}

/// Line of a byte of `text`, from 1.
fn line_at(text: &str, byte: usize) -> usize {
    text.as_bytes()[..byte.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}
