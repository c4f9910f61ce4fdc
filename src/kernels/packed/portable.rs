//! Plain Rust over the same panels, for the compiler to vectorise: the floor that every processor runs (NEON on
//! aarch64, SSE2 on plain x86-64).

use super::kernel::{Kernel, Shape, Tile};
use super::panels::{Line, WORDS, Words, pack_block};

pub(super) static BF16: Kernel = Kernel {
    words: Words::Rounded,
    steps_per_chunk: 8,
    pack,
    shapes: {
        const ALL: [Shape; 4] = [shape_bf16::<6>(), shape_bf16::<4>(), shape_bf16::<2>(), shape_bf16::<1>()];
        ALL.split_at(SKIPPED).1
    },
    enter: None,
    leave: None,
};

pub(super) static F32: Kernel = Kernel {
    words: Words::Single,
    steps_per_chunk: 16,
    pack,
    shapes: {
        const ALL: [Shape; 4] = [shape_f32::<6>(), shape_f32::<4>(), shape_f32::<2>(), shape_f32::<1>()];
        ALL.split_at(SKIPPED).1
    },
    enter: None,
    leave: None,
};

/// Six rows of 16 sums fit 32 registers of four f32 (aarch64), two rows fit 16 (x86-64 and others).
const SKIPPED: usize = if cfg!(target_arch = "aarch64") { 0 } else { 2 };

const fn shape_bf16<const ROWS: usize>() -> Shape {
    Shape { rows: ROWS, panels: 1, run: tile::<ROWS, true> }
}

const fn shape_f32<const ROWS: usize>() -> Shape {
    Shape { rows: ROWS, panels: 1, run: tile::<ROWS, false> }
}

fn pack(x: &[f32], depth: usize, height: usize, words: Words, block: &mut [Line]) {
    pack_block(x, depth, height, words, block);
}

/// Fused where the build's target has the instruction; elsewhere `mul_add` would be a call.
#[inline(always)]
fn multiply_add(x: f32, w: f32, sum: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { x.mul_add(w, sum) } else { sum + x * w }
}

/// `ROWS` rows of one panel of bf16 pairs, or of f32.
unsafe fn tile<const ROWS: usize, const BF16: bool>(tile: &Tile) {
    let steps = if BF16 { WORDS / 2 } else { WORDS };
    let mut sums = [[0f32; WORDS]; ROWS];
    if tile.load {
        for (row, sums) in sums.iter_mut().enumerate() {
            // SAFETY: row and columns lie in the tile, which the caller lends.
            let c = unsafe { std::slice::from_raw_parts(tile.c.add(row * tile.c_row), tile.columns) };
            sums[..tile.columns].copy_from_slice(c);
        }
    }
    for chunk in 0..tile.chunks {
        // SAFETY: the caller lends every row of every chunk, and the panel's lines for them.
        let (a, w) = unsafe {
            (
                &*tile.a.add(chunk * tile.a_chunk).cast::<[Line; ROWS]>(),
                std::slice::from_raw_parts(tile.w.add(chunk * steps), steps),
            )
        };
        for (step, w) in w.iter().enumerate() {
            if BF16 {
                accumulate(&mut sums, a, 2 * step, &w.0.map(|w| f32::from_bits(w << 16)));
                accumulate(&mut sums, a, 2 * step + 1, &w.0.map(|w| f32::from_bits(w & 0xffff_0000)));
            } else {
                accumulate(&mut sums, a, step, &w.0.map(f32::from_bits));
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        // SAFETY: as above; nobody else touches these elements meanwhile.
        let c = unsafe { std::slice::from_raw_parts_mut(tile.c.add(row * tile.c_row), tile.columns) };
        c.copy_from_slice(&sums[..tile.columns]);
    }
}

#[inline(always)]
fn accumulate<const ROWS: usize>(sums: &mut [[f32; WORDS]; ROWS], a: &[Line; ROWS], word: usize, w: &[f32; WORDS]) {
    for (sums, a) in sums.iter_mut().zip(a) {
        let x = f32::from_bits(a.0[word]);
        for (sum, &w) in sums.iter_mut().zip(w) {
            *sum = multiply_add(x, w, *sum);
        }
    }
}
