//! A base by its hub id: brought into the hub's own cache through `hf-hub`. `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_CACHE`
//! and `HF_TOKEN` mean what they mean to the hub's own tools. Every file is compared with what the hub announces (size, and sha256 for weights) before it is used,
//! and no wait is unbounded: the work runs on a thread of its own, which must show progress.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Cache, Repo, RepoType};
use serde_json::Value;

use super::hf_config::read_object;
use super::sha256_file;
use crate::error::{Error, Result};

/// Files beside weights and `config.json` that a copy of a checkpoint carries.
pub const COMPANIONS: [&str; 10] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
];
const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// `org/name@revision`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubId {
    pub org: String,
    pub name: String,
    /// Branch, tag or commit; `main` where none is given.
    pub revision: String,
}

impl std::fmt::Display for HubId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        Ok(())
    }
}

/// None where `text` has not the form of a hub id. `models/x` is a path of ours, and so is whatever starts with a
/// folder that exists.
pub fn parse_id(text: &str) -> Option<HubId> {
    let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
    let (org, name) = id.split_once('/')?;
    let word = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_alphanumeric())
            && s.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let fits = word(org) && word(name) && !revision.is_empty() && !name.ends_with(".gguf");
    if !fits || org == "models" || Path::new(org).is_dir() {
        return None;
    }
    Some(HubId { org: org.into(), name: name.into(), revision: revision.into() })
}

/// How far a download is. `total` is 0 where unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    pub file: String,
    pub done: u64,
    pub total: u64,
}

/// Where and how patiently to fetch. Fields left `None` are what `hf-hub` reads from the environment.
#[derive(Clone, Debug)]
pub struct Hub {
    pub endpoint: Option<String>,
    pub cache_dir: Option<PathBuf>,
    /// For the first connection.
    pub connect: Duration,
    /// The longest time without any progress.
    pub stall: Duration,
}

impl Hub {
    pub fn from_env() -> Self {
        Self { endpoint: None, cache_dir: None, connect: Duration::from_secs(5), stall: Duration::from_secs(60) }
    }

    /// Brings config, tokenizer and weights of a model into the cache and returns the folder. Without a connection a
    /// copy that is already in the cache is used. Errors: `Model`, with what was tried.
    pub fn snapshot(&self, id: &HubId, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
        let failed = |message: String| Error::model(id.to_string(), message);
        let (api, cache, endpoint) = self.api().map_err(|e| failed(e.to_string()))?;
        let job = Job { id: id.clone(), api, cache, endpoint: endpoint.clone(), connect: self.connect };
        let (events, received) = mpsc::channel();
        std::thread::Builder::new()
            .name("hub".into())
            .spawn(move || {
                let result = job.run(&events);
                // The receiver is gone when it gave up waiting.
                let _ = events.send(Event::Done(result));
            })
            .map_err(|e| Error::Internal(format!("no thread for the download: {e}")))?;
        let mut patience = self.connect + Duration::from_secs(3);
        loop {
            match received.recv_timeout(patience) {
                Ok(Event::Connected) => patience = self.stall,
                Ok(Event::Progress(p)) => progress(p),
                Ok(Event::Done(result)) => return result,
                Err(RecvTimeoutError::Timeout) => {
                    let seconds = patience.as_secs();
                    return Err(failed(format!("no answer from {endpoint} for {seconds} seconds")));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(failed("the download broke off".into())),
            }
        }
    }

    fn api(&self) -> Result<(Api, Cache, String), ApiError> {
        let cache = match (&self.cache_dir, std::env::var_os("HF_HUB_CACHE")) {
            (Some(folder), _) => Cache::new(folder.clone()),
            (None, Some(folder)) if !folder.is_empty() => Cache::new(folder.into()),
            _ => Cache::from_env(),
        };
        let given = self.endpoint.clone().or_else(|| std::env::var("HF_ENDPOINT").ok());
        let endpoint = given.unwrap_or_else(|| "https://huggingface.co".into()).trim_end_matches('/').to_string();
        let token = std::env::var("HF_TOKEN").ok().filter(|t| !t.is_empty()).or_else(|| cache.token());
        let api = ApiBuilder::from_cache(cache.clone())
            .with_endpoint(endpoint.clone())
            .with_token(token)
            .with_progress(false)
            .with_retries(2)
            .build()?;
        Ok((api, cache, endpoint))
    }
}

enum Event {
    Connected,
    Progress(Progress),
    Done(Result<PathBuf>),
}

struct Job {
    id: HubId,
    api: Api,
    cache: Cache,
    endpoint: String,
    connect: Duration,
}

/// A file as the hub announces it.
struct Announced {
    size: u64,
    /// Of files in large-file storage, which weights are.
    sha256: Option<String>,
}

impl Job {
    fn run(&self, events: &Sender<Event>) -> Result<PathBuf> {
        if let Err(why) = reachable(&self.endpoint, self.connect) {
            return self.cached(&why);
        }
        // The receiver is gone when it gave up waiting; so everywhere below.
        let _ = events.send(Event::Connected);
        self.download(events)
    }

