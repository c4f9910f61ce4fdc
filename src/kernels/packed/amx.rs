//! AMX: bf16 tiles of 16 x 16 sums, two by two. The layouts are those of `vdpbf16ps` (a chunk of sixteen rows, and
//! sixteen lines of a panel, are a tile each), so nothing is packed differently.
//!
//! The instructions are written in `asm!`, one block a tile loop, because their intrinsics are not stable. No compiled
//! code knows the tile registers, so the configuration that `enter` loads stays until `leave`.

use std::arch::asm;

use super::avx512::pack;
use super::kernel::{Kernel, Shape, Tile};
use super::panels::{WORDS, Words};

pub(super) static BF16: Kernel = Kernel {
    words: Words::Pair,
    steps_per_chunk: 16,
    pack,
    shapes: &[
        Shape { rows: 32, panels: 2, run: tile::<32, 2> },
        Shape { rows: 32, panels: 1, run: tile::<32, 1> },
        Shape { rows: 16, panels: 2, run: tile::<16, 2> },
        Shape { rows: 16, panels: 1, run: tile::<16, 1> },
    ],
    enter: Some(enter),
    leave: Some(leave),
};

/// What `ldtilecfg` loads: eight tiles of 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

static CONFIGURATION: Configuration = Configuration {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

unsafe fn enter() {
    // SAFETY: the caller vouches for AMX and its permission; the configuration is 64 bytes of palette 1.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIGURATION, options(nostack, preserves_flags, readonly)) };
}

unsafe fn leave() {
    // SAFETY: the caller vouches for AMX; nothing is kept in tiles between groups.
    unsafe { asm!("tilerelease", options(nostack, preserves_flags, nomem)) };
}

/// A tile of the result in full, or through a buffer where rows or columns are missing.
unsafe fn tile<const ROWS: usize, const PANELS: usize>(tile: &Tile) {
    let width = PANELS * WORDS;
    // SAFETY: the caller lends the tile; the buffer has room for its rows and columns.
    unsafe {
        if tile.rows == ROWS && tile.columns == width {
            return sums::<ROWS, PANELS>(tile, tile.c, tile.c_row);
        }
        let mut buffer = [0f32; 32 * 32];
        if tile.load {
            for row in 0..tile.rows {
                let to = buffer.as_mut_ptr().add(row * width);
                std::ptr::copy_nonoverlapping(tile.c.add(row * tile.c_row), to, tile.columns);
            }
        }
        sums::<ROWS, PANELS>(tile, buffer.as_mut_ptr(), width);
        for row in 0..tile.rows {
            let from = buffer.as_ptr().add(row * width);
            std::ptr::copy_nonoverlapping(from, tile.c.add(row * tile.c_row), tile.columns);
        }
    }
}

/// The sums of all `ROWS` rows and `PANELS` panels into c. To call: as for `Shape::run`, with c for all of them.
unsafe fn sums<const ROWS: usize, const PANELS: usize>(tile: &Tile, c: *mut f32, c_row: usize) {
    // SAFETY: the caller's promise, passed on for each part.
    unsafe {
        if (ROWS, PANELS) == (32, 2) {
            return four(tile, c, c_row);
        }
        for row in (0..ROWS).step_by(16) {
            for panel in 0..PANELS {
                one(tile, row, panel, c.add(row * c_row + panel * WORDS), c_row);
            }
        }
    }
}

/// Two by two tiles of sums: tmm0..3; activations in tmm4 and tmm5, weights in tmm6 and tmm7.
unsafe fn four(tile: &Tile, c: *mut f32, c_row: usize) {
    // SAFETY: the caller lends two times 16 lines a chunk of activations, 16 lines a chunk in two panels, and 32 rows
    // of 32 sums. Tiles are configured as 16 rows of 64 bytes. All written registers are named.
    unsafe {
        asm!(
            "test {load:e}, {load:e}",
            "jz 2f",
            "tileloadd tmm0, [{c0} + {c_row}*1]",
            "tileloadd tmm1, [{c0} + {c_row}*1 + 64]",
            "tileloadd tmm2, [{c1} + {c_row}*1]",
            "tileloadd tmm3, [{c1} + {c_row}*1 + 64]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "3:",
            "tileloadd tmm4, [{a} + {line}*1]",
            "tileloadd tmm6, [{w0} + {line}*1]",
            "tileloadd tmm7, [{w1} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "tileloadd tmm5, [{a} + {line}*1 + 1024]",
            "tdpbf16ps tmm1, tmm4, tmm7",
            "tdpbf16ps tmm2, tmm5, tmm6",
            "tdpbf16ps tmm3, tmm5, tmm7",
            "add {a}, {a_chunk}",
            "add {w0}, 1024",
            "add {w1}, 1024",
            "dec {chunks}",
            "jnz 3b",
            "tilestored [{c0} + {c_row}*1], tmm0",
            "tilestored [{c0} + {c_row}*1 + 64], tmm1",
            "tilestored [{c1} + {c_row}*1], tmm2",
            "tilestored [{c1} + {c_row}*1 + 64], tmm3",
            load = in(reg) u32::from(tile.load),
            c0 = in(reg) c,
            c1 = in(reg) c.add(16 * c_row),
            c_row = in(reg) 4 * c_row,
            a = inout(reg) tile.a => _,
            a_chunk = in(reg) 64 * tile.a_chunk,
            w0 = inout(reg) tile.w => _,
            w1 = inout(reg) tile.w.add(tile.w_panel) => _,
            line = in(reg) 64usize,
            chunks = inout(reg) tile.chunks => _,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// One tile of sums: row `row` of the activations and on, panel `panel`.
unsafe fn one(tile: &Tile, row: usize, panel: usize, c: *mut f32, c_row: usize) {
    // SAFETY: the caller lends 16 lines a chunk of activations from `row` on, 16 lines a chunk of the panel, and 16
    // rows of 16 sums. Tiles are configured as 16 rows of 64 bytes. All written registers are named.
    unsafe {
        asm!(
            "test {load:e}, {load:e}",
            "jz 2f",
            "tileloadd tmm0, [{c} + {c_row}*1]",
            "jmp 3f",
            "2:",
            "tilezero tmm0",
            "3:",
            "tileloadd tmm4, [{a} + {line}*1]",
            "tileloadd tmm6, [{w} + {line}*1]",
            "tdpbf16ps tmm0, tmm4, tmm6",
            "add {a}, {a_chunk}",
            "add {w}, 1024",
            "dec {chunks}",
            "jnz 3b",
            "tilestored [{c} + {c_row}*1], tmm0",
            load = in(reg) u32::from(tile.load),
            c = in(reg) c,
            c_row = in(reg) 4 * c_row,
            a = inout(reg) tile.a.add(row) => _,
            a_chunk = in(reg) 64 * tile.a_chunk,
            w = inout(reg) tile.w.add(panel * tile.w_panel) => _,
            line = in(reg) 64usize,
            chunks = inout(reg) tile.chunks => _,
            out("tmm0") _, out("tmm4") _, out("tmm6") _,
            options(nostack),
        );
    }
}
