//! Parquet files: their columns, and their rows as a stream.
//!
//! [`Table`] reads the footer once; [`Rows`] then goes through the row groups with only the columns asked for, a batch
//! of rows at a time, so that memory does not grow with the file. The Arrow schema that some writers embed is not
//! followed: the same text is then read alike whether pandas, polars, Spark or DuckDB wrote it, as text, large text,
//! view or categories. [`as_text`](super::as_text) reads every layout all the same.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};

use super::rows::{self, Row, Source};
use crate::error::{Error, Result};

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 1024;

/// An opened Parquet file.
#[derive(Clone, Debug)]
pub struct Table {
    path: PathBuf,
    label: String,
    metadata: ArrowReaderMetadata,
}

impl Table {
    /// Reads the footer. Errors name the file and say whether it is another kind of file or cut short.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let mut file = File::open(path).map_err(Error::io(path))?;
        check_magic(path, &mut file)?;
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = ArrowReaderMetadata::load(&file, options)
            .map_err(|e| Error::data(path, format!("not a readable Parquet file: {e}")))?;
        let label = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Ok(Self { path: path.to_path_buf(), label, metadata })
    }

    /// Opens several files. What reports call each is its file name, or its whole path where two names are equal.
    pub fn open_all(paths: &[PathBuf]) -> Result<Vec<Self>> {
        let mut tables = paths.iter().map(Self::open).collect::<Result<Vec<_>>>()?;
        let mut seen = HashSet::new();
        if !tables.iter().all(|table| seen.insert(table.label.clone())) {
            for table in &mut tables {
                table.label = table.path.display().to_string();
            }
        }
        Ok(tables)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn num_rows(&self) -> usize {
        self.metadata.metadata().file_metadata().num_rows().max(0) as usize
    }

    pub fn num_row_groups(&self) -> usize {
        self.metadata.metadata().num_row_groups()
    }

    pub fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    /// Names of the columns, in the file's order.
    pub fn columns(&self) -> impl Iterator<Item = &str> {
        self.schema().fields().iter().map(|field| field.name().as_str())
    }

    pub fn data_type(&self, column: &str) -> Option<&DataType> {
        self.schema().fields().iter().find(|field| field.name() == column).map(|field| field.data_type())
    }

    /// The type of a column that is needed. The error lists the columns there are and the nearest name.
    pub fn require(&self, column: &str) -> Result<&DataType> {
        self.data_type(column).ok_or_else(|| {
            let names: Vec<&str> = self.columns().collect();
            Error::data(&self.path, format!("column '{column}' not found{}", among("columns", column, &names)))
        })
    }

    /// Streams the rows with the cells of `columns`, which must be there.
    pub fn rows(&self, columns: &[String]) -> Result<Rows> {
        for column in columns {
            self.require(column)?;
            if self.columns().filter(|name| name == column).count() > 1 {
                return Err(Error::data(&self.path, format!("column '{column}' occurs more than once")));
            }
        }
        let source = Source { path: self.path.clone(), label: self.label.clone(), columns: columns.to_vec() };
        Ok(Rows {
            table: self.clone(),
            reader: self.reader(columns, 0, BATCH_ROWS)?,
            source: Arc::new(source),
            next: 0,
        })
    }

    fn reader(&self, columns: &[String], from: usize, batch: usize) -> Result<ParquetRecordBatchReader> {
        let file = File::open(&self.path).map_err(Error::io(&self.path))?;
        let roots = self.columns().enumerate().filter(|(_, name)| columns.iter().any(|c| c == name)).map(|(i, _)| i);
        let roots: Vec<usize> = roots.collect();
        let mask = ProjectionMask::roots(self.metadata.metadata().file_metadata().schema_descr(), roots);
        ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone())
            .with_projection(mask)
            .with_batch_size(batch)
            .with_offset(from)
            .build()
            .map_err(|e| Error::data(&self.path, format!("cannot read: {e}")))
    }
}

/// `PAR1` stands at both ends of a Parquet file.
fn check_magic(path: &Path, file: &mut File) -> Result<()> {
    let length = file.metadata().map_err(Error::io(path))?.len();
    let mut magic = [0u8; 4];
    let mut at = |from: SeekFrom| -> std::io::Result<[u8; 4]> {
        file.seek(from)?;
        file.read_exact(&mut magic)?;
        Ok(magic)
    };
    if length < 12 || at(SeekFrom::Start(0)).map_err(Error::io(path))? != *b"PAR1" {
        return Err(Error::data(path, "not a Parquet file"));
    }
    match &at(SeekFrom::End(-4)).map_err(Error::io(path))? {
        b"PAR1" => Ok(()),
        b"PARE" => Err(Error::data(path, "the Parquet file is encrypted, which is not supported")),
        _ => Err(Error::data(path, "not a Parquet file or cut short: it starts like one, but its footer is missing")),
    }
}

/// `; did you mean 'x'? The columns are a, b, c`
pub(super) fn among(kind: &str, wanted: &str, names: &[&str]) -> String {
    let similarity = |name: &&&str| strsim::jaro_winkler(&wanted.to_lowercase(), &name.to_lowercase());
    let nearest = names.iter().max_by(|a, b| similarity(a).total_cmp(&similarity(b)));
    let hint = match nearest {
        Some(name) if similarity(&name) > 0.75 => format!("; did you mean '{name}'?"),
        _ => ";".to_string(),
    };
    format!("{hint} the {kind} are {}", if names.is_empty() { "none".to_string() } else { names.join(", ") })
}

/// Streams batches of [`Row`]s.
pub struct Rows {
    table: Table,
    reader: ParquetRecordBatchReader,
    source: Arc<Source>,
    next: usize,
}

impl Iterator for Rows {
    type Item = Result<Vec<Row>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(match self.reader.next()? {
            Ok(batch) => self.convert(&batch),
            Err(e) => Err(self.locate(&e.to_string())),
        })
    }
}

impl Rows {
    fn convert(&mut self, batch: &RecordBatch) -> Result<Vec<Row>> {
        let columns = self.source.columns.iter().map(|name| {
            let column = batch.column_by_name(name).map(|column| column.as_ref());
            column.ok_or_else(|| Error::Internal(format!("column '{name}' was not read")))
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let first = self.next;
        self.next += batch.num_rows();
        let row = |at: usize| {
            let mut row = Row { source: self.source.clone(), index: first + at, cells: Vec::new() };
            for (name, column) in self.source.columns.iter().zip(&columns) {
                let cell = rows::cell(*column, at).map_err(|what| row.error(format!("column '{name}' {what}")))?;
                row.cells.push(cell);
            }
            Ok(row)
        };
        (0..batch.num_rows()).map(row).collect()
    }

    /// A batch failed: reads its rows one by one to name the first that does. Where none before it can be read either,
    /// the fault lies in what the rows share (a dictionary, a page), and no single row is to blame.
    fn locate(&self, message: &str) -> Error {
        let (path, from) = (&self.table.path, self.next);
        if let Ok(reader) = self.table.reader(&self.source.columns, from, 1) {
            for (row, batch) in (from..from + BATCH_ROWS).zip(reader) {
                match batch {
                    Err(e) if row > from => return Error::data(path, format!("row {row}: {e}")),
                    Err(_) => break,
                    Ok(_) => {}
                }
            }
        }
        Error::data(path, format!("rows from {from} on: {message}"))
    }
}
