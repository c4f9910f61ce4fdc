//! `metrics.jsonl`, one object a line, and the same numbers as TensorBoard scalars.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::adapter::Losses;
use super::tensorboard::EventFile;
use crate::error::{Error, Result};
use crate::recipe::Mode;

pub const METRICS: &str = "metrics.jsonl";
const TENSORBOARD: &str = "tensorboard";

/// A line of `metrics.jsonl`. Steps count what has been done: 0 is before training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Record {
    Step(StepRecord),
    Eval(EvalRecord),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    pub step: usize,
    pub epoch: usize,
    /// From 1.
    pub phase: usize,
    /// K
    pub passes: usize,
    /// The objective.
    pub loss: f64,
    /// `[K]`: mean loss of each pass; null where it does not count in this phase.
    pub pass_losses: Vec<Option<f64>>,
    /// Rates of the groups that this step updated.
    pub lr: Option<f64>,
    pub feedback_lr: Option<f64>,
    /// Before clipping.
    pub grad_norm: f64,
    pub tokens: usize,
    /// Tokens predicted with some weight.
    pub predicted: usize,
    pub seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRecord {
    pub step: usize,
    pub losses: Losses,
    /// Trained tokens of the validation documents.
    pub tokens: usize,
    /// Whether this is the best by the metric so far.
    pub best: bool,
    pub seconds: f64,
}

impl Record {
    fn step(&self) -> usize {
        match self {
            Self::Step(record) => record.step,
            Self::Eval(record) => record.step,
        }
    }

    fn scalars(&self) -> BTreeMap<String, f64> {
        let mut out = BTreeMap::new();
        match self {
            Self::Step(r) => {
                out.insert("train/loss".to_string(), r.loss);
                let passes = (1..).zip(&r.pass_losses).filter_map(|(pass, loss)| Some((pass, (*loss)?)));
                out.extend(passes.map(|(pass, loss)| (format!("train/loss_pass_{pass}"), loss)));
                out.extend(r.lr.map(|lr| ("train/lr".to_string(), lr)));
                out.extend(r.feedback_lr.map(|lr| ("train/feedback_lr".to_string(), lr)));
                out.insert("train/grad_norm".to_string(), r.grad_norm);
                out.insert("train/passes".to_string(), r.passes as f64);
                out.insert("train/tokens_per_second".to_string(), r.tokens as f64 / r.seconds.max(1e-9));
            }
            Self::Eval(r) => out.extend(r.losses.iter().map(|(mode, loss)| (format!("eval/{}", name(*mode)), *loss))),
        }
        out
    }
}

/// As in recipes.
pub fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Standard => "standard",
        Mode::Soft => "soft",
        Mode::Fused => "fused",
    }
}

/// Both files of a run, open for writing.
pub struct Metrics {
    path: PathBuf,
    lines: File,
    events: EventFile,
}

impl Metrics {
    /// Opens the files of the run in `folder`. What was written after step `resumed` (by the session that was broken
    /// off) is taken out: those steps will be run again.
    pub fn open(folder: &Path, resumed: Option<usize>) -> Result<Self> {
        let path = folder.join(METRICS);
        if let Some(step) = resumed {
            let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
            let records = parse(&path, &text)?;
            let kept: String =
                records.iter().filter(|(_, record)| record.step() <= step).map(|(line, _)| *line).collect();
            crate::files::write_text(&path, &kept)?;
        }
        let lines = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io(&path))?;
        let events = EventFile::create(&folder.join(TENSORBOARD), resumed.map(|step| step + 1))?;
        Ok(Self { path, lines, events })
    }

    pub fn add(&mut self, record: Record) -> Result<()> {
        self.lines.write_all(line(&record)?.as_bytes()).map_err(Error::io(&self.path))?;
        self.events.scalars(record.step(), &record.scalars())
    }
}

fn line(record: &Record) -> Result<String> {
    let text = serde_json::to_string(record).map_err(|e| Error::Internal(e.to_string()))?;
    Ok(text + "\n")
}

/// All records of a run. A last line that was cut off by a crash is left out.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    Ok(parse(path, &text)?.into_iter().map(|(_, record)| record).collect())
}

/// Whole lines (with their end) and what they hold.
fn parse<'a>(path: &Path, text: &'a str) -> Result<Vec<(&'a str, Record)>> {
    let mut records = Vec::new();
    for (number, line) in (1..).zip(text.split_inclusive('\n')).filter(|(_, line)| line.ends_with('\n')) {
        let record = serde_json::from_str(line).map_err(|e| Error::data(path, format!("line {number}: {e}")))?;
        records.push((line, record));
    }
    Ok(records)
}
