//! Typed reading of GGUF metadata; messages name the key.

use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::gguf_file::Value;

use crate::error::{Error, Result};

pub struct Metadata<'a> {
    pub path: &'a Path,
    pub map: &'a HashMap<String, Value>,
}

impl<'a> Metadata<'a> {
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::model(self.path, message)
    }

    fn missing(&self, key: &str) -> Error {
        self.error(format!("metadata '{key}' is missing"))
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(_) => Err(self.error(format!("metadata '{key}' is not a string"))),
        }
    }

    pub fn required_text(&self, key: &str) -> Result<&'a str> {
        self.text(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn count(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.map.get(key) else { return Ok(None) };
        whole(value).map(|n| Some(n as usize)).ok_or_else(|| {
            let kind =
                if matches!(value, Value::Array(_)) { "differs between layers" } else { "is not a whole number" };
            self.error(format!("metadata '{key}' {kind}; one number is supported"))
        })
    }

    pub fn required_count(&self, key: &str) -> Result<usize> {
        self.count(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn id(&self, key: &str) -> Result<Option<u32>> {
        let Some(n) = self.count(key)? else { return Ok(None) };
        u32::try_from(n).map(Some).map_err(|_| self.error(format!("metadata '{key}' is {n}, which is no token id")))
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.map.get(key) {
            None => Ok(None),
            // Through decimal: 1e-5 stored as f32 is meant as 1e-5, not as its nearest f32 widened.
            Some(Value::F32(v)) => Ok(v.to_string().parse().ok()),
            Some(Value::F64(v)) => Ok(Some(*v)),
            Some(_) => Err(self.error(format!("metadata '{key}' is not a floating-point number"))),
        }
    }

    pub fn required_number(&self, key: &str) -> Result<f64> {
        self.number(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.map.get(key) {
            None => Ok(None),
            Some(Value::Bool(v)) => Ok(Some(*v)),
            Some(_) => Err(self.error(format!("metadata '{key}' is not a truth value"))),
        }
    }

    fn list<T>(&self, key: &str, expected: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<Vec<T>>> {
        let Some(value) = self.map.get(key) else { return Ok(None) };
        let wrong = || self.error(format!("metadata '{key}' is not a list of {expected}"));
        let Value::Array(values) = value else { return Err(wrong()) };
        values.iter().map(read).collect::<Option<Vec<T>>>().map(Some).ok_or_else(wrong)
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>> {
        self.list(key, "strings", |v| match v {
            Value::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    pub fn required_texts(&self, key: &str) -> Result<Vec<&'a str>> {
        self.texts(key)?.ok_or_else(|| self.missing(key))
    }

    pub fn counts(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.list(key, "whole numbers", whole)
    }

    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f32>>> {
        self.list(key, "numbers", |v| match v {
            Value::F32(v) => Some(*v),
            _ => None,
        })
    }
}

fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::U8(v) => Some(u64::from(*v)),
        Value::U16(v) => Some(u64::from(*v)),
        Value::U32(v) => Some(u64::from(*v)),
        Value::U64(v) => Some(*v),
        Value::I8(v) => u64::try_from(*v).ok(),
        Value::I16(v) => u64::try_from(*v).ok(),
        Value::I32(v) => u64::try_from(*v).ok(),
        Value::I64(v) => u64::try_from(*v).ok(),
        _ => None,
    }
}
