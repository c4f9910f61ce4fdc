//! Templates of a recipe: minijinja over the columns of a row.
//!
//! What a template may take for granted:
//! - Names are columns; `row["any name"]` reaches the columns whose names are no identifiers. A name that is no column
//!   is found by [`Template::check`] before any row is read.
//! - A null cell or null field is undefined. Writing it, looping over it or passing it through a filter drops the row
//!   ("brand is null"); `{% if brand %}`, `brand is none`, `brand is defined` and `brand | default("none")` are the
//!   ways to write rows with and without it.
//! - Writing a list or struct as it is an error: loop over it, or use `join` or `tojson`. Numbers, booleans, decimals
//!   and dates are written in a longer template; a template that is nothing but `{{ column }}` wants a text column.
//! - Whitespace as `transformers` renders chat templates: the line break after a `{% block %}` and the blanks before it
//!   on its line go (`trim_blocks`, `lstrip_blocks`); `{%+` and `+%}` keep them. The last line break of a template stays.
//! - Python's string and dict methods (`title.strip()`), `tojson` as Python's `json.dumps(.., ensure_ascii=False)`.

use std::collections::BTreeSet;

use arrow_schema::{DataType, Field};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Environment, ErrorKind, State, UndefinedBehavior, Value};

use super::rows::{Row, is_text};
use super::table::{Table, among};
use crate::error::{Error, Result};

/// The template's name in its own environment.
const NAME: &str = "template";
/// All columns of the row, as a map.
const ROW: &str = "row";
/// Methods of Python's dict, not fields.
const DICT_METHODS: [&str; 4] = ["get", "items", "keys", "values"];

/// A template that has been parsed.
#[derive(Debug)]
pub struct Template {
    /// The recipe's key, for messages.
    key: String,
    source: String,
    environment: Environment<'static>,
    /// Names that the template takes from outside, in the order in which they stand in it.
    names: Vec<String>,
    /// `a.b` for a field of a name.
    fields: Vec<(String, String)>,
}

/// What a row gives.
#[derive(Clone, Debug, PartialEq)]
pub enum Rendered {
    Text(String),
    /// The reason why the row cannot be used: the template writes a null cell.
    Null(String),
}