    fn repo(&self, revision: &str) -> Repo {
        Repo::with_revision(format!("{}/{}", self.id.org, self.id.name), RepoType::Model, revision.into())
    }

    fn refused(&self, message: impl Into<String>) -> Error {
        Error::model(self.id.to_string(), message)
    }

    fn failed(&self, what: &str, e: &ApiError) -> Error {
        let text = chain(e);
        let refused = ["401", "403", "404"].iter().any(|code| text.contains(&format!("status: {code}")));
        if what.is_empty() && refused {
            let (endpoint, revision) = (&self.endpoint, &self.id.revision);
            return self.refused(format!(
                "{endpoint} gives no such model at revision '{revision}' ({text}); \
                 if it is private or gated, set HF_TOKEN"
            ));
        }
        let what = if what.is_empty() { "it".to_string() } else { what.to_string() };
        self.refused(format!("{what} cannot be fetched from {}: {text}", self.endpoint))
    }

    /// What an earlier call left whole: the revision's name is written last.
    fn cached(&self, why: &str) -> Result<PathBuf> {
        let config = self.cache.repo(self.repo(&self.id.revision)).get(CONFIG);
        let Some(folder) = config.as_deref().and_then(Path::parent) else {
            return Err(self.refused(format!(
                "{} cannot be reached ({why}), and the model is not in the hub's cache {}",
                self.endpoint,
                self.cache.path().display()
            )));
        };
        for entry in std::fs::read_dir(folder).map_err(Error::io(folder))? {
            let path = entry.map_err(Error::io(folder))?.path();
            if let Some(announced) = blob_sha256(&path) {
                let size = std::fs::metadata(&path).map_err(Error::io(&path))?.len();
                self.check(&path, &Announced { size, sha256: Some(announced) })?;
            }
        }
        Ok(folder.to_path_buf())
    }

    fn download(&self, events: &Sender<Event>) -> Result<PathBuf> {
        let (commit, files) = self.listing()?;
        let announced = |name: &str| {
            files.get(name).ok_or_else(|| self.refused(format!("{name} is not there; it has {}", listed(&files))))
        };
        self.file(CONFIG, announced(CONFIG)?, &commit, events)?;
        for name in COMPANIONS.iter().filter(|name| files.contains_key(**name)) {
            self.file(name, announced(name)?, &commit, events)?;
        }
        let weights = if files.contains_key(SINGLE) {
            BTreeSet::from([SINGLE.to_string()])
        } else if files.contains_key(INDEX) {
            shards(&self.file(INDEX, announced(INDEX)?, &commit, events)?)?
        } else {
            return Err(self.refused(format!("neither {SINGLE} nor {INDEX} is there; it has {}", listed(&files))));
        };
        for name in &weights {
            self.file(name, announced(name)?, &commit, events)?;
        }
        let cache = self.cache.repo(self.repo(&self.id.revision));
        cache.create_ref(&commit).map_err(Error::io(self.cache.path()))?;
        Ok(cache.pointer_path(&commit))
    }

    /// The commit of the revision and its files; all is read at that commit, whatever happens to the branch.
    fn listing(&self) -> Result<(String, BTreeMap<String, Announced>)> {
        let request = self.api.repo(self.repo(&self.id.revision)).info_request().query("blobs", "true");
        let mut response = request.call().map_err(|e| self.failed("", &ApiError::RequestError(Box::new(e))))?;
        let info: Value = response
            .body_mut()
            .read_json()
            .map_err(|e| self.failed("its list of files", &ApiError::RequestError(Box::new(e))))?;
        let unlike = || self.refused(format!("the answer of {} is not a hub's description of a model", self.endpoint));
        let commit = info["sha"].as_str().ok_or_else(unlike)?;
        let mut files = BTreeMap::new();
        for file in info["siblings"].as_array().ok_or_else(unlike)? {
            let name = file["rfilename"].as_str().ok_or_else(unlike)?;
            let size = file["size"].as_u64().ok_or_else(unlike)?;
            let sha256 = file["lfs"]["sha256"].as_str().map(str::to_lowercase);
            files.insert(name.to_string(), Announced { size, sha256 });
        }
        Ok((commit.to_string(), files))
    }

