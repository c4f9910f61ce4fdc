//! The loops around the kernels: packs activations once a product, splits the result into groups of rows and columns
//! for the threads, and each group into tiles.
//!
//! A group is sized for the second-level cache, and sums over a stretch of the inner dimension at a time, so that the
//! panels that its blocks of rows share stay in the first. How the result is split never changes an element: each is
//! summed in one order, and between stretches the sum rests in the result as it is, in f32.

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use super::kernel::{Kernel, Tile};
use super::panels::{Line, Panels, WORDS};

/// Products under this many multiply-adds run on the calling thread.
const PARALLEL_FROM: usize = 1 << 18;
/// Chunks of activations summed over before the next tile: 32 KiB of two panels.
const CHUNKS_AT_ONCE: usize = 16;
const ROWS_IN_GROUP: usize = 112;
const PANELS_IN_GROUP: usize = 16;
/// Groups a thread that the split aims at, so that a slow thread is waited for briefly.
const GROUPS_PER_THREAD: usize = 4;

thread_local! {
    /// Packed activations of the last product that this thread asked for.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Where groups write. Each element belongs to one group.
#[derive(Clone, Copy)]
struct Output(*mut f32);

// SAFETY: a pointer into a slice that `product` borrows mutably while threads hold this; each writes elements of its own.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

/// One product, with its activations packed.
struct Product<'a> {
    kernel: &'a Kernel,
    panels: &'a Panels,
    n: usize,
    /// Rows in a block of activations.
    height: usize,
    /// Chunks in a block of activations.
    chunks: usize,
    a: &'a [Line],
    c: Output,
    accumulate: bool,
}

/// `c = x B`, or `c += x B` with `accumulate`: x `[n, depth]`, c `[n, columns]`, B in panels, which hold words as
/// `kernel` wants them.
pub(super) fn product(kernel: &Kernel, panels: &Panels, x: &[f32], n: usize, c: &mut [f32], accumulate: bool) {
    let (depth, columns) = (panels.depth, panels.columns);
    assert_eq!(x.len(), n * depth, "activations [{n}, {depth}]");
    assert_eq!(c.len(), n * columns, "a result [{n}, {columns}]");
    if c.is_empty() {
        return;
    }
    if depth == 0 {
        if !accumulate {
            c.fill(0.0);
        }
        return;
    }
    let parallel = n * columns * depth >= PARALLEL_FROM && rayon::current_num_threads() > 1;
    // Few rows make one low block.
    let height = kernel.height().min(n.next_multiple_of(kernel.lowest()));
    let chunks = panels.steps / kernel.steps_per_chunk;
    let block_lines = chunks * height;
    let lines = n.div_ceil(height) * block_lines;

    let mut scratch = SCRATCH.take();
    if scratch.len() < lines {
        scratch.resize(lines, Line::ZERO);
    }
    let pack = |(block, lines): (usize, &mut [Line])| {
        let rows = block * height..n.min((block + 1) * height);
        // SAFETY: a weight is packed only for a family that the processor has.
        unsafe { (kernel.pack)(&x[rows.start * depth..rows.end * depth], depth, height, kernel.words, lines) };
    };
    if parallel {
        scratch[..lines].par_chunks_mut(block_lines).with_min_len(4).enumerate().for_each(pack);
    } else {
        scratch[..lines].chunks_mut(block_lines).enumerate().for_each(pack);
    }
    let a = &scratch[..lines];
    Product { kernel, panels, n, height, chunks, a, c: Output(c.as_mut_ptr()), accumulate }.run(parallel);
    SCRATCH.set(scratch);
}

