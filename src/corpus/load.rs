//! From a recipe's `[data]` to corpora in memory: files are read, rows encoded (on all cores), reports made, and a
//! validation part set aside.

use std::path::PathBuf;

use rayon::prelude::*;

use super::Example;
use super::encode::{Encoded, Encoder, Parts, Use};
use super::report::{DataReport, FileRows};
use super::table::Table;
use crate::error::{Error, Result};
use crate::random::{Key, Purpose};
use crate::recipe::{DataRecipe, Validation};

/// Documents that can be trained on or evaluated, in the order of their rows. An example's place is its identity: its
/// randomness derives from it.
#[derive(Clone, Debug, Default)]
pub struct Corpus {
    pub examples: Vec<Example>,
    pub report: DataReport,
}

impl Corpus {
    /// Tokens of each document.
    pub fn lengths(&self) -> Vec<usize> {
        self.examples.iter().map(|example| example.ids.len()).collect()
    }
}

/// A row after encoding: its name, its place among all rows of its files, and what became of it.
struct Encountered {
    name: String,
    place: u64,
    encoded: Encoded<Example>,
}

/// Reads the training corpus and the validation corpus. A file that is no Parquet file, lacks a column, has none of the
/// wanted type, holds no rows or holds text that is not UTF-8 is an error; rows that cannot be used are dropped and
/// reported; a part without any usable row is an error with the reasons.
pub fn load(data: &DataRecipe, seed: u64, encoder: &Encoder) -> Result<(Corpus, Option<Corpus>)> {
    let (files, rows) = read(data, &data.train, encoder)?;
    let (training, held_out) = match &data.validation {
        Validation::Fraction(fraction) => {
            let (training, held_out) = split(data, rows, *fraction, seed)?;
            (training, Some((files.clone(), held_out)))
        }
        Validation::Files(paths) => (rows, Some(read(data, paths, encoder)?)),
        Validation::None => (rows, None),
    };
    let training = corpus(data, files, training, encoder)?;
    let Some((files, rows)) = held_out else {
        return Ok((training, None));
    };
    let mut validation = corpus(data, files, rows, encoder)?;
    validation.report.compare(&validation.examples, &training.examples);
    Ok((training, Some(validation)))
}

/// What can be said of a recipe's `[data]` without a base: that each file is Parquet with rows and the columns that the
/// templates and `data.id` name, and that the templates render its first row (or find a null there).
pub fn check(data: &DataRecipe) -> Result<()> {
    let parts = Parts::of(&data.format)?;
    let validation = match &data.validation {
        Validation::Files(paths) => &paths[..],
        Validation::Fraction(_) | Validation::None => &[],
    };
    for paths in [&data.train[..], validation] {
        let tables = Table::open_all(paths)?;
        let columns = columns(data, &tables, |table| parts.columns(table, Use::Document))?;
        for (table, columns) in tables.iter().zip(&columns) {
            if let Some(batch) = table.rows(columns)?.next()
                && let Some(row) = batch?.first()
            {
                for template in parts.templates(Use::Document) {
                    template.render(row)?;
                }
            }
        }
    }
    Ok(())
}

/// The columns to read of each table. A table without rows or without a column that is wanted is an error.
fn columns(
    data: &DataRecipe,
    tables: &[Table],
    used: impl Fn(&Table) -> Result<Vec<String>>,
) -> Result<Vec<Vec<String>>> {
    let of_table = |table: &Table| {
        if table.num_rows() == 0 {
            return Err(Error::data(table.path(), "no rows"));
        }
        let mut used = used(table)?;
        if let Some(id) = &data.id {
            table.require(id)?;
            if !used.contains(id) {
                used.push(id.clone());
            }
        }
        Ok(used)
    };
    tables.iter().map(of_table).collect()
}

fn read(data: &DataRecipe, paths: &[PathBuf], encoder: &Encoder) -> Result<(Vec<FileRows>, Vec<Encountered>)> {
    // All files are checked before the first row is read: a fault in the last one should not come minutes later.
    let tables = Table::open_all(paths)?;
    let columns = columns(data, &tables, |table| encoder.columns(table, Use::Document))?;
    let (mut files, mut out) = (Vec::new(), Vec::new());
    for (table, columns) in tables.iter().zip(&columns) {
        let first = out.len() as u64;
        for batch in table.rows(columns)? {
            let encode = |row: &super::Row| {
                let name = row.name(data.id.as_deref());
                let encoded = encoder.encode(row, name.clone())?;
                Ok(Encountered { name, place: first + row.index as u64, encoded })
            };
            // Collected before the check for errors, so that the first row's error is the one that is told.
            let encoded: Vec<Result<Encountered>> = batch?.par_iter().map(encode).collect();
            for row in encoded {
                out.push(row?);
            }
        }
        files.push(FileRows { path: table.path().to_path_buf(), rows: table.num_rows() });
    }
    Ok((files, out))
}

/// Holds `fraction` of the rows out. Whether a row is held out depends on the seed and its place alone; at least one
/// usable row stays on each side.
fn split(
    data: &DataRecipe,
    rows: Vec<Encountered>,
    fraction: f64,
    seed: u64,
) -> Result<(Vec<Encountered>, Vec<Encountered>)> {
    let key = Key::new(seed, Purpose::Split);
    let usable = rows.iter().filter(|row| matches!(row.encoded, Encoded::Ready(_)));
    let draws: Vec<f64> = usable.map(|row| key.unit(row.place)).collect();
    let (lowest, highest) = draws.iter().fold((f64::MAX, f64::MIN), |(low, high), &d| (low.min(d), high.max(d)));
    if draws.is_empty() {
        // The training part then says why no row can be used.
        return Ok((rows, Vec::new()));
    }
    if draws.len() == 1 {
        let path = data.train.first().cloned().unwrap_or_default();
        return Err(Error::data(path, "one usable row cannot be split into a training and a validation part"));
    }
    let held_out = |row: &Encountered| {
        let draw = key.unit(row.place);
        // The extremes keep both sides from being empty.
        draw <= lowest || (draw < fraction && draw < highest)
    };
    let (held_out, training) = rows.into_iter().partition(held_out);
    Ok((training, held_out))
}

fn corpus(data: &DataRecipe, files: Vec<FileRows>, rows: Vec<Encountered>, encoder: &Encoder) -> Result<Corpus> {
    let (mut examples, mut dropped) = (Vec::new(), Vec::new());
    for row in rows {
        match row.encoded {
            Encoded::Ready(example) => examples.push(example),
            Encoded::Dropped(reason) => dropped.push((row.name, reason)),
        }
    }
    let report = DataReport::new(files, &examples, dropped, encoder.tokens());
    if examples.is_empty() {
        let reasons = report.dropped.iter().map(|(reason, listed)| {
            let first = listed.rows.first().map(String::as_str).unwrap_or_default();
            format!("{} x {reason} (first {first})", listed.count)
        });
        let reasons: Vec<String> = reasons.collect();
        let path = report.files.first().map_or_else(|| data.train.first().cloned(), |file| Some(file.path.clone()));
        let message = format!("none of {} rows can be used: {}", report.rows, reasons.join(", "));
        return Err(Error::data(path.unwrap_or_default(), message));
    }
    Ok(Corpus { examples, report })
}
