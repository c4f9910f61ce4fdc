//! Layouts that the kernels read, and the (safe) code that packs into them.
//!
//! Everything is in lines of 64 bytes, sixteen words of 32 bits. A word is one f32, or two bf16 that follow each other
//! along the inner dimension (the low half first): the layout of `vdpbf16ps` and of AMX tiles.
//! - A weight is in panels of 16 columns. Panel `p` is one line a step of the inner dimension (a step: one f32, or a
//!   pair of bf16); word `c` of the line belongs to column `16 p + c`.
//! - Activations are in blocks of `R` rows. A block is chunks of `R` lines; line `r` of chunk `c` holds the sixteen
//!   words `16 c ..` of row `r`.
//!
//! What lies past the last column, row or element of the inner dimension is zero.

use rayon::prelude::*;

use super::{Precision, Weight};

/// Words in a line, columns in a panel.
pub(super) const WORDS: usize = 16;

/// One cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub [u32; WORDS]);

impl Line {
    pub const ZERO: Self = Self([0; WORDS]);
}

/// How activations are put into words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// f32 as they are.
    Single,
    /// f32 rounded to bf16 and widened again, for kernels that multiply bf16 weights in f32.
    Rounded,
    /// Two bf16.
    Pair,
}

impl Words {
    /// Elements of the inner dimension in a line.
    pub fn per_line(self) -> usize {
        match self {
            Self::Single | Self::Rounded => WORDS,
            Self::Pair => 2 * WORDS,
        }
    }
}

/// A matrix `[depth, columns]` packed in panels.
pub(super) struct Panels {
    pub depth: usize,
    pub columns: usize,
    /// Lines in a panel, a multiple of 16.
    pub steps: usize,
    pub lines: Vec<Line>,
}

impl Panels {
    /// Packs the matrix whose element (k, column) is `weight[k * strides.0 + column * strides.1]`.
    pub fn pack(
        precision: Precision,
        depth: usize,
        columns: usize,
        weight: &Weight<'_>,
        strides: (usize, usize),
    ) -> Self {
        let steps = match precision {
            Precision::F32 => depth.next_multiple_of(WORDS),
            Precision::Bf16 => depth.next_multiple_of(2 * WORDS) / 2,
        };
        let mut lines = vec![Line::ZERO; steps * columns.div_ceil(WORDS)];
        if steps > 0 {
            lines.par_chunks_mut(steps).enumerate().for_each(|(panel, lines)| {
                let first = panel * WORDS;
                let columns = first..columns.min(first + WORDS);
                match (weight, precision) {
                    (Weight::F32(w), Precision::F32) => {
                        fill(lines, depth, columns, 1, |k, c| w[k * strides.0 + c * strides.1].to_bits());
                    }
                    (Weight::Bf16(w), Precision::F32) => {
                        fill(lines, depth, columns, 1, |k, c| w[k * strides.0 + c * strides.1].to_f32().to_bits());
                    }
                    (Weight::F32(w), Precision::Bf16) => {
                        fill(lines, depth, columns, 2, |k, c| round(w[k * strides.0 + c * strides.1]) >> 16);
                    }
                    (Weight::Bf16(w), Precision::Bf16) => {
                        fill(lines, depth, columns, 2, |k, c| w[k * strides.0 + c * strides.1].to_bits().into());
                    }
                }
            });
        }
        Self { depth, columns, steps, lines }
    }
}

/// Fills one panel: `bits(k, column)` goes to line `k / per_word`, and there to the word of the column, at bit 16 for
/// the second of two.
fn fill(
    lines: &mut [Line],
    depth: usize,
    columns: std::ops::Range<usize>,
    per_word: usize,
    bits: impl Fn(usize, usize) -> u32,
) {
    for k in 0..depth {
        let line = &mut lines[k / per_word];
        for (word, column) in columns.clone().enumerate() {
            line.0[word] |= bits(k, column) << (16 * (k % per_word));
        }
    }
}

/// The bits of `x` rounded to bf16 (to nearest, ties to even) in the high half; what the low half holds means nothing.
/// Without branches, so that loops over it become vector code.
#[inline(always)]
fn round(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // The carry must not turn a NaN into a number.
    if x.is_nan() { bits | 0x0040_0000 } else { rounded }
}

const HIGH: u32 = 0xffff_0000;

