//! What the program writes to its standard streams. A reader that has gone (`fullband inspect .. | head`) ends neither
//! a training nor the program with a panic: what it no longer reads is dropped.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// A line on standard output.
macro_rules! say {
    ($($line:tt)*) => {{
        $crate::cli::out::stdout(format_args!("{}\n", format_args!($($line)*)));
    }};
}

/// A line on standard error.
macro_rules! note {
    ($($line:tt)*) => { $crate::cli::out::stderr(format_args!("{}\n", format_args!($($line)*))) };
}

pub(crate) use {note, say};

/// Exit code where standard output cannot be written for another reason than a reader that has gone.
const UNWRITABLE: i32 = 1;

/// Writes as it is and flushes; whether anybody still reads.
pub fn stdout(text: Arguments) -> bool {
    let mut out = std::io::stdout().lock();
    match out.write_fmt(text).and_then(|()| out.flush()) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::BrokenPipe => false,
        Err(error) => {
            stderr(format_args!("error: standard output: {error}\n"));
            std::process::exit(UNWRITABLE);
        }
    }
}

/// Writes as it is. Where even this fails there is nobody to tell.
pub fn stderr(text: Arguments) {
    let _ = std::io::stderr().lock().write_fmt(text);
}
