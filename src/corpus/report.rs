//! The data report: what was read, what became of it, and what looks wrong. Serialised as `data_report.json`, printed
//! by `--dry-run`.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use serde::Serialize;

use super::Example;
use super::encode::Tokens;

/// Rows named for each reason; more are only counted.
const LISTED: usize = 20;
/// Bins of the length histogram.
const BINS: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DataReport {
    pub files: Vec<FileRows>,
    /// Rows of this part: the files' rows, or those that a split gave it.
    pub rows: usize,
    pub usable: usize,
    /// Reason -> rows that were dropped for it.
    pub dropped: BTreeMap<String, Listed>,
    pub tokens: usize,
    /// Tokens that are labels with weight 1.
    pub trained_tokens: usize,
    /// Tokens of the longest document, and its row.
    pub longest: usize,
    pub longest_row: String,
    /// Bins of equal width up to the longest document.
    pub lengths: Vec<LengthBin>,
    /// Documents whose last trained token is EOS or another token that ends a turn.
    pub ending_in_eos: usize,
    /// Documents that were cut at `max_seq_len`.
    pub truncated: Listed,
    /// Documents equal to an earlier one, token for token.
    pub duplicates: usize,
    /// Documents of the validation part that the training part has too; `None` in the training part's own report.
    pub also_in_training: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileRows {
    pub path: PathBuf,
    pub rows: usize,
}

/// A count, and the first rows of it by name.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Listed {
    pub count: usize,
    pub rows: Vec<String>,
}

impl Listed {
    fn add(&mut self, row: String) {
        self.count += 1;
        if self.rows.len() < LISTED {
            self.rows.push(row);
        }
    }
}

/// Documents with `from..=to` tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LengthBin {
    pub from: usize,
    pub to: usize,
    pub documents: usize,
}

impl DataReport {
    /// `dropped`: row and reason, in the rows' order.
    pub(super) fn new(
        files: Vec<FileRows>,
        examples: &[Example],
        dropped: impl IntoIterator<Item = (String, String)>,
        tokens: &dyn Tokens,
    ) -> Self {
        let mut report = Self { files, usable: examples.len(), rows: examples.len(), ..Self::default() };
        for (row, reason) in dropped {
            report.rows += 1;
            report.dropped.entry(reason).or_default().add(row);
        }
        let mut seen = HashSet::new();
        for example in examples {
            report.tokens += example.ids.len();
            report.trained_tokens += example.trained.iter().filter(|&&trained| trained).count();
            if example.ids.len() > report.longest {
                (report.longest, report.longest_row) = (example.ids.len(), example.row.clone());
            }
            let last = example.trained.iter().rposition(|&trained| trained);
            report.ending_in_eos += usize::from(last.is_some_and(|t| tokens.is_stop(example.ids[t])));
            if example.truncated {
                report.truncated.add(example.row.clone());
            }
            report.duplicates += usize::from(!seen.insert(fingerprint(example)));
        }
        report.lengths = histogram(examples, report.longest);
        report
    }

    /// Compares the documents of a validation part with those of the training part.
    pub(super) fn compare(&mut self, validation: &[Example], training: &[Example]) {
        let known: HashSet<u64> = training.iter().map(fingerprint).collect();
        self.also_in_training = Some(validation.iter().filter(|e| known.contains(&fingerprint(e))).count());
    }

    /// What looks wrong in data that can be used all the same.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(n) = self.also_in_training.filter(|&n| n > 0) {
            warnings
                .push(format!("{n} validation documents are training documents too: validation will look too good"));
        }
        if self.usable > 0 && self.ending_in_eos == 0 {
            warnings.push("no document ends in a trained EOS: the model will not learn to stop".to_string());
        }
        if self.truncated.count * 10 > self.usable {
            let share = 100 * self.truncated.count / self.usable.max(1);
            warnings.push(format!("{share} % of the documents are cut at max_seq_len"));
        }
        if self.usable * 2 < self.rows {
            warnings.push(format!("only {} of {} rows can be used", self.usable, self.rows));
        }
        if self.duplicates * 10 > self.usable {
            warnings.push(format!("{} documents repeat an earlier one", self.duplicates));
        }
        warnings
    }

    /// The report as lines for a terminal; `title` names the part.
    pub fn render(&self, title: &str) -> String {
        let mut out = String::new();
        let mut line = |text: std::fmt::Arguments| {
            // Writing into a String cannot fail.
            let _ = writeln!(out, "{text}");
        };
        line(format_args!("{title}: {} of {} rows usable", self.usable, self.rows));
        for file in &self.files {
            line(format_args!("  file            {} ({} rows)", file.path.display(), file.rows));
        }
        for (reason, listed) in &self.dropped {
            line(format_args!("  dropped         {}: {reason} ({})", listed.count, name(listed)));
        }
        let mean = self.tokens as f64 / self.usable.max(1) as f64;
        let share = 100.0 * self.trained_tokens as f64 / self.tokens.max(1) as f64;
        line(format_args!("  tokens          {} ({mean:.1} a document)", self.tokens));
        line(format_args!("  trained tokens  {} ({share:.1} %)", self.trained_tokens));
        line(format_args!("  ending in EOS   {}", self.ending_in_eos));
        if self.truncated.count > 0 {
            line(format_args!("  truncated       {} ({})", self.truncated.count, name(&self.truncated)));
        }
        line(format_args!("  duplicates      {}", self.duplicates));
        if let Some(n) = self.also_in_training {
            line(format_args!("  also trained on {n}"));
        }
        line(format_args!("  longest         {} tokens ({})", self.longest, self.longest_row));
        let most = self.lengths.iter().map(|bin| bin.documents).max().unwrap_or(1).max(1);
        for bin in &self.lengths {
            let bar = "#".repeat((bin.documents * 40).div_ceil(most));
            line(format_args!("  {:>6}..{:<6}  {:>6} {bar}", bin.from, bin.to, bin.documents));
        }
        for warning in self.warnings() {
            line(format_args!("  warning: {warning}"));
        }
        out
    }
}

fn name(listed: &Listed) -> String {
    let more = listed.count - listed.rows.len();
    let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{tail}", listed.rows.join(", "))
}

fn fingerprint(example: &Example) -> u64 {
    let mut hasher = DefaultHasher::new();
    (&example.ids, &example.trained).hash(&mut hasher);
    hasher.finish()
}

fn histogram(examples: &[Example], longest: usize) -> Vec<LengthBin> {
    if longest == 0 {
        return Vec::new();
    }
    let width = longest.div_ceil(BINS);
    let bin = |i: usize| LengthBin { from: i * width + 1, to: (i + 1) * width, documents: 0 };
    let mut bins: Vec<LengthBin> = (0..longest.div_ceil(width)).map(bin).collect();
    for example in examples {
        bins[(example.ids.len() - 1) / width].documents += 1;
    }
    bins
}

/// One document as text. Trained tokens stand in `[[ ]]`, or in green on a terminal (`ansi`).
pub fn display(example: &Example, tokens: &dyn Tokens, ansi: bool) -> crate::error::Result<String> {
    let (open, close) = if ansi { ("\x1b[32m", "\x1b[0m") } else { ("[[", "]]") };
    let mut out = String::new();
    let mut start = 0;
    for end in 1..=example.ids.len() {
        if end < example.ids.len() && example.trained[end] == example.trained[start] {
            continue;
        }
        let text = tokens.decode(&example.ids[start..end])?;
        match example.trained[start] {
            true => out.extend([open, &text, close]),
            false => out.push_str(&text),
        }
        start = end;
    }
    Ok(out)
}
