//! Rows: one Arrow cell becomes one template value.
//!
//! Given arrays of a record batch, returns [`Row`]s whose cells are minijinja values. A null is *absent*: it is not in
//! the row's context, a null struct field is not in its map, so templates see all three alike (`is defined`,
//! `default(..)`); inside a list it is an undefined item, since positions must not shift.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{
    Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_cast::display::array_value_to_string;
use arrow_schema::DataType;
use minijinja::Value;

use crate::error::{Error, Result};

/// Where rows come from: the file, what reports call it, and the columns that were read.
#[derive(Debug)]
pub(super) struct Source {
    pub path: PathBuf,
    pub label: String,
    pub columns: Vec<String>,
}

/// One row of a file: the cells of the columns that were asked for.
#[derive(Clone, Debug)]
pub struct Row {
    pub(super) source: Arc<Source>,
    /// Counts from 0 within the file.
    pub index: usize,
    pub(super) cells: Vec<Cell>,
}

/// A converted cell.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// Undefined where the cell is null.
    pub value: Value,
    /// A null anywhere in it.
    pub holds_null: bool,
}

impl Row {
    /// The cell of a column; `None` where it is null or was not read.
    pub fn get(&self, column: &str) -> Option<&Value> {
        self.cell(column).map(|cell| &cell.value).filter(|value| !value.is_undefined())
    }

    pub(super) fn cell(&self, column: &str) -> Option<&Cell> {
        let at = self.source.columns.iter().position(|name| name == column)?;
        self.cells.get(at)
    }

    pub fn path(&self) -> &Path {
        &self.source.path
    }

    /// What reports call the row: the id column's value, or `file:row` without one.
    pub fn name(&self, id: Option<&str>) -> String {
        match id.and_then(|column| self.get(column)) {
            Some(value) => value.to_string(),
            None => format!("{}:{}", self.source.label, self.index),
        }
    }

    /// An error of this row, with file and row number.
    pub fn error(&self, message: impl std::fmt::Display) -> Error {
        Error::data(&self.source.path, format!("row {}: {message}", self.index))
    }

    /// The map that templates look names up in: all cells that are not null, and under `whole`, where no column is
    /// called so, the map of them.
    pub(super) fn context(&self, whole: Option<&str>) -> Value {
        let names = self.source.columns.iter().map(String::as_str);
        let filled = names.zip(&self.cells).filter(|(_, cell)| !cell.value.is_undefined());
        let cells: Vec<(&str, Value)> = filled.map(|(name, cell)| (name, cell.value.clone())).collect();
        match whole.filter(|name| self.cell(name).is_none()) {
            Some(name) => {
                let map = Value::from_pairs(cells.iter().cloned());
                Value::from_pairs(cells.into_iter().chain([(name, map)]))
            }
            None => Value::from_pairs(cells),
        }
    }
}

/// Why a cell has no text.
#[derive(Clone, Debug, PartialEq)]
pub enum NotText {
    /// Not a text layout.
    Type(DataType),
    /// Bytes that are not UTF-8.
    Utf8,
}

/// The text of a cell in any layout that engines write text in: Utf8, LargeUtf8, Utf8View, the three binary layouts and
/// fixed-size binary where they hold valid UTF-8, and dictionaries or runs of any of them. `None`: null.
pub fn as_text(array: &dyn Array, row: usize) -> Result<Option<&str>, NotText> {
    if array.is_null(row) {
        return Ok(None);
    }
    let bytes = match array.data_type() {
        DataType::Utf8 => return Ok(Some(array.as_string::<i32>().value(row))),
        DataType::LargeUtf8 => return Ok(Some(array.as_string::<i64>().value(row))),
        DataType::Utf8View => return Ok(Some(array.as_string_view().value(row))),
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::BinaryView => array.as_binary_view().value(row),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().value(row),
        DataType::Null => return Ok(None),
        other => match indirect(array, row) {
            Some((values, at)) => return as_text(values, at),
            None => return Err(NotText::Type(other.clone())),
        },
    };
    std::str::from_utf8(bytes).map(Some).map_err(|_| NotText::Utf8)
}

/// Whether [`as_text`] reads this type. A column that is null throughout counts as text: another file may have words.
pub fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Null => true,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => true,
        DataType::Dictionary(_, values) => is_text(values),
        DataType::RunEndEncoded(_, values) => is_text(values.data_type()),
        _ => false,
    }
}