    /// A file in the cache, fetched where it is not there yet.
    fn file(&self, name: &str, announced: &Announced, commit: &str, events: &Sender<Event>) -> Result<PathBuf> {
        let path = self.cache.repo(self.repo(commit)).pointer_path(commit).join(name);
        if path.exists() && self.check(&path, announced).is_ok() {
            return Ok(path);
        }
        let repository = self.api.repo(self.repo(commit));
        let metadata = self.api.metadata(&repository.url(name)).map_err(|e| self.failed(name, &e))?;
        let part = self.cache.repo(self.repo(commit)).blob_path(metadata.etag()).with_extension("part");
        if std::fs::metadata(&part).is_ok_and(|m| m.len() >= announced.size) {
            // Nothing is left to ask for, which `hf-hub` would take for a fault; a part this long is not trusted.
            std::fs::remove_file(&part).map_err(Error::io(&part))?;
        }
        let reporter = Reporter { file: name.into(), done: 0, total: announced.size, events: events.clone() };
        let path = repository.download_with_progress(name, reporter).map_err(|e| self.failed(name, &e))?;
        self.check(&path, announced)?;
        Ok(path)
    }

    /// Compares a file with what was announced. A wrong one is taken out of the cache, so that the next try fetches it
    /// anew.
    fn check(&self, path: &Path, announced: &Announced) -> Result<()> {
        let size = std::fs::metadata(path).map_err(Error::io(path))?.len();
        let fault = if size != announced.size {
            Some(format!("{size} bytes came, {} were announced", announced.size))
        } else if let Some(wanted) = &announced.sha256 {
            let sha256 = sha256_file(path)?;
            (sha256 != *wanted).then(|| format!("sha256 is {sha256}, {wanted} was announced"))
        } else {
            None
        };
        let Some(fault) = fault else { return Ok(()) };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Ok(blob) = std::fs::canonicalize(path) {
            std::fs::remove_file(&blob).map_err(Error::io(&blob))?;
        }
        if path.is_symlink() {
            std::fs::remove_file(path).map_err(Error::io(path))?;
        }
        Err(self.refused(format!("{name} from {}: {fault}; nothing of it is kept", self.endpoint)))
    }
}

/// The cache names a blob of large-file storage by its sha256.
fn blob_sha256(path: &Path) -> Option<String> {
    let target = std::fs::read_link(path).ok()?;
    let name = target.file_name()?.to_str()?.to_lowercase();
    (name.len() == 64 && name.bytes().all(|b| b.is_ascii_hexdigit())).then_some(name)
}

fn shards(index: &Path) -> Result<BTreeSet<String>> {
    let object = read_object(index)?;
    let map = object.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| Error::model(index, "no 'weight_map' from tensor names to files"))?;
    Ok(map.values().filter_map(Value::as_str).map(String::from).collect())
}

fn listed(files: &BTreeMap<String, Announced>) -> String {
    let names: Vec<&str> = files.keys().take(20).map(String::as_str).collect();
    if names.is_empty() { "no files".into() } else { names.join(", ") }
}

struct Reporter {
    file: String,
    done: u64,
    total: u64,
    events: Sender<Event>,
}

impl Reporter {
    fn send(&self) {
        let progress = Progress { file: self.file.clone(), done: self.done, total: self.total };
        let _ = self.events.send(Event::Progress(progress));
    }
}

impl hf_hub::api::Progress for Reporter {
    fn init(&mut self, _size: usize, _file: &str) {
        self.done = 0;
        self.send();
    }

    fn update(&mut self, size: usize) {
        self.done += size as u64;
        self.send();
    }

    fn finish(&mut self) {
        self.send();
    }
}

/// Whether a connection opens. Behind a proxy only the request itself can tell.
fn reachable(endpoint: &str, limit: Duration) -> Result<(), String> {
    let proxied = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
    if proxied.iter().any(|name| std::env::var_os(name).is_some_and(|v| !v.is_empty())) {
        return Ok(());
    }
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    let host = rest.split(['/', '?']).next().unwrap_or_default();
    let port = if scheme == "http" { 80 } else { 443 };
    let has_port = host.rsplit_once(':').is_some_and(|(_, p)| p.parse::<u16>().is_ok());
    let address = if has_port { host.to_string() } else { format!("{host}:{port}") };
    let addresses = address.to_socket_addrs().map_err(|e| e.to_string())?;
    let mut why = "its name has no address".to_string();
    for address in addresses {
        match TcpStream::connect_timeout(&address, limit) {
            Ok(_) => return Ok(()),
            Err(e) => why = e.to_string(),
        }
    }
    Err(why)
}

/// An error with its causes, each once.
fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(&format!(": {cause_text}"));
        }
        source = cause.source();
    }
    text
}
