//! AVX2 and FMA: 6 x 16 tiles of sums in registers; bf16 weights are widened to f32 there.

use std::arch::x86_64::{
    __m256, _mm256_and_si256, _mm256_castsi256_ps, _mm256_fmadd_ps, _mm256_load_si256, _mm256_loadu_ps,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_slli_epi32, _mm256_storeu_ps,
};

use super::kernel::{Kernel, Shape, Tile};
use super::panels::{Line, WORDS, Words, pack_block};

/// The shapes of a tile function, by falling rows. A tile function counts columns in vectors of 8.
macro_rules! shapes {
    ($tile:ident) => {
        &[
            Shape { rows: 6, panels: 1, run: $tile::<6, 2> },
            Shape { rows: 4, panels: 1, run: $tile::<4, 2> },
            Shape { rows: 2, panels: 2, run: $tile::<2, 4> },
            Shape { rows: 2, panels: 1, run: $tile::<2, 2> },
            Shape { rows: 1, panels: 4, run: $tile::<1, 8> },
            Shape { rows: 1, panels: 2, run: $tile::<1, 4> },
            Shape { rows: 1, panels: 1, run: $tile::<1, 2> },
        ]
    };
}

pub(super) static BF16: Kernel =
    Kernel { words: Words::Rounded, steps_per_chunk: 8, pack, shapes: shapes!(tile_bf16), enter: None, leave: None };

pub(super) static F32: Kernel =
    Kernel { words: Words::Single, steps_per_chunk: 16, pack, shapes: shapes!(tile_f32), enter: None, leave: None };

#[target_feature(enable = "avx2")]
fn pack(x: &[f32], depth: usize, height: usize, words: Words, block: &mut [Line]) {
    pack_block(x, depth, height, words, block);
}

/// Columns of a vector that lie in a tile.
fn columns(tile: &Tile, vector: usize) -> usize {
    tile.columns.saturating_sub(8 * vector).min(8)
}

/// The sums to start from.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn start<const ROWS: usize, const VECTORS: usize>(tile: &Tile) -> [[__m256; VECTORS]; ROWS] {
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
    if tile.load {
        for (row, sums) in sums.iter_mut().enumerate() {
            for (vector, sum) in sums.iter_mut().enumerate() {
                let mut part = [0f32; 8];
                let columns = columns(tile, vector);
                // SAFETY: the row and so many columns lie in the tile, which the caller lends.
                *sum = unsafe {
                    let c = tile.c.wrapping_add(row * tile.c_row + 8 * vector);
                    std::ptr::copy_nonoverlapping(c, part.as_mut_ptr(), columns);
                    _mm256_loadu_ps(part.as_ptr())
                };
            }
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn finish<const ROWS: usize, const VECTORS: usize>(tile: &Tile, sums: &[[__m256; VECTORS]; ROWS]) {
    for (row, sums) in sums.iter().enumerate() {
        for (vector, &sum) in sums.iter().enumerate() {
            let mut part = [0f32; 8];
            let columns = columns(tile, vector);
            // SAFETY: as in `start`; nobody else touches these elements meanwhile.
            unsafe {
                let c = tile.c.wrapping_add(row * tile.c_row + 8 * vector);
                if columns == 8 {
                    _mm256_storeu_ps(c, sum);
                } else {
                    _mm256_storeu_ps(part.as_mut_ptr(), sum);
                    std::ptr::copy_nonoverlapping(part.as_ptr(), c, columns);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn tile_bf16<const ROWS: usize, const VECTORS: usize>(tile: &Tile) {
    // SAFETY: the caller lends the tile.
    let mut sums = unsafe { start::<ROWS, VECTORS>(tile) };
    let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    let (mut a, mut w) = (tile.a, tile.w);
    for _ in 0..tile.chunks {
        for step in 0..8 {
            let mut pairs = [[_mm256_setzero_ps(); VECTORS]; 2];
            for vector in 0..VECTORS {
                // SAFETY: a chunk of activations meets 8 lines of each panel, all lent by the caller; a line has two
                // vectors.
                let word = unsafe {
                    let line = w.add(vector / 2 * tile.w_panel + step);
                    _mm256_load_si256(line.cast::<std::arch::x86_64::__m256i>().add(vector % 2))
                };
                pairs[0][vector] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(word));
                pairs[1][vector] = _mm256_castsi256_ps(_mm256_and_si256(word, high));
            }
            for (half, weights) in pairs.iter().enumerate() {
                // SAFETY: the caller lends the line of each row in each chunk; a line has 16 words.
                unsafe { multiply_add(&mut sums, a, 2 * step + half, weights) };
            }
        }
        a = a.wrapping_add(tile.a_chunk);
        w = w.wrapping_add(8);
    }
    // SAFETY: the caller lends the tile.
    unsafe { finish(tile, &sums) }
}

#[target_feature(enable = "avx2,fma")]
unsafe fn tile_f32<const ROWS: usize, const VECTORS: usize>(tile: &Tile) {
    // SAFETY: the caller lends the tile.
    let mut sums = unsafe { start::<ROWS, VECTORS>(tile) };
    let (mut a, mut w) = (tile.a, tile.w);
    for _ in 0..tile.chunks {
        for step in 0..WORDS {
            let mut weights = [_mm256_setzero_ps(); VECTORS];
            for (vector, weights) in weights.iter_mut().enumerate() {
                // SAFETY: a chunk of activations meets 16 lines of each panel, all lent by the caller; a line has two
                // vectors.
                *weights = unsafe {
                    let line = w.add(vector / 2 * tile.w_panel + step);
                    _mm256_loadu_ps(line.cast::<f32>().add(vector % 2 * 8))
                };
            }
            // SAFETY: the caller lends the line of each row in each chunk; a line has 16 words.
            unsafe { multiply_add(&mut sums, a, step, &weights) };
        }
        a = a.wrapping_add(tile.a_chunk);
        w = w.wrapping_add(WORDS);
    }
    // SAFETY: the caller lends the tile.
    unsafe { finish(tile, &sums) }
}

/// `sums[row] += word of row * weights`.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_add<const ROWS: usize, const VECTORS: usize>(
    sums: &mut [[__m256; VECTORS]; ROWS],
    a: *const Line,
    word: usize,
    weights: &[__m256; VECTORS],
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller gives a word that lies in a line, and `ROWS` lines.
        let x = _mm256_set1_ps(unsafe { *a.add(row).cast::<f32>().add(word) });
        for (sum, &w) in sums.iter_mut().zip(weights) {
            *sum = _mm256_fmadd_ps(x, w, *sum);
        }
    }
}