/// The values and the place in them that a dictionary's or a run array's cell stands for.
fn indirect(array: &dyn Array, row: usize) -> Option<(&dyn Array, usize)> {
    if let Some(dictionary) = array.as_any_dictionary_opt() {
        return Some((dictionary.values().as_ref(), integer(dictionary.keys(), row)? as usize));
    }
    if let Some(runs) = array.as_run_opt::<Int16Type>() {
        return Some((runs.values().as_ref(), runs.get_physical_index(row)));
    }
    if let Some(runs) = array.as_run_opt::<Int32Type>() {
        return Some((runs.values().as_ref(), runs.get_physical_index(row)));
    }
    let runs = array.as_run_opt::<Int64Type>()?;
    Some((runs.values().as_ref(), runs.get_physical_index(row)))
}

fn integer(array: &dyn Array, row: usize) -> Option<i128> {
    Some(match array.data_type() {
        DataType::Int8 => array.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into(),
        DataType::UInt8 => array.as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => array.as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => array.as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(row).into(),
        _ => return None,
    })
}

/// f32 and f16 keep their own shortest digits: 0.85 stays 0.85, not 0.8500000238.
fn float(array: &dyn Array, row: usize) -> Option<f64> {
    let shortest = |digits: String| digits.parse::<f64>().ok();
    match array.data_type() {
        DataType::Float16 => shortest(array.as_primitive::<Float16Type>().value(row).to_string()),
        DataType::Float32 => shortest(array.as_primitive::<Float32Type>().value(row).to_string()),
        DataType::Float64 => Some(array.as_primitive::<Float64Type>().value(row)),
        _ => None,
    }
}

/// Converts one cell. Text, numbers, booleans, lists and structs become what they are in Jinja; decimals, dates and
/// times become text (`12.50`, `2026-01-01T00:00:00`). The error says what the cell is, without column and row.
pub(super) fn cell(array: &dyn Array, row: usize) -> Result<Cell, String> {
    let mut holds_null = false;
    let value = convert(array, row, &mut holds_null)?;
    Ok(Cell { value, holds_null })
}

fn convert(array: &dyn Array, row: usize, holds_null: &mut bool) -> Result<Value, String> {
    if array.is_null(row) || array.data_type() == &DataType::Null {
        *holds_null = true;
        return Ok(Value::UNDEFINED);
    }
    if let Some(number) = integer(array, row) {
        // Stored as the narrowest kind that renders without a fraction or an exponent.
        return Ok(i64::try_from(number).map_or_else(|_| Value::from(number), Value::from));
    }
    if let Some(number) = float(array, row) {
        return Ok(Value::from(number));
    }
    match array.data_type() {
        DataType::Boolean => Ok(Value::from(array.as_boolean().value(row))),
        DataType::List(_) => items(array.as_list::<i32>().value(row).as_ref(), holds_null),
        DataType::LargeList(_) => items(array.as_list::<i64>().value(row).as_ref(), holds_null),
        DataType::ListView(_) => items(array.as_list_view::<i32>().value(row).as_ref(), holds_null),
        DataType::LargeListView(_) => items(array.as_list_view::<i64>().value(row).as_ref(), holds_null),
        DataType::FixedSizeList(_, _) => items(array.as_fixed_size_list().value(row).as_ref(), holds_null),
        DataType::Struct(fields) => {
            let columns = array.as_struct();
            let mut pairs = Vec::with_capacity(fields.len());
            for (field, column) in fields.iter().zip(columns.columns()) {
                let value = convert(column.as_ref(), row, holds_null)?;
                if !value.is_undefined() {
                    pairs.push((field.name().clone(), value));
                }
            }
            Ok(Value::from_pairs(pairs))
        }
        DataType::Map(_, _) => {
            let entries = array.as_map().value(row);
            let mut pairs = Vec::with_capacity(entries.len());
            for entry in 0..entries.len() {
                let key = convert(entries.column(0).as_ref(), entry, holds_null)?;
                let value = convert(entries.column(1).as_ref(), entry, holds_null)?;
                if !value.is_undefined() {
                    pairs.push((key, value));
                }
            }
            Ok(Value::from_pairs(pairs))
        }
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..)
        | DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..)
        | DataType::Duration(_)
        | DataType::Interval(_) => written(array, row).map(Value::from).map_err(|e| e.to_string()),
        _ => match as_text(array, row) {
            Ok(Some(text)) => Ok(Value::from(text)),
            Ok(None) => {
                *holds_null = true;
                Ok(Value::UNDEFINED)
            }
            Err(NotText::Utf8) => Err("is not valid UTF-8".to_string()),
            Err(NotText::Type(data_type)) => match indirect(array, row) {
                Some((values, at)) => convert(values, at, holds_null),
                None => Err(format!("is {data_type}, which cannot be read")),
            },
        },
    }
}

