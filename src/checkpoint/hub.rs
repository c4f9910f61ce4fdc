//! A base by its hub id: brought into the hub's own cache through `hf-hub`, which reads `HF_ENDPOINT`, `HF_HOME` and
//! `HF_TOKEN`. Every file is compared with what the hub announces (size, and sha256 for weights) before it is used,
//! and no wait is unbounded: the work runs on a thread of its own, which must show progress.

use std::net::{TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use hf_hub::progress::{DownloadEvent, ProgressEvent, ProgressHandler};
use hf_hub::repository::{RepoTreeEntry, RepoTypeModel};
use hf_hub::{HFClient, HFClientBuilder, HFError, HFRepositorySync};
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
        let client = self.client().map_err(|e| failed(e.to_string()))?;
        let endpoint = client.endpoint().to_string();
        let job = Job { id: id.clone(), endpoint: endpoint.clone(), connect: self.connect };
        let (events, received) = mpsc::channel();
        std::thread::Builder::new()
            .name("hub".into())
            .spawn(move || {
                let result = job.run(client, &events);
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

    fn client(&self) -> Result<HFClient, HFError> {
        let mut builder = HFClientBuilder::new().retry_max_attempts(2);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.endpoint(endpoint);
        }
        if let Some(folder) = &self.cache_dir {
            builder = builder.cache_dir(folder);
        }
        builder.build()
    }
}

enum Event {
    Connected,
    Progress(Progress),
    Done(Result<PathBuf>),
}

struct Job {
    id: HubId,
    endpoint: String,
    connect: Duration,
}

type Repository = HFRepositorySync<RepoTypeModel>;

impl Job {
    fn run(&self, client: HFClient, events: &Sender<Event>) -> Result<PathBuf> {
        let client = hf_hub::HFClientSync::from_inner(client).map_err(|e| self.failed(&e))?;
        let repository = client.model(self.id.org.as_str(), self.id.name.as_str());
        if let Err(why) = reachable(&self.endpoint, self.connect) {
            return self.cached(&repository, &why);
        }
        let _ = events.send(Event::Connected);
        self.download(&repository, events)
    }

    fn failed(&self, e: &HFError) -> Error {
        let message = match e {
            HFError::RepoNotFound { .. } | HFError::AuthRequired { .. } | HFError::Forbidden { .. } => {
                format!("{} has no such model, or it is private or gated; for those set HF_TOKEN ({e})", self.endpoint)
            }
            HFError::RevisionNotFound { revision, .. } => {
                format!("{} has no revision '{revision}' of it ({e})", self.endpoint)
            }
            _ => format!("cannot be fetched from {}: {}", self.endpoint, chain(e)),
        };
        Error::model(self.id.to_string(), message)
    }

    fn cached(&self, repository: &Repository, why: &str) -> Result<PathBuf> {
        let revision = self.id.revision.clone();
        let config = repository.download_file().filename(CONFIG).revision(revision).local_files_only(true).send();
        match config.ok().and_then(|path| path.parent().map(Path::to_path_buf)) {
            Some(folder) => {
                for entry in std::fs::read_dir(&folder).map_err(Error::io(&folder))? {
                    self.check(&entry.map_err(Error::io(&folder))?.path(), None)?;
                }
                Ok(folder)
            }
            None => Err(Error::model(
                self.id.to_string(),
                format!("{} cannot be reached ({why}), and the model is not in the hub's cache", self.endpoint),
            )),
        }
    }

    fn download(&self, repository: &Repository, events: &Sender<Event>) -> Result<PathBuf> {
        // The branch is resolved to a commit once; all else is read at that commit.
        let config = self.file(repository, CONFIG, &self.id.revision, None, events)?;
        let folder = config.parent().map(Path::to_path_buf).unwrap_or_default();
        let commit = folder.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let listing = repository.list_tree().revision(commit.as_str()).send().map_err(|e| self.failed(&e))?;
        let files: Vec<(String, u64)> = listing
            .into_iter()
            .filter_map(|entry| match entry {
                RepoTreeEntry::File { path, size, .. } => Some((path, size)),
                RepoTreeEntry::Directory { .. } => None,
            })
            .collect();
        let size = |name: &str| files.iter().find(|(path, _)| path == name).map(|(_, size)| *size);
        if let Some(n) = size(CONFIG) {
            self.check(&config, Some(n))?;
        }
        // Weights last: where they are, the rest is too.
        for name in COMPANIONS {
            if let Some(n) = size(name) {
                self.file(repository, name, &commit, Some(n), events)?;
            }
        }
        for name in self.weights(repository, &commit, &size, events)? {
            let n = size(&name).ok_or_else(|| self.refused(&format!("{name}, which {INDEX} names, is not there")))?;
            self.file(repository, &name, &commit, Some(n), events)?;
        }
        Ok(folder)
    }

    fn weights(
        &self,
        repository: &Repository,
        commit: &str,
        size: &impl Fn(&str) -> Option<u64>,
        events: &Sender<Event>,
    ) -> Result<Vec<String>> {
        if size(SINGLE).is_some() {
            return Ok(vec![SINGLE.into()]);
        }
        let Some(n) = size(INDEX) else {
            return Err(self.refused(&format!("it has neither {SINGLE} nor {INDEX}; other weight files are not read")));
        };
        let index = self.file(repository, INDEX, commit, Some(n), events)?;
        let object = read_object(&index)?;
        let map = object.get("weight_map").and_then(Value::as_object);
        let names = map.into_iter().flat_map(|m| m.values()).filter_map(Value::as_str).map(String::from);
        let mut names: Vec<_> = names.collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    fn refused(&self, message: &str) -> Error {
        Error::model(self.id.to_string(), message)
    }

    fn file(
        &self,
        repository: &Repository,
        name: &str,
        revision: &str,
        size: Option<u64>,
        events: &Sender<Event>,
    ) -> Result<PathBuf> {
        let reporter = Reporter { file: name.into(), total: size.unwrap_or(0), events: events.clone() };
        let path = repository
            .download_file()
            .filename(name)
            .revision(revision)
            .progress(reporter)
            .send()
            .map_err(|e| self.failed(&e))?;
        self.check(&path, size)?;
        Ok(path)
    }

    /// Compares a file with its announced size and, for weights, its sha256, by which the cache names it. A wrong file
    /// is taken out of the cache, so that the next try fetches it anew.
    fn check(&self, path: &Path, size: Option<u64>) -> Result<()> {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let found = std::fs::metadata(path).map_err(Error::io(path))?.len();
        let blob = std::fs::read_link(path).ok();
        let wrong = |message: String| {
            let real = std::fs::canonicalize(path);
            for stale in real.iter().map(PathBuf::as_path).chain([path]) {
                // Gone is what is wanted; that it was gone already is no fault.
                let _ = std::fs::remove_file(stale);
            }
            Err(Error::model(self.id.to_string(), format!("{name} from {}: {message}", self.endpoint)))
        };
        if let Some(size) = size
            && size != found
        {
            return wrong(format!("{found} bytes came, {size} were announced; nothing of it is kept"));
        }
        let announced = blob.as_deref().and_then(Path::file_name).map(|n| n.to_string_lossy().to_lowercase());
        let is_sha256 = |s: &String| s.len() == 64 && s.bytes().all(|b| b.is_ascii_hexdigit());
        if let Some(announced) = announced.filter(is_sha256) {
            let sha256 = sha256_file(path)?;
            if sha256 != announced {
                return wrong(format!("sha256 is {sha256}, {announced} was announced; nothing of it is kept"));
            }
        }
        Ok(())
    }
}

struct Reporter {
    file: String,
    total: u64,
    events: Sender<Event>,
}

impl ProgressHandler for Reporter {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(event) = event else { return };
        let (done, total) = match event {
            DownloadEvent::Start { total_bytes, .. } => (0, *total_bytes),
            DownloadEvent::Progress { files } => {
                files.iter().fold((0, 0), |(d, t), f| (d + f.bytes_completed, t + f.total_bytes))
            }
            DownloadEvent::AggregateProgress { bytes_completed, total_bytes, .. } => (*bytes_completed, *total_bytes),
            DownloadEvent::Complete => return,
        };
        let total = if self.total > 0 { self.total } else { total };
        // The receiver is gone when it gave up waiting.
        let _ = self.events.send(Event::Progress(Progress { file: self.file.clone(), done, total }));
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
