//! Finds the files that a recipe names: relative to the recipe's folder, then to the working folder. What is found is
//! given relative to the working folder where it lies below it, else absolute, so that a resolved recipe means the same
//! wherever it is kept.

use std::path::{Component, Path, PathBuf};

/// Where relative paths may start.
pub struct Places {
    recipe: PathBuf,
    working: PathBuf,
}

impl Places {
    /// For the recipe at `path`.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let working = std::env::current_dir()?;
        let recipe = working.join(path).parent().map_or(working.clone(), Path::to_path_buf);
        Ok(Self { recipe, working })
    }

    /// The Parquet files that `typed` names: a file, all `*.parquet` of a folder, or those that a `*` in the last part
    /// matches, sorted by name. Else what was tried.
    pub fn data(&self, typed: &str) -> Result<Vec<PathBuf>, String> {
        let pattern = Path::new(typed).file_name().and_then(|name| name.to_str()).filter(|name| name.contains('*'));
        let tried = self.candidates(typed);
        for path in &tried {
            let (folder, pattern) = match (pattern, path.parent()) {
                (Some(pattern), Some(folder)) => (folder, pattern),
                _ if path.is_dir() => (path.as_path(), "*.parquet"),
                _ if path.is_file() => return Ok(vec![self.shorten(path)?]),
                _ => continue,
            };
            let found = list(folder, pattern).map_err(|e| format!("{}: {e}", folder.display()))?;
            if !found.is_empty() {
                return found.iter().map(|path| self.shorten(path)).collect();
            }
        }
        let kind = if pattern.is_some() { "no file matches" } else { "no such file, nor a folder with .parquet files" };
        Err(format!("{kind}; tried {}", self.shown(&tried)))
    }

    /// The base: an existing path, or a hub id or known name as typed. Else what was tried.
    pub fn base(&self, typed: &str) -> Result<String, String> {
        let tried = self.candidates(typed);
        if let Some(path) = tried.iter().find(|path| path.exists()) {
            return text(&self.shorten(path)?);
        }
        let parts = typed.split('/').count();
        let is_path = parts > 2 || typed.starts_with(['.', '/', '~']) || typed.ends_with(".gguf");
        if is_path {
            Err(format!("no such file or folder; tried {}", self.shown(&tried)))
        } else {
            Ok(typed.to_string())
        }
    }

    fn candidates(&self, typed: &str) -> Vec<PathBuf> {
        let mut tried = vec![plain(&self.recipe.join(typed)), plain(&self.working.join(typed))];
        tried.dedup();
        tried
    }

    fn shown(&self, paths: &[PathBuf]) -> String {
        let shown = |path: &PathBuf| path.strip_prefix(&self.working).unwrap_or(path).display().to_string();
        paths.iter().map(shown).collect::<Vec<_>>().join(" and ")
    }

    fn shorten(&self, path: &Path) -> Result<PathBuf, String> {
        let short = path.strip_prefix(&self.working).ok().filter(|short| !short.as_os_str().is_empty()).unwrap_or(path);
        text(short).map(PathBuf::from)
    }
}

/// Without `.` and, where that leads to the same place (a symbolic link may not), without `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir if matches!(plain.components().next_back(), Some(Component::Normal(_))) => {
                plain.pop();
            }
            part => plain.push(part),
        }
    }
    match (path.canonicalize(), plain.canonicalize()) {
        (Ok(there), Ok(here)) if there != here => path.to_path_buf(),
        (Ok(_), Err(_)) => path.to_path_buf(),
        _ => plain,
    }
}

fn list(folder: &Path, pattern: &str) -> std::io::Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for entry in folder.read_dir()? {
        let path = entry?.path();
        let matches = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| matches(name, pattern));
        if matches && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Whether `name` is `pattern` with each `*` standing for any run of characters.
fn matches(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((before, after)) => name.strip_prefix(before).is_some_and(|rest| {
            rest.char_indices().map(|(at, _)| at).chain([rest.len()]).any(|at| matches(&rest[at..], after))
        }),
    }
}

/// TOML cannot hold a path that is not UTF-8.
fn text(path: &Path) -> Result<String, String> {
    path.to_str().map(str::to_string).ok_or_else(|| format!("the path {} is not UTF-8", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_run() {
        assert!(matches("train-00000-of-00002.parquet", "train-*.parquet"));
        assert!(matches("a.parquet", "*.parquet") && matches("a", "*") && matches("abcb", "a*b"));
        assert!(!matches("train.parquet.tmp", "*.parquet") && !matches("xtrain-0.parquet", "train-*.parquet"));
    }

    #[test]
    fn dots_are_taken_out() {
        assert_eq!(plain(Path::new("/nowhere/recipes/../data/./a")), Path::new("/nowhere/data/a"));
        assert_eq!(plain(Path::new("/../a")), Path::new("/../a"));
    }
}