fn items(list: &dyn Array, holds_null: &mut bool) -> Result<Value, String> {
    (0..list.len()).map(|at| convert(list, at, holds_null)).collect::<Result<Vec<_>, _>>().map(Value::from)
}

/// A cell as arrow displays it. Named time zones take a database of them, which is not built in; UTC does not.
fn written(array: &dyn Array, row: usize) -> Result<String, arrow_schema::ArrowError> {
    match array.data_type() {
        DataType::Timestamp(unit, Some(zone)) if zone.eq_ignore_ascii_case("utc") => {
            let offset = DataType::Timestamp(*unit, Some("+00:00".into()));
            array_value_to_string(&*arrow_cast::cast(&*array.slice(row, 1), &offset)?, 0)
        }
        _ => array_value_to_string(array, row),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::builder::{MapBuilder, StringBuilder};
    use arrow_array::{
        ArrayRef, Date32Array, Decimal128Array, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array,
        LargeListViewArray, ListViewArray, StringArray, TimestampMicrosecondArray, UInt64Array,
    };
    use arrow_schema::Field;

    use super::*;

    fn json(array: &dyn Array, row: usize) -> serde_json::Value {
        serde_json::to_value(cell(array, row).unwrap().value).unwrap()
    }

    fn strings(values: &[Option<&str>]) -> ArrayRef {
        Arc::new(StringArray::from(values.to_vec()))
    }

    // pains 48 (datasets PR #7794): every kind of list, views and fixed sizes included
    #[test]
    fn every_kind_of_list_is_a_list() {
        let items = strings(&[Some("a"), None, Some("b"), Some("c")]);
        let field = Arc::new(Field::new("item", DataType::Utf8, true));
        let views = ListViewArray::new(field.clone(), vec![2, 0].into(), vec![2, 1].into(), items.clone(), None);
        assert_eq!(json(&views, 0), serde_json::json!(["b", "c"]));
        assert_eq!(json(&views, 1), serde_json::json!(["a"]));
        let views = LargeListViewArray::new(field.clone(), vec![0].into(), vec![2].into(), items.clone(), None);
        assert_eq!(json(&views, 0), serde_json::json!(["a", null]));
        assert!(cell(&views, 0).unwrap().holds_null);
        let fixed = FixedSizeListArray::new(field, 2, items, None);
        assert_eq!(json(&fixed, 1), serde_json::json!(["b", "c"]));
        assert!(!cell(&fixed, 1).unwrap().holds_null);
    }

    #[test]
    fn maps_are_structs_with_free_keys() {
        let mut builder = MapBuilder::new(None, StringBuilder::new(), StringBuilder::new());
        builder.keys().append_value("color");
        builder.values().append_value("red");
        builder.keys().append_value("size");
        builder.values().append_null();
        builder.append(true).unwrap();
        assert_eq!(json(&builder.finish(), 0), serde_json::json!({"color": "red"}));
    }

    #[test]
    fn dates_and_decimals_are_text_and_numbers_numbers() {
        let written = |array: &dyn Array| cell(array, 0).unwrap().value.to_string();
        assert_eq!(written(&Date32Array::from(vec![20_454])), "2026-01-01");
        assert_eq!(written(&TimestampMicrosecondArray::from(vec![0]).with_timezone("UTC")), "1970-01-01T00:00:00Z");
        let price = Decimal128Array::from(vec![1250]).with_precision_and_scale(10, 2).unwrap();
        assert_eq!(written(&price), "12.50");
        assert_eq!(json(&UInt64Array::from(vec![u64::MAX]), 0), serde_json::json!(u64::MAX));
        let numbers: DictionaryArray<Int32Type> =
            DictionaryArray::new(Int32Array::from(vec![1, 0]), Arc::new(Int64Array::from(vec![5, 6])));
        assert_eq!(json(&numbers, 0), serde_json::json!(6));
    }
}