impl Product<'_> {
    fn run(&self, parallel: bool) {
        let panels = self.panels.columns.div_ceil(WORDS);
        let (rows_in_group, panels_in_group) = self.group(if parallel { rayon::current_num_threads() } else { 1 });
        let across = panels.div_ceil(panels_in_group);
        let groups = self.n.div_ceil(rows_in_group) * across;
        let run = |group: usize| {
            let (row, panel) = (group / across * rows_in_group, group % across * panels_in_group);
            let rows = row..self.n.min(row + rows_in_group);
            let panels = panel..panels.min(panel + panels_in_group);
            // SAFETY: the rows and panels of groups are disjoint, and inside the result.
            unsafe { self.run_group(rows, panels) };
        };
        if parallel {
            (0..groups).into_par_iter().with_max_len(1).for_each(run);
        } else {
            (0..groups).for_each(run);
        }
    }

    /// Rows, a multiple of the block's, and panels in a group.
    fn group(&self, threads: usize) -> (usize, usize) {
        let panels = self.panels.columns.div_ceil(WORDS);
        // With one low block the weight is read once, and by tiles of up to eight panels.
        let fewest = if self.n <= self.height { 8 } else { 2 };
        let mut blocks = (ROWS_IN_GROUP / self.height).max(1);
        let mut across = PANELS_IN_GROUP;
        let groups = |blocks: usize, across: usize| self.n.div_ceil(blocks * self.height) * panels.div_ceil(across);
        while threads > 1 && groups(blocks, across) < GROUPS_PER_THREAD * threads && (across > fewest || blocks > 1) {
            if across > fewest {
                across /= 2;
            } else {
                blocks = blocks.div_ceil(2);
            }
        }
        (blocks * self.height, across)
    }

    /// Computes a group. To call: `rows` begin with a block, rows and panels lie in the result, and nobody else touches
    /// their elements meanwhile.
    unsafe fn run_group(&self, rows: Range<usize>, panels: Range<usize>) {
        if let Some(enter) = self.kernel.enter {
            // SAFETY: a weight is packed only for a family that the processor has; so below.
            unsafe { enter() };
        }
        // One low block gains nothing from panels that stay in the cache.
        let at_once = if self.n <= self.height { self.chunks } else { CHUNKS_AT_ONCE };
        for chunk in (0..self.chunks).step_by(at_once) {
            let chunks = chunk..self.chunks.min(chunk + at_once);
            let mut row = rows.start;
            while row < rows.end {
                let left = rows.end - row;
                let rows = self.kernel.height_for(left.min(self.height));
                let blocks = if rows == self.height { left / rows } else { 1 };
                // SAFETY: the caller's promise; the rows are in `rows`, or past `n` and not written.
                unsafe { self.run_strip(row, rows, blocks.max(1), panels.clone(), chunks.clone()) };
                row += rows * blocks.max(1);
            }
        }
        if let Some(leave) = self.kernel.leave {
            // SAFETY: as above.
            unsafe { leave() };
        }
    }

    /// Computes `blocks` times `rows` rows from `row` on, over a stretch of chunks.
    unsafe fn run_strip(&self, row: usize, rows: usize, blocks: usize, panels: Range<usize>, chunks: Range<usize>) {
        let mut panel = panels.start;
        while panel < panels.end {
            let shape = self.kernel.shape(rows, panels.end - panel);
            let column = panel * WORDS;
            for block in 0..blocks {
                let row = row + block * rows;
                let a = row / self.height * self.chunks * self.height + chunks.start * self.height + row % self.height;
                let w = panel * self.panels.steps + chunks.start * self.kernel.steps_per_chunk;
                assert!(a < self.a.len() && w < self.panels.lines.len());
                let tile = Tile {
                    // SAFETY: just asserted, here and for w.
                    a: unsafe { self.a.as_ptr().add(a) },
                    a_chunk: self.height,
                    // SAFETY: as above.
                    w: unsafe { self.panels.lines.as_ptr().add(w) },
                    w_panel: self.panels.steps,
                    chunks: chunks.len(),
                    // SAFETY: the row and column lie in the result.
                    c: unsafe { self.c.0.add(row * self.panels.columns + column) },
                    c_row: self.panels.columns,
                    rows: rows.min(self.n - row),
                    columns: (shape.panels * WORDS).min(self.panels.columns - column),
                    load: self.accumulate || chunks.start > 0,
                };
                // SAFETY: the block has `height` lines a chunk, of which these rows are some; the panels have all
                // steps of the chunks; the elements are the caller's.
                unsafe { (shape.run)(&tile) };
            }
            panel += shape.panels;
        }
    }
}
