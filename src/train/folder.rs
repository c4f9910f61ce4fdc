//! Folders that are never half written: made beside their final name and renamed.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Calls `fill` with a new folder beside `path` and renames it to `path`. What was at `path` is moved aside first and
/// deleted last, so a crash leaves the old folder or the new one (between the two renames: the old one as
/// `.replaced-*`).
pub fn write_folder(path: &Path, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let parent = parent(path);
    std::fs::create_dir_all(parent).map_err(Error::io(parent))?;
    let new = temporary(parent, ".partial-")?;
    fill(new.path())?;
    let new = new.keep();
    readable(&new)?;
    if path.exists() {
        let aside = temporary(parent, ".replaced-")?;
        let old = aside.path().join("old");
        std::fs::rename(path, &old).map_err(Error::io(path))?;
        std::fs::rename(&new, path).map_err(Error::io(path))?;
        return aside.close().map_err(Error::io(&old));
    }
    std::fs::rename(&new, path).map_err(Error::io(path))
}

/// The folder that `path` lies in.
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Files and folders in `folder`, sorted; none if it does not exist.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
        paths.push(entry.map_err(Error::io(folder))?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Copies the files of `from` (not its folders) into `to`, and flushes them: the folder is renamed next.
pub fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for file in entries(from)?.into_iter().filter(|path| path.is_file()) {
        if let Some(name) = file.file_name() {
            let copy = to.join(name);
            std::fs::copy(&file, &copy).map_err(Error::io(&file))?;
            std::fs::File::open(&copy).and_then(|copy| copy.sync_all()).map_err(Error::io(&copy))?;
        }
    }
    Ok(())
}

fn temporary(parent: &Path, prefix: &str) -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix(prefix).tempdir_in(parent).map_err(Error::io(parent))
}

/// Temporary folders are private; finished ones are readable like any other.
#[cfg(unix)]
fn readable(folder: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).map_err(Error::io(folder))
}

#[cfg(not(unix))]
fn readable(_folder: &Path) -> Result<()> {
    Ok(())
}
