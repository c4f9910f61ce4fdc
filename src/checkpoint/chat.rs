//! A checkpoint's chat template, rendered as `transformers` does: Jinja with trimmed blocks, Python's string and list
//! methods, `raise_exception`, `strftime_now`, Python's `tojson`, and `{% generation %}` blocks.

use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde};
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

const NAME: &str = "chat_template";

/// A checkpoint's chat template (jinja), rendered as `transformers` does.
pub struct ChatTemplate {
    pub source: String,
    /// For messages: whose template it is.
    name: String,
    /// `bos_token`, `eos_token` and the like.
    variables: Map<String, Value>,
    /// A template that does not parse is an error only for those who use it.
    compiled: Result<Environment<'static>, String>,
}

impl ChatTemplate {
    pub fn new(name: impl Into<String>, source: impl Into<String>, variables: Map<String, Value>) -> Self {
        let (name, source) = (name.into(), source.into());
        let mut env = environment();
        let compiled = match env.add_template_owned(NAME, without_generation_tags(&source)) {
            Ok(()) => Ok(env),
            Err(e) => Err(described(&e)),
        };
        Self { source, name, variables, compiled }
    }

    /// `messages`: objects with `role` and `content`.
    pub fn render(&self, messages: &[Value], add_generation_prompt: bool) -> Result<String> {
        let mut context = self.variables.clone();
        context.insert("messages".into(), Value::Array(messages.to_vec()));
        context.insert("add_generation_prompt".into(), Value::Bool(add_generation_prompt));
        // transformers passes both, as none; templates ask `tools is none`.
        context.insert("tools".into(), Value::Null);
        context.insert("documents".into(), Value::Null);
        let env = self.compiled.as_ref().map_err(|e| Error::Usage(format!("{}: {e}", self.name)))?;
        env.get_template(NAME)
            .and_then(|t| t.render(minijinja::Value::from(Serde(&context))))
            .map_err(|e| Error::Usage(format!("{}: {}", self.name, described(&e))))
    }
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("name", &self.name).field("source", &self.source).finish()
    }
}

fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    env.set_syntax(syntax.expect("the default delimiters are valid"));
    env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    env.add_function("raise_exception", |message: String| -> Result<String, minijinja::Error> {
        Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
    });
    env.add_function("strftime_now", |format: String| strftime(&format, now()));
    env.add_filter("tojson", to_json);
    env
}

fn described(e: &minijinja::Error) -> String {
    let place = e.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    match e.detail() {
        Some(detail) if e.kind() == ErrorKind::InvalidOperation => format!("{place}{detail}"),
        Some(detail) => format!("{place}{}: {detail}", e.kind()),
        None => format!("{place}{}", e.kind()),
    }
}

/// `{% generation %}` marks what an assistant said and changes nothing in the text. Each tag becomes one that does
/// nothing, so that the white space around it is trimmed as before.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let Some(length) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + length + 2];
        out.push_str(&rest[..start]);
        match tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[start + length + 2..];
    }
    out.push_str(rest);
    out
}

/// Python's `json.dumps(x, ensure_ascii=False)`: a space after commas and colons, `indent`, `separators`, `sort_keys`.
fn to_json(value: &minijinja::Value, options: Kwargs) -> Result<String, minijinja::Error> {
    let broken = |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let json = PythonJson {
        indent,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        comma: match &separators {
            Some(s) if s.len() == 2 => s[0].clone(),
            _ if indent.is_some() => ",".into(),
            _ => ", ".into(),
        },
        colon: separators.filter(|s| s.len() == 2).map_or(": ".into(), |s| s[1].clone()),
    };
    options.assert_all_used()?;
    let mut out = String::new();
    json.write(&serde_json::to_value(value).map_err(broken)?, 0, &mut out);
    Ok(out)
}

struct PythonJson {
    indent: Option<usize>,
    ascii: bool,
    sort: bool,
    comma: String,
    colon: String,
}

impl PythonJson {
    fn write(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Array(list) => self.group(['[', ']'], list.iter().map(|v| (None, v)).collect(), depth, out),
            Value::Object(map) => {
                let mut entries: Vec<_> = map.iter().map(|(k, v)| (Some(k), v)).collect();
                if self.sort {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.group(['{', '}'], entries, depth, out);
            }
            Value::String(text) => self.string(text, out),
            other => out.push_str(&other.to_string()),
        }
    }

    fn group(&self, [open, close]: [char; 2], entries: Vec<(Option<&String>, &Value)>, depth: usize, out: &mut String) {
        out.push(open);
        let empty = entries.is_empty();
        for (i, (key, value)) in entries.into_iter().enumerate() {
            if i > 0 {
                out.push_str(&self.comma);
            }
            self.line(depth + 1, out);
            if let Some(key) = key {
                self.string(key, out);
                out.push_str(&self.colon);
            }
            self.write(value, depth + 1, out);
        }
        if !empty {
            self.line(depth, out);
        }
        out.push(close);
    }

    fn line(&self, depth: usize, out: &mut String) {
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    }

    fn string(&self, text: &str, out: &mut String) {
        let quoted = Value::String(text.into()).to_string();
        if !self.ascii {
            return out.push_str(&quoted);
        }
        for c in quoted.chars() {
            if c.is_ascii() {
                out.push(c);
            } else {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
}

/// Seconds since 1970 in UTC; a clock before that reads as 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The parts of C's `strftime` that a date in a prompt uses, in UTC. Unknown ones stay as written.
fn strftime(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let weekday = DAYS[(days % 7) as usize];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        // `%-d`: without leading zero.
        let mut kind = chars.next();
        let plain = kind == Some('-');
        if plain {
            kind = chars.next();
        }
        let number = |n: u64| if plain { n.to_string() } else { format!("{n:02}") };
        match kind {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&number(year % 100)),
            Some('m') => out.push_str(&number(month)),
            Some('d') => out.push_str(&number(day)),
            Some('B') => out.push_str(MONTHS[month as usize - 1]),
            Some('b') => out.push_str(&MONTHS[month as usize - 1][..3]),
            Some('A') => out.push_str(weekday),
            Some('a') => out.push_str(&weekday[..3]),
            Some('H') => out.push_str(&number(time / 3600)),
            Some('M') => out.push_str(&number(time / 60 % 60)),
            Some('S') => out.push_str(&number(time % 60)),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{:02}:{:02}:{:02}", time / 3600, time / 60 % 60, time % 60)),
            Some('%') => out.push('%'),
            other => {
                out.push('%');
                out.extend(plain.then_some('-'));
                out.extend(other);
            }
        }
    }
    out
}

/// Year, month and day of a number of days since 1970-01-01 (Hinnant, `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_strftime_writes_them() {
        // python3 -c "import time; print(time.strftime('%d %B %Y %a %H:%M:%S %-d', time.gmtime(1709210096)))"
        assert_eq!(strftime("%d %B %Y %a %H:%M:%S %-d %Q %%", 1_709_210_096), "29 February 2024 Thu 12:34:56 29 %Q %");
        assert_eq!(strftime("%d %b %Y %A %y", 0), "01 Jan 1970 Thursday 70");
    }

    #[test]
    fn generation_tags_keep_the_white_space_around_them() {
        let source = "{%- generation -%}a{% endgeneration %}{{ generation }}{% if generation %}";
        let expected = "{%- if true -%}a{% endif %}{{ generation }}{% if generation %}";
        assert_eq!(without_generation_tags(source), expected);
    }
}
