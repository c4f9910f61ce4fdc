//! The program: one file a subcommand, wiring and printing only.

mod fetch;
mod generate;
pub mod inspect;
pub mod out;
mod recipe;
mod train;

use clap::{Parser, Subcommand};

use crate::error::{Error, Result};
use crate::kernels::isa::Isa;

/// Fine-tune a pretrained language model where domain data is scarce: LoRA and latent feedback, from a Parquet corpus
/// and a recipe.
#[derive(Parser)]
#[command(name = "fullband", version)]
pub struct Cli {
    /// Threads to compute with [default: all cores]
    #[arg(long, global = true, value_name = "N")]
    threads: Option<usize>,
    #[command(subcommand)]
    command: Command,
}

const MAX_THREADS: usize = 1024;

#[derive(Subcommand)]
enum Command {
    /// Fine-tune a base from a recipe
    Train(train::TrainArgs),
    /// Complete one prompt
    Generate(generate::GenerateArgs),
    /// Bring a base checkpoint into models/
    Fetch(fetch::FetchArgs),
    /// Say what a checkpoint, adapter, Parquet file or run is
    Inspect(inspect::InspectArgs),
    /// Write, check and describe recipes
    Recipe(recipe::RecipeArgs),
}

/// Runs what was asked for and returns the exit code.
pub fn run(cli: Cli) -> Result<u8> {
    if let Some(threads) = cli.threads {
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(Error::Usage(format!("--threads: expected 1 to {MAX_THREADS}, found {threads}")));
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
        pool.build_global().map_err(|e| Error::Internal(format!("thread pool: {e}")))?;
    }
    match cli.command {
        Command::Train(args) => return train::run(args),
        Command::Generate(args) => generate::run(args)?,
        Command::Fetch(args) => fetch::run(args)?,
        Command::Inspect(args) => inspect::run(args)?,
        Command::Recipe(args) => recipe::run(args)?,
    }
    Ok(0)
}

/// What computes on a CPU, as a line; an error where `FULLBAND_ISA` names what this machine does not run.
fn engine() -> Result<String> {
    Ok(format!("{} kernels, {} threads", Isa::select()?, rayon::current_num_threads()))
}
