//! Parses, runs one subcommand, maps the error to an exit code.

use std::process::ExitCode;

use clap::Parser;
use fullband::cli::Cli;

fn main() -> ExitCode {
    match fullband::cli::run(Cli::parse()) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            fullband::cli::out::stderr(format_args!("error: {error}\n"));
            ExitCode::from(error.exit_code())
        }
    }
}
