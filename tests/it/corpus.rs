//! The corpus: Parquet files, templates, encoding, reports, order. Files are written by the tests themselves; those of
//! other engines come from `FULLBAND_PARQUET`.

mod chat;
mod encoding;
mod files;
pub mod fixtures;
mod loading;
mod manifest;
mod ordering;
mod templates;
