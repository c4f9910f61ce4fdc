//! Files that are never half written: each is written beside its final name, flushed and renamed. Small tensor files.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use crate::error::{Error, Result};

/// Calls `write` with a file beside `path`, flushes it to disk and renames it to `path`.
pub fn write_atomic(path: &Path, write: impl FnOnce(&mut std::fs::File) -> std::io::Result<()>) -> Result<()> {
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    let mut file = tempfile::Builder::new().prefix(".partial-").tempfile_in(folder).map_err(Error::io(folder))?;
    write(file.as_file_mut()).and_then(|()| file.as_file().sync_all()).map_err(Error::io(path))?;
    set_mode(file.as_file()).map_err(Error::io(path))?;
    file.persist(path).map_err(|e| Error::io(path)(e.error))?;
    Ok(())
}

/// Temporary files are private; finished ones are readable like any other.
#[cfg(unix)]
fn set_mode(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn set_mode(_file: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}

pub fn write_text(path: &Path, text: &str) -> Result<()> {
    write_atomic(path, |file| file.write_all(text.as_bytes()))
}

/// Indented JSON with a closing newline.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value).map_err(|e| Error::Internal(e.to_string()))?;
    text.push('\n');
    write_text(path, &text)
}

/// Writes f32 tensors (name, shape, values) as safetensors. Refuses values that are not finite.
pub fn write_tensors<'a>(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, Vec<usize>, &'a [f32])>,
) -> Result<()> {
    let mut bytes = Vec::new();
    for (name, shape, values) in tensors {
        if let Some(bad) = values.iter().position(|v| !v.is_finite()) {
            return Err(Error::Internal(format!("tensor '{name}' has a value that is not finite at {bad}: not saved")));
        }
        bytes.push((name, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()));
    }
    let mut views = BTreeMap::new();
    for (name, shape, data) in &bytes {
        let view = TensorView::new(Dtype::F32, shape.clone(), data).map_err(|e| Error::Internal(e.to_string()))?;
        views.insert(name.clone(), view);
    }
    let metadata = [("format".to_string(), "pt".to_string())].into_iter().collect();
    let file = safetensors::serialize(views, Some(metadata)).map_err(|e| Error::Internal(e.to_string()))?;
    write_atomic(path, |out| out.write_all(&file))
}

/// Reads a safetensors file that must have exactly the tensors of `wanted`, as f32 (stored f32, f16 or bf16).
pub fn read_tensors(path: &Path, wanted: &BTreeMap<String, Vec<usize>>) -> Result<BTreeMap<String, Vec<f32>>> {
    let bytes = std::fs::read(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => Error::model(path, "not found"),
        _ => Error::io(path)(e),
    })?;
    let file = SafeTensors::deserialize(&bytes)
        .map_err(|e| Error::model(path, format!("not a safetensors file, or cut short: {e}")))?;
    let names: Vec<&str> = file.names();
    let missing: Vec<&String> = wanted.keys().filter(|name| !names.contains(&name.as_str())).collect();
    let mut extra: Vec<&str> = names.into_iter().filter(|name| !wanted.contains_key(*name)).collect();
    extra.sort_unstable();
    if !missing.is_empty() || !extra.is_empty() {
        let list = |what: &str, names: Vec<String>| match names.len() {
            0 => String::new(),
            n => format!("; {what} {n}: {}{}", names[..n.min(5)].join(", "), if n > 5 { ", ..." } else { "" }),
        };
        return Err(Error::model(
            path,
            format!(
                "tensors do not fit{}{}",
                list("missing", missing.into_iter().cloned().collect()),
                list("unexpected", extra.into_iter().map(str::to_string).collect())
            ),
        ));
    }
    let mut out = BTreeMap::new();
    for (name, shape) in wanted {
        let view = file.tensor(name).map_err(|e| Error::model(path, e.to_string()))?;
        if view.shape() != &shape[..] {
            return Err(Error::model(path, format!("tensor '{name}' is {:?}, expected {shape:?}", view.shape())));
        }
        out.insert(name.clone(), to_f32(view.dtype(), view.data(), path, name)?);
    }
    Ok(out)
}

fn to_f32(dtype: Dtype, data: &[u8], path: &Path, name: &str) -> Result<Vec<f32>> {
    let two = |f: fn([u8; 2]) -> f32| data.chunks_exact(2).map(|b| f([b[0], b[1]])).collect();
    match dtype {
        Dtype::F32 => Ok(data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
        Dtype::F16 => Ok(two(|b| half::f16::from_le_bytes(b).to_f32())),
        Dtype::BF16 => Ok(two(|b| half::bf16::from_le_bytes(b).to_f32())),
        other => Err(Error::model(path, format!("tensor '{name}' is {other:?}, expected F32, F16 or BF16"))),
    }
}
