//! The loops around the kernels: cuts a product into slabs, packs the activations of a slab, splits the slab's part of
//! the result into groups of rows and columns for the threads, and each group into tiles.
//!
//! A slab is sized so that its packed activations stay in the caches. A group is sized for the second-level cache, and
//! sums over a stretch of the inner dimension at a time, so that the panels that its blocks of rows share stay in the
//! first. How the product is cut never changes an element: each is summed in one order, and between stretches the sum
//! rests in the result as it is, in f32.

use std::cell::Cell;
use std::ops::Range;

use rayon::prelude::*;

use super::kernel::{Kernel, Tile};
use super::panels::{Line, Panels, WORDS};

/// Products under this many multiply-adds run on the calling thread.
const PARALLEL_FROM: usize = 1 << 18;
/// Most chunks of activations summed over before the next tile: 36 KiB of two panels. Eighteen, and not sixteen, because
/// hidden sizes of 576 are common among small models; every stretch but the first reads and writes the sums once more.
const CHUNKS_IN_STRETCH: usize = 18;
const ROWS_IN_GROUP: usize = 112;
const PANELS_IN_GROUP: usize = 16;
/// Groups a thread that the split aims at, so that a slow thread is waited for briefly.
const GROUPS_PER_THREAD: usize = 4;
/// Lines of packed activations in a slab, a thread: 1 MiB.
const SLAB_LINES: usize = 1 << 14;

thread_local! {
    /// Packed activations of the last slab that this thread asked for.
    static SCRATCH: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Where groups write. Each element belongs to one group.
#[derive(Clone, Copy)]
struct Output(*mut f32);

// SAFETY: a pointer into a slice that `product` borrows mutably while threads hold this; each writes elements of its own.
unsafe impl Send for Output {}
// SAFETY: as above.
unsafe impl Sync for Output {}

/// Some rows of a product, summed over some chunks of the inner dimension, with its activations packed.
struct Slab<'a> {
    kernel: &'a Kernel,
    panels: &'a Panels,
    threads: usize,
    rows: usize,
    /// Rows in a block of activations.
    height: usize,
    /// Of the panels' chunks.
    chunks: Range<usize>,
    a: &'a [Line],
    /// The first of the rows.
    c: Output,
    /// Whether c holds sums already.
    load: bool,
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
    let threads = if n * columns * depth < PARALLEL_FROM { 1 } else { rayon::current_num_threads() };
    // Few rows make one low block.
    let height = kernel.height().min(n.next_multiple_of(kernel.lowest()));
    let rows_in_slab = n.next_multiple_of(height).min(ROWS_IN_GROUP / height * height * threads);
    let chunks = panels.steps / kernel.steps_per_chunk;
    let chunks_in_slab = SLAB_LINES * threads.max(2) / rows_in_slab;
    let chunks_in_slab = chunks_in_slab.next_multiple_of(CHUNKS_IN_STRETCH).min(chunks);

    let mut scratch = SCRATCH.take();
    if scratch.len() < rows_in_slab * chunks_in_slab {
        scratch.resize(rows_in_slab * chunks_in_slab, Line::ZERO);
    }
    for (x, c) in x.chunks(rows_in_slab * depth).zip(c.chunks_mut(rows_in_slab * columns)) {
        let rows = c.len() / columns;
        for first in (0..chunks).step_by(chunks_in_slab) {
            let chunks = first..chunks.min(first + chunks_in_slab);
            let a = &mut scratch[..rows.next_multiple_of(height) * chunks.len()];
            pack(kernel, x, depth, height, chunks.clone(), a, threads > 1);
            let (c, load) = (Output(c.as_mut_ptr()), accumulate || first > 0);
            Slab { kernel, panels, threads, rows, height, chunks, a, c, load }.run();
        }
    }
    SCRATCH.set(scratch);
}

/// Packs all rows of x, `[rows, depth]`, over some chunks, into blocks of `height` rows.
fn pack(kernel: &Kernel, x: &[f32], depth: usize, height: usize, chunks: Range<usize>, a: &mut [Line], parallel: bool) {
    let per_line = kernel.words.per_line();
    let stretch = depth.min(chunks.start * per_line)..depth.min(chunks.end * per_line);
    let block = |(x, lines): (&[f32], &mut [Line])| {
        // SAFETY: a weight is packed only for a family that the processor has.
        unsafe { (kernel.pack)(x, depth, stretch.clone(), height, kernel.words, lines) };
    };
    let (x_block, a_block) = (height * depth, height * chunks.len());
    if parallel {
        x.par_chunks(x_block).zip(a.par_chunks_mut(a_block)).with_min_len(4).for_each(block);
    } else {
        x.chunks(x_block).zip(a.chunks_mut(a_block)).for_each(block);
    }
}