/// Packs up to `height` rows of x, `[rows, depth]`, into one block of activations, `chunks * height` lines. Inlined
/// into a wrapper a family, which lets the compiler use its instructions.
#[inline(always)]
pub(super) fn pack_block(x: &[f32], depth: usize, height: usize, words: Words, block: &mut [Line]) {
    let per_line = words.per_line();
    for (chunk, lines) in block.chunks_exact_mut(height).enumerate() {
        let from = (chunk * per_line).min(depth);
        let to = (from + per_line).min(depth);
        for (row, line) in lines.iter_mut().enumerate() {
            let Some(x) = x.get(row * depth + from..row * depth + to) else {
                *line = Line::ZERO;
                continue;
            };
            match words {
                Words::Single => *line = convert::<16>(x, |x, i| x[i].to_bits()),
                Words::Rounded => *line = convert::<16>(x, |x, i| round(x[i]) & HIGH),
                Words::Pair => *line = convert::<32>(x, |x, i| round(x[2 * i]) >> 16 | round(x[2 * i + 1]) & HIGH),
            }
        }
    }
}

/// A line of `word(x, i)`, x filled up to `N` with zeros.
#[inline(always)]
fn convert<const N: usize>(x: &[f32], word: impl Fn(&[f32; N], usize) -> u32) -> Line {
    let mut line = Line::ZERO;
    let mut padded = [0.0; N];
    let x = match x.first_chunk::<N>() {
        Some(x) => x,
        None => {
            padded[..x.len()].copy_from_slice(x);
            &padded
        }
    };
    for (i, slot) in line.0.iter_mut().enumerate() {
        *slot = word(x, i);
    }
    line
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn rounding_is_that_of_half() {
        let mut bits = 1u32;
        for i in 0..200_000u32 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let special = [0x7f80_0000, 0xff80_0000, 0x7f7f_ffff, 0x3f80_8000, 0x3f81_8000, 0, 1, 0x8000_0000];
            let x = f32::from_bits(special.get(i as usize).copied().unwrap_or(bits));
            let (ours, theirs) = (bf16::from_bits((round(x) >> 16) as u16), bf16::from_f32(x));
            assert!(ours.is_nan() && theirs.is_nan() || ours.to_bits() == theirs.to_bits(), "{x:e}");
        }
    }

    #[test]
    fn panels_hold_every_weight_once_and_zeros() {
        let (depth, columns) = (37, 19);
        let w: Vec<f32> = (1..=depth * columns).map(|i| bf16::from_f32(i as f32).to_f32()).collect();
        for precision in [Precision::F32, Precision::Bf16] {
            let panels = Panels::pack(precision, depth, columns, &Weight::F32(&w), (columns, 1));
            let per_word = if precision == Precision::F32 { 1 } else { 2 };
            for column in 0..columns.next_multiple_of(WORDS) {
                for k in 0..panels.steps * per_word {
                    let word = panels.lines[column / WORDS * panels.steps + k / per_word].0[column % WORDS];
                    let value = match (precision, k % 2) {
                        (Precision::F32, _) => f32::from_bits(word),
                        (Precision::Bf16, 0) => f32::from_bits(word << 16),
                        (Precision::Bf16, _) => f32::from_bits(word & HIGH),
                    };
                    let expected = if k < depth && column < columns { w[k * columns + column] } else { 0.0 };
                    assert_eq!(value, expected, "{precision:?} k {k} column {column}");
                }
            }
        }
    }

    #[test]
    fn blocks_hold_rows_in_words_and_zeros() {
        let (rows, depth, height) = (3, 41, 4);
        let x: Vec<f32> = (0..rows * depth).map(|i| (i as f32 + 0.3).sin()).collect();
        for words in [Words::Single, Words::Rounded, Words::Pair] {
            let chunks = depth.div_ceil(words.per_line());
            let mut block = vec![Line([7; WORDS]); chunks * height];
            pack_block(&x, depth, height, words, &mut block);
            for row in 0..height {
                for k in 0..chunks * words.per_line() {
                    let line = block[k / words.per_line() * height + row].0;
                    let value = match (words, k % 2) {
                        (Words::Pair, 0) => f32::from_bits(line[k % 32 / 2] << 16),
                        (Words::Pair, _) => f32::from_bits(line[k % 32 / 2] & HIGH),
                        _ => f32::from_bits(line[k % 16]),
                    };
                    let exact = if row < rows && k < depth { x[row * depth + k] } else { 0.0 };
                    let expected = if words == Words::Single { exact } else { bf16::from_f32(exact).to_f32() };
                    assert_eq!(value, expected, "{words:?} row {row} k {k}");
                }
            }
        }
    }
}
