//! The one error type of the crate. Every variant knows its exit code (`main.rs` maps it) and says where: file,
//! line or row, key or tensor, and what was expected.

use std::path::{Path, PathBuf};

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line asks for something that cannot be done.
    #[error("{0}")]
    Usage(String),
    /// A recipe that does not parse or does not hold together. `line` counts from 1; 0: no single line is at fault.
    #[error("{}{}: {message}", path.display(), if *line > 0 { format!(":{line}") } else { String::new() })]
    Recipe { path: PathBuf, line: usize, message: String },
    /// A corpus or another input file that cannot be used.
    #[error("{}: {message}", path.display())]
    Data { path: PathBuf, message: String },
    /// A base or adapter that cannot be loaded, or two that do not fit each other.
    #[error("{}: {message}", path.display())]
    Model { path: PathBuf, message: String },
    /// A loss, gradient or weight that is not finite, or one that does not move. Nothing of it has been saved.
    #[error("step {step}: {message}")]
    Diverged { step: usize, message: String },
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// A fault of this program.
    #[error("internal error: {0}")]
    Internal(String),
}

impl Error {
    pub fn recipe(path: impl AsRef<Path>, line: usize, message: impl Into<String>) -> Self {
        Self::Recipe { path: path.as_ref().to_path_buf(), line, message: message.into() }
    }

    pub fn data(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::Data { path: path.as_ref().to_path_buf(), message: message.into() }
    }

    pub fn model(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::Model { path: path.as_ref().to_path_buf(), message: message.into() }
    }

    /// For `map_err`: attaches the path that was being read or written.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.as_ref().to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// 1 internal, 2 usage or recipe, 3 data, 4 model or adapter does not fit, 5 diverged.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) | Self::Recipe { .. } => 2,
            Self::Data { .. } => 3,
            Self::Model { .. } => 4,
            Self::Diverged { .. } => 5,
            Self::Io { .. } | Self::Tensor(_) | Self::Internal(_) => 1,
        }
    }
}