impl Slab<'_> {
    fn run(&self) {
        let panels = self.panels.columns.div_ceil(WORDS);
        let (rows_in_group, panels_in_group) = self.group();
        let across = panels.div_ceil(panels_in_group);
        let groups = self.rows.div_ceil(rows_in_group) * across;
        let run = |group: usize| {
            let (row, panel) = (group / across * rows_in_group, group % across * panels_in_group);
            let rows = row..self.rows.min(row + rows_in_group);
            let panels = panel..panels.min(panel + panels_in_group);
            // SAFETY: the rows and panels of groups are disjoint, and inside the result.
            unsafe { self.run_group(rows, panels) };
        };
        if self.threads > 1 {
            (0..groups).into_par_iter().with_max_len(1).for_each(run);
        } else {
            (0..groups).for_each(run);
        }
    }

    /// Rows, a multiple of the block's, and panels in a group.
    fn group(&self) -> (usize, usize) {
        let panels = self.panels.columns.div_ceil(WORDS);
        let mut blocks = ROWS_IN_GROUP / self.height;
        let mut across = PANELS_IN_GROUP;
        // With one low block the weight is read once, and by tiles of up to eight panels.
        let fewest = if self.rows <= self.height { 8 } else { 2 };
        let groups = |blocks: usize, across: usize| self.rows.div_ceil(blocks * self.height) * panels.div_ceil(across);
        let enough = if self.threads > 1 { GROUPS_PER_THREAD * self.threads } else { 1 };
        while groups(blocks, across) < enough && (across > fewest || blocks > 1) {
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
        let chunks = self.chunks.len();
        let even = chunks.div_ceil(chunks.div_ceil(CHUNKS_IN_STRETCH));
        let stretch = if self.rows <= self.height { chunks } else { even };
        for chunk in (0..chunks).step_by(stretch) {
            let stretch = chunk..chunks.min(chunk + stretch);
            let mut row = rows.start;
            while row < rows.end {
                let left = rows.end - row;
                let height = self.kernel.height_for(left.min(self.height));
                let blocks = if height == self.height { (left / height).max(1) } else { 1 };
                // SAFETY: the caller's promise; the rows are in `rows`, or past the last and not written.
                unsafe { self.run_strip(row, height, blocks, panels.clone(), stretch.clone()) };
                row += height * blocks;
            }
        }
        if let Some(leave) = self.kernel.leave {
            // SAFETY: as above.
            unsafe { leave() };
        }
    }

    /// Computes `blocks` times `height` rows from `row` on, over some of the slab's chunks.
    unsafe fn run_strip(&self, row: usize, height: usize, blocks: usize, panels: Range<usize>, chunks: Range<usize>) {
        let (steps, columns) = (self.panels.steps, self.panels.columns);
        let mut panel = panels.start;
        while panel < panels.end {
            let shape = self.kernel.shape(height, panels.end - panel);
            let column = panel * WORDS;
            for block in 0..blocks {
                let row = row + block * height;
                let in_block = row % self.height;
                let a = (row - in_block) * self.chunks.len() + chunks.start * self.height + in_block;
                let w = panel * steps + (self.chunks.start + chunks.start) * self.kernel.steps_per_chunk;
                assert!(a < self.a.len() && w < self.panels.lines.len());
                let tile = Tile {
                    // SAFETY: just asserted, here and for w.
                    a: unsafe { self.a.as_ptr().add(a) },
                    a_chunk: self.height,
                    // SAFETY: as above.
                    w: unsafe { self.panels.lines.as_ptr().add(w) },
                    w_panel: steps,
                    chunks: chunks.len(),
                    // SAFETY: the row and column lie in the result.
                    c: unsafe { self.c.0.add(row * columns + column) },
                    c_row: columns,
                    rows: height.min(self.rows - row),
                    columns: (shape.panels * WORDS).min(columns - column),
                    load: self.load || chunks.start > 0,
                };
                // SAFETY: the block has `self.height` lines a chunk, of which these rows are some; the panels have all
                // steps of the chunks; the elements are the caller's.
                unsafe { (shape.run)(&tile) };
            }
            panel += shape.panels;
        }
    }
}
