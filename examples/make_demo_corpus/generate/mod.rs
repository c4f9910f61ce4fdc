//! Made-up shop data. Owns the word lists (`catalogue`), how a title is put together and spelled (`title`), and the rows
//! of the three corpora. Given a seed it returns rows; it reads and writes no file.
//!
//! The example that writes the files and the test that compares them with fresh rows both include this module.

pub mod attributes;
mod catalogue;
pub mod chat;
pub mod recommend;
mod title;

use fullband::random::{Key, Purpose};

/// The seed of the committed files.
pub const SEED: u64 = 20_260_801;

/// Values drawn one after another from one key.
pub struct Draw {
    key: Key,
    next: u64,
}

impl Draw {
    /// The draws of row `row` of corpus `corpus`: what one row draws never moves another row.
    pub fn new(seed: u64, corpus: u64, row: u64) -> Self {
        Self { key: Key::new(seed, Purpose::Sampling).at(corpus).at(row), next: 0 }
    }

    pub fn below(&mut self, n: usize) -> usize {
        self.next += 1;
        self.key.below(self.next, n as u64) as usize
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        self.next += 1;
        self.key.unit(self.next) < probability
    }

    pub fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len())]
    }

    /// Replaces every `<a|b|c>` by one of its choices and `#` inside a choice by a digit; choices do not nest.
    pub fn expand(&mut self, pattern: &str) -> String {
        let mut out = String::new();
        let mut rest = pattern;
        while let Some((before, after)) = rest.split_once('<') {
            let (choices, tail) = after.split_once('>').expect("every < of the catalogue is closed");
            let choices: Vec<&str> = choices.split('|').collect();
            out.push_str(before);
            for c in self.pick(&choices).chars() {
                out.push(if c == '#' { char::from(b'0' + self.below(10) as u8) } else { c });
            }
            rest = tail;
        }
        out + rest
    }
}
