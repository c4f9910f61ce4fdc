//! What a family of instructions gives: how it wants activations, and kernels for tiles of the result.

use super::panels::{Line, Words};
use super::{Isa, Precision};

/// One tile of the result and what it is made of. Pointers, because tiles of one result lie between each other in
/// memory and are written from several threads.
pub(super) struct Tile {
    /// The first row's line in the first chunk of activations; the next row's is the next line.
    pub a: *const Line,
    /// Lines from a chunk to the next.
    pub a_chunk: usize,
    /// The first panel's line of the first step.
    pub w: *const Line,
    /// Lines from a panel to the next.
    pub w_panel: usize,
    /// Chunks of activations to sum over.
    pub chunks: usize,
    /// The first element of the result.
    pub c: *mut f32,
    /// Elements from a row of the result to the next.
    pub c_row: usize,
    /// Rows to write, at most the shape's; fewer only in the smallest shape of a kernel.
    pub rows: usize,
    /// Columns to write, at most the shape's panels hold; fewer only where the last panel is not full.
    pub columns: usize,
    /// Whether the sums start from what `c` holds (else from zero).
    pub load: bool,
}

/// A kernel for tiles of so many rows and panels.
///
/// To call `run`: the processor has the family; `a` and `w` can be read for all chunks, rows and panels of the shape;
/// `c` can be read and written for `rows` and `columns`, and nobody else touches these elements meanwhile.
pub(super) struct Shape {
    pub rows: usize,
    pub panels: usize,
    pub run: unsafe fn(&Tile),
}

/// Packs a block of activations: `panels::pack_block` compiled for the family. To call: the processor has the family.
pub(super) type Pack = unsafe fn(&[f32], usize, usize, Words, &mut [Line]);

pub(super) struct Kernel {
    pub words: Words,
    /// Lines of a panel that one chunk of activations meets.
    pub steps_per_chunk: usize,
    pub pack: Pack,
    /// By falling rows, and in equal rows by falling panels. The first has the height of a block of activations;
    /// every height has a shape of one panel; powers of two below the first, down to one row or to the smallest
    /// height that the family computes.
    pub shapes: &'static [Shape],
    /// Called by a thread before its first tile and after its last. To call: the processor has the family.
    pub enter: Option<unsafe fn()>,
    pub leave: Option<unsafe fn()>,
}

impl Kernel {
    /// Rows in a block of activations.
    pub fn height(&self) -> usize {
        self.shapes[0].rows
    }

    /// Rows of the lowest shape.
    pub fn lowest(&self) -> usize {
        self.shapes[self.shapes.len() - 1].rows
    }

    /// Rows of the highest shape that `rows` rows fill; of the lowest, if they fill none.
    pub fn height_for(&self, rows: usize) -> usize {
        self.shapes.iter().map(|shape| shape.rows).find(|&r| r <= rows).unwrap_or(self.lowest())
    }

    /// The widest shape of so many rows that `panels` panels, at least one, fill.
    pub fn shape(&self, rows: usize, panels: usize) -> &Shape {
        let fits = |shape: &&Shape| shape.rows == rows && shape.panels <= panels;
        self.shapes.iter().find(fits).expect("every height has a shape of one panel")
    }

    /// `isa` is supported on this machine.
    #[cfg(target_arch = "x86_64")]
    pub fn of(isa: Isa, precision: Precision) -> &'static Self {
        use super::{amx, avx2, avx512, portable};
        match (isa, precision) {
            (Isa::Amx, Precision::Bf16) => &amx::BF16,
            (Isa::Avx512Bf16, Precision::Bf16) => &avx512::DOT_BF16,
            (Isa::Avx512, Precision::Bf16) => &avx512::WIDENED_BF16,
            (Isa::Amx | Isa::Avx512Bf16 | Isa::Avx512, Precision::F32) => &avx512::F32,
            (Isa::Avx2, Precision::Bf16) => &avx2::BF16,
            (Isa::Avx2, Precision::F32) => &avx2::F32,
            (Isa::Portable, Precision::Bf16) => &portable::BF16,
            (Isa::Portable, Precision::F32) => &portable::F32,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn of(_isa: Isa, precision: Precision) -> &'static Self {
        match precision {
            Precision::Bf16 => &super::portable::BF16,
            Precision::F32 => &super::portable::F32,
        }
    }
}
