//! AVX-512: 14 x 32 tiles of sums in registers, bf16 dot products where the processor has them, fused multiply-adds
//! elsewhere. The fewer the rows, the more panels at once, so that there are always enough independent sums.

use std::arch::x86_64::{
    __m512, _mm512_and_si512, _mm512_castsi512_ps, _mm512_dpbf16_ps, _mm512_fmadd_ps, _mm512_load_si512,
    _mm512_mask_storeu_ps, _mm512_maskz_loadu_ps, _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps,
    _mm512_slli_epi32,
};

use super::kernel::{Kernel, Shape, Tile};
use super::panels::{Line, WORDS, Words, pack_block};

/// The shapes of a tile function, by falling rows.
macro_rules! shapes {
    ($tile:ident: $(($rows:literal, $panels:literal)),* $(,)?) => {
        &[$(Shape { rows: $rows, panels: $panels, run: $tile::<$rows, $panels> }),*]
    };
    ($tile:ident) => {
        shapes!($tile: (14, 2), (14, 1), (8, 2), (8, 1), (4, 4), (4, 1), (2, 4), (2, 1), (1, 8), (1, 4), (1, 1))
    };
}

/// bf16 with `vdpbf16ps`.
pub(super) static DOT_BF16: Kernel =
    Kernel { words: Words::Pair, steps_per_chunk: 16, pack, shapes: shapes!(tile_dot), enter: None, leave: None };

/// bf16 weights widened to f32 in registers.
pub(super) static WIDENED_BF16: Kernel =
    Kernel { words: Words::Rounded, steps_per_chunk: 8, pack, shapes: shapes!(tile_widened), enter: None, leave: None };

pub(super) static F32: Kernel =
    Kernel { words: Words::Single, steps_per_chunk: 16, pack, shapes: shapes!(tile_f32), enter: None, leave: None };

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn pack(x: &[f32], depth: usize, height: usize, words: Words, block: &mut [Line]) {
    pack_block(x, depth, height, words, block);
}

/// Which words of a panel lie in a tile.
fn mask(tile: &Tile, panel: usize) -> u16 {
    let columns = tile.columns.saturating_sub(panel * WORDS).min(WORDS);
    ((1u32 << columns) - 1) as u16
}

/// The sums to start from.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn start<const ROWS: usize, const PANELS: usize>(tile: &Tile) -> [[__m512; PANELS]; ROWS] {
    let mut sums = [[_mm512_setzero_ps(); PANELS]; ROWS];
    if tile.load {
        for (row, sums) in sums.iter_mut().enumerate() {
            for (panel, sum) in sums.iter_mut().enumerate() {
                // SAFETY: the row and the masked columns lie in the tile, which the caller lends.
                *sum = unsafe {
                    let c = tile.c.add(row * tile.c_row + panel * WORDS);
                    _mm512_maskz_loadu_ps(mask(tile, panel), c)
                };
            }
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn finish<const ROWS: usize, const PANELS: usize>(tile: &Tile, sums: &[[__m512; PANELS]; ROWS]) {
    for (row, sums) in sums.iter().enumerate() {
        for (panel, &sum) in sums.iter().enumerate() {
            // SAFETY: as in `start`; nobody else touches these elements meanwhile.
            unsafe {
                let c = tile.c.add(row * tile.c_row + panel * WORDS);
                _mm512_mask_storeu_ps(c, mask(tile, panel), sum);
            }
        }
    }
}

/// Both halves of a word at a time: `sum += odd * odd; sum += even * even`.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn tile_dot<const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    // SAFETY: the caller lends the tile.
    let mut sums = unsafe { start::<ROWS, PANELS>(tile) };
    let (mut a, mut w) = (tile.a, tile.w);
    for _ in 0..tile.chunks {
        for step in 0..16 {
            let mut weights = [_mm512_setzero_ps(); PANELS];
            for (panel, weights) in weights.iter_mut().enumerate() {
                // SAFETY: a chunk of activations meets 16 lines of each panel, all lent by the caller.
                *weights = _mm512_castsi512_ps(unsafe { _mm512_load_si512(w.add(panel * tile.w_panel + step).cast()) });
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the caller lends the line of each row in each chunk; a line has 16 words.
                let x = _mm512_set1_epi32(unsafe { *a.add(row).cast::<i32>().add(step) });
                for (sum, &w) in sums.iter_mut().zip(&weights) {
                    // SAFETY: the three types are 64 bytes of which every pattern is a value.
                    *sum = unsafe { _mm512_dpbf16_ps(*sum, std::mem::transmute(x), std::mem::transmute(w)) };
                }
            }
        }
        a = a.wrapping_add(tile.a_chunk);
        w = w.wrapping_add(16);
    }
    // SAFETY: the caller lends the tile.
    unsafe { finish(tile, &sums) }
}

#[target_feature(enable = "avx512f")]
unsafe fn tile_widened<const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    // SAFETY: the caller lends the tile.
    let mut sums = unsafe { start::<ROWS, PANELS>(tile) };
    let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    let (mut a, mut w) = (tile.a, tile.w);
    for _ in 0..tile.chunks {
        for step in 0..8 {
            let mut pairs = [[_mm512_setzero_ps(); PANELS]; 2];
            for panel in 0..PANELS {
                // SAFETY: a chunk of activations meets 8 lines of each panel, all lent by the caller.
                let word = unsafe { _mm512_load_si512(w.add(panel * tile.w_panel + step).cast()) };
                pairs[0][panel] = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(word));
                pairs[1][panel] = _mm512_castsi512_ps(_mm512_and_si512(word, high));
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

#[target_feature(enable = "avx512f")]
unsafe fn tile_f32<const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    // SAFETY: the caller lends the tile.
    let mut sums = unsafe { start::<ROWS, PANELS>(tile) };
    let (mut a, mut w) = (tile.a, tile.w);
    for _ in 0..tile.chunks {
        for step in 0..16 {
            let mut weights = [_mm512_setzero_ps(); PANELS];
            for (panel, weights) in weights.iter_mut().enumerate() {
                // SAFETY: a chunk of activations meets 16 lines of each panel, all lent by the caller.
                *weights = _mm512_castsi512_ps(unsafe { _mm512_load_si512(w.add(panel * tile.w_panel + step).cast()) });
            }
            // SAFETY: the caller lends the line of each row in each chunk; a line has 16 words.
            unsafe { multiply_add(&mut sums, a, step, &weights) };
        }
        a = a.wrapping_add(tile.a_chunk);
        w = w.wrapping_add(16);
    }
    // SAFETY: the caller lends the tile.
    unsafe { finish(tile, &sums) }
}

/// `sums[row] += word of row * weights`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn multiply_add<const ROWS: usize, const PANELS: usize>(
    sums: &mut [[__m512; PANELS]; ROWS],
    a: *const Line,
    word: usize,
    weights: &[__m512; PANELS],
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller gives a word that lies in a line, and `ROWS` lines.
        let x = _mm512_set1_ps(unsafe { *a.add(row).cast::<f32>().add(word) });
        for (sum, &w) in sums.iter_mut().zip(weights) {
            *sum = _mm512_fmadd_ps(x, w, *sum);
        }
    }
}