impl Template {
    /// `key` is the recipe's key that `source` was read from.
    pub fn parse(key: &str, source: &str) -> Result<Self> {
        let mut environment = environment()?;
        let refused = |e: minijinja::Error| Error::Usage(format!("{key}: {}", describe(&e)));
        environment.add_template_owned(NAME, source.to_string()).map_err(refused)?;
        let parsed = environment.get_template(NAME).map_err(refused)?;
        let place = |name: &String| (source.find(name.as_str()).unwrap_or(usize::MAX), name.clone());
        let mut names: Vec<String> = parsed.undeclared_variables(false).into_iter().collect();
        names.sort_by_key(place);
        let fields: BTreeSet<(String, String)> = parsed
            .undeclared_variables(true)
            .iter()
            .filter_map(|path| path.split_once('.'))
            .map(|(name, rest)| (name.to_string(), rest.split('.').next().unwrap_or(rest).to_string()))
            .collect();
        Ok(Self {
            key: key.to_string(),
            source: source.to_string(),
            names,
            fields: fields.into_iter().collect(),
            environment,
        })
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    /// Finds what would fail on every row (missing columns and fields, a column of the wrong type); returns the columns
    /// of `table` that the template uses.
    pub fn check(&self, table: &Table) -> Result<Vec<String>> {
        let mut used = Vec::new();
        for name in &self.names {
            if table.data_type(name).is_some() {
                used.push(name.clone());
            } else if name == ROW {
                used.extend(table.columns().map(str::to_string));
            } else if !self.is_global(name) {
                table.require(name)?;
            }
        }
        for (name, field) in &self.fields {
            self.check_field(table, name, field)?;
        }
        if let Some(column) = self.sole_column() {
            let data_type = table.require(column)?;
            if !is_text(data_type) {
                let hint = match data_type.is_nested() {
                    true => format!(
                        "loop over it, or write {{{{ {column} | join(\", \") }}}} or {{{{ {column} | tojson }}}}"
                    ),
                    false => format!("{{{{ {column} | string }}}} writes its digits"),
                };
                let message =
                    format!("column '{column}' is {data_type}, expected text ({} is it alone; {hint})", self.key);
                return Err(Error::data(table.path(), message));
            }
        }
        Ok(used)
    }

    fn uses_row(&self) -> bool {
        self.names.iter().any(|name| name == ROW)
    }

    fn is_global(&self, name: &str) -> bool {
        self.environment.globals().any(|(global, _)| global == name)
    }

    fn check_field(&self, table: &Table, name: &str, field: &str) -> Result<()> {
        let fields: Vec<&str> = match table.data_type(name) {
            Some(DataType::Struct(fields)) => fields.iter().map(|f| Field::name(f).as_str()).collect(),
            None if name == ROW => table.columns().collect(),
            _ => return Ok(()),
        };
        if fields.contains(&field) || DICT_METHODS.contains(&field) {
            return Ok(());
        }
        let message =
            format!("{}: column '{name}' has no field '{field}'{}", self.key, among("fields", field, &fields));
        Err(Error::data(table.path(), message))
    }

    /// The column that the template is, when it is nothing but `{{ column }}`.
    fn sole_column(&self) -> Option<&str> {
        let name = self.source.strip_prefix("{{")?.strip_suffix("}}")?.trim();
        self.names.iter().map(String::as_str).find(|n| *n == name && *n != ROW)
    }

    /// Renders a row. Errors name file, row and the template's key.
    pub fn render(&self, row: &Row) -> Result<Rendered> {
        let context = row.context(self.uses_row().then_some(ROW));
        let template = self.environment.get_template(NAME).map_err(|e| Error::Internal(e.to_string()))?;
        match template.render(context) {
            Ok(text) => Ok(Rendered::Text(text)),
            Err(e) => match self.null_behind(row, &e) {
                Some(reason) => Ok(Rendered::Null(reason)),
                None => Err(row.error(format!("{}: {}", self.key, describe(&e)))),
            },
        }
    }

    /// Which null made rendering fail: a cell, a field or an item inside one. `None`: it was no null.
    fn null_behind(&self, row: &Row, e: &minijinja::Error) -> Option<String> {
        let undefined = match e.kind() {
            ErrorKind::UndefinedError => true,
            ErrorKind::InvalidOperation | ErrorKind::UnknownMethod => {
                e.detail().is_some_and(|detail| detail.contains("undefined"))
            }
            _ => false,
        };
        if !undefined {
            return None;
        }
        // minijinja's own words where it knows what was undefined, else the piece of the template that failed.
        let detail = e.detail().unwrap_or_default();
        let named = detail.split_once("` is undefined").and_then(|(before, _)| before.rsplit_once('`'));
        let piece = e.range().and_then(|range| self.source.get(range)).unwrap_or_default();
        let piece = piece.trim_start_matches("{{").trim_end_matches("}}").trim();
        let expression = named.map_or(piece, |(_, name)| name);
        let mentions = |name: &str| {
            let words = || expression.split(|c: char| !c.is_alphanumeric() && c != '_');
            words().any(|word| word == name)
                || ["\"", "'"].iter().any(|q| expression.contains(&format!("{q}{name}{q}")))
        };
        let used = |name: &&String| self.uses_row() || self.names.contains(name);
        let columns: Vec<&String> = row.source.columns.iter().filter(used).collect();
        let mentioned: Vec<&String> = columns.iter().filter(|name| mentions(name)).copied().collect();
        // Nothing is mentioned where a variable of the template's own stands for a cell: then any null may be it.
        let suspects = if mentioned.is_empty() { columns } else { mentioned };
        let cells = || suspects.iter().filter_map(|name| Some((name, row.cell(name)?)));
        if let Some((name, _)) = cells().find(|(_, cell)| cell.value.is_undefined()) {
            return Some(format!("{name} is null"));
        }
        let (column, _) = cells().find(|(_, cell)| cell.holds_null)?;
        Some(named.map_or_else(|| format!("{column} holds a null"), |(_, path)| format!("{path} is null")))
    }
}

/// The error with what it stands on, without minijinja's multi-line debug report.
fn describe(e: &minijinja::Error) -> String {
    let line = e.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
    match e.detail() {
        Some(detail) => format!("{detail}{line}"),
        None => format!("{}{line}", e.kind()),
    }
}

fn environment() -> Result<Environment<'static>> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).keep_trailing_newline(true).build();
    let syntax = syntax.map_err(|e| Error::Internal(e.to_string()))?;
    environment.set_syntax(syntax);
    environment.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    // Errors then say which name was undefined; it costs nothing where none is.
    environment.set_debug(true);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_test("none", |value: &Value| value.is_none() || value.is_undefined());
    environment.add_filter("tojson", tojson);
    environment.add_filter("join", join);
    environment.set_formatter(|out, state, value| match value.kind() {
        // Only what `a if b` is without `else` comes here undefined: nothing, as in Jinja.
        ValueKind::Undefined => Ok(()),
        ValueKind::None => Err(minijinja::Error::new(ErrorKind::UndefinedError, "none is not text")),
        ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::Bytes => {
            let message = format!("a {} is not text: loop over it, or use join or tojson", value.kind());
            Err(minijinja::Error::new(ErrorKind::BadSerialization, message))
        }
        _ => minijinja::escape_formatter(out, state, value),
    });
    Ok(environment)
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it: nothing is escaped for HTML, `, ` and `: `
/// between items. `indent` as in Jinja.
fn tojson(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<String, minijinja::Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<usize>>("indent")?,
    };
    options.assert_all_used()?;
    if value.is_undefined() {
        return Err(minijinja::Error::new(ErrorKind::UndefinedError, "no JSON of a value that is null or undefined"));
    }
    let failed = |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    let mut out = Vec::new();
    match indent {
        Some(indent) => {
            let blanks = " ".repeat(indent);
            let formatter = serde_json::ser::PrettyFormatter::with_indent(blanks.as_bytes());
            serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, formatter))
        }
        None => serde::Serialize::serialize(value, &mut serde_json::Serializer::with_formatter(&mut out, Spaced)),
    }
    .map_err(failed)?;
    String::from_utf8(out).map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// `json.dumps`'s separators.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, out: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

/// Jinja's `join`, except that a null item is an error instead of nothing between two separators.
fn join(
    state: &mut State,
    value: &Value,
    separator: Option<&str>,
    attribute: Option<&str>,
    options: Kwargs,
) -> Result<String, minijinja::Error> {
    let separator = match separator {
        Some(separator) => separator,
        None => options.get::<Option<&str>>("d")?.unwrap_or_default(),
    };
    let attribute = match attribute {
        Some(attribute) => Some(attribute),
        None => options.get::<Option<&str>>("attribute")?,
    };
    options.assert_all_used()?;
    if value.is_undefined() {
        return Err(minijinja::Error::new(ErrorKind::UndefinedError, "no list to join: it is null or undefined"));
    }
    let mut out = String::new();
    for (at, item) in value.try_iter()?.enumerate() {
        let item = match attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        if at > 0 {
            out.push_str(separator);
        }
        out.push_str(&state.format(item)?);
    }
    Ok(out)
}
