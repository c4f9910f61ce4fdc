//! Products in which one side has a LoRA rank of rows: too thin for the packed products and for general ones. Optional
//! dropout happens on the way, in caches, so that no dropped copy of the activations is ever written. In one training
//! step with rank 8 and dropout the adapters took 1.25 times as long as the frozen products before, 0.46 times since.
//!
//! All sums are f32 in the order of the inner dimension within a lane; a row of a result depends on its own rows alone,
//! and [`outer`] sums over rows in their order, whatever the number of threads.

use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::random::Key;

/// Rows that one task works on.
const ROWS: usize = 32;
/// Columns that one task of [`outer`] owns.
const COLUMNS: usize = 96;
/// Rows whose dropped values [`outer`] makes at a time.
const STRIP: usize = 8;
/// Registers across: rows by ranks in [`dots`], ranks by vectors in [`outer`].
const TILE: usize = 4;
const RANKS: usize = 8;

/// Dropout of the long side: row i draws from `keys[i]`, and an element stays with probability `1 - p`.
#[derive(Clone, Copy)]
pub struct Dropout<'a> {
    pub p: f32,
    pub keys: &'a [Key],
}

impl<'a> Dropout<'a> {
    fn rows(self, from: usize, to: usize) -> Self {
        Self { p: self.p, keys: &self.keys[from..to] }
    }

    /// 16 bits decide an element: p is met to 1 / 65536.
    fn threshold(self) -> u16 {
        (self.p as f64 * 65536.0).round() as u16
    }

    /// Writes row `row` of `x`, which begins at column `first` (a multiple of 4), with dropped elements 0 and the others
    /// scaled.
    #[inline(always)]
    pub fn row(self, row: usize, first: usize, x: &[f32], y: &mut [f32]) {
        let (key, threshold, scale) = (self.keys[row], self.threshold(), 1.0 / (1.0 - self.p));
        let mut bits = [0u64; 64];
        for (block, (y, x)) in y.chunks_mut(256).zip(x.chunks(256)).enumerate() {
            let index = (first / 4 + 64 * block) as u64;
            for (i, bits) in bits.iter_mut().enumerate() {
                *bits = key.bits(index + i as u64);
            }
            let words: &[u16] = pulp::bytemuck::cast_slice(&bits);
            for ((y, &x), &word) in y.iter_mut().zip(x).zip(words) {
                let kept = if word >= threshold { scale } else { 0.0 };
                *y = x * kept;
            }
        }
    }
}

/// `u = alpha x a^T`: x `[n, k]` (dropped where asked), a `[r, k]`, u `[n, r]`.
#[allow(clippy::too_many_arguments)]
pub fn dots(n: usize, r: usize, k: usize, alpha: f32, x: &[f32], drop: Option<Dropout>, a: &[f32], u: &mut [f32]) {
    assert!(x.len() >= n * k && a.len() >= r * k && u.len() >= n * r);
    if n == 0 || r == 0 || k == 0 {
        u[..n * r].fill(0.0);
        return;
    }
    let tasks = u[..n * r].par_chunks_mut(ROWS * r).zip(x[..n * k].par_chunks(ROWS * k)).enumerate();
    tasks.for_each_init(Vec::new, |scratch, (task, (u, x))| {
        let drop = drop.map(|drop| drop.rows(task * ROWS, task * ROWS + x.len() / k));
        Arch::new().dispatch(Dots { r, k, alpha, x, drop, a, u, scratch });
    });
}

struct Dots<'a> {
    r: usize,
    k: usize,
    alpha: f32,
    x: &'a [f32],
    drop: Option<Dropout<'a>>,
    a: &'a [f32],
    u: &'a mut [f32],
    scratch: &'a mut Vec<f32>,
}

impl WithSimd for Dots<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { r, k, alpha, x, drop, a, u, scratch } = self;
        scratch.resize(TILE * k, 0.0);
        for (strip, (x, u)) in x.chunks(TILE * k).zip(u.chunks_mut(TILE * r)).enumerate() {
            let rows = x.len() / k;
            let x = match drop {
                None => x,
                Some(drop) => {
                    for (row, (y, x)) in scratch.chunks_exact_mut(k).zip(x.chunks_exact(k)).enumerate() {
                        drop.row(strip * TILE + row, 0, x, y);
                    }
                    &scratch[..rows * k]
                }
            };
            let mut rank = 0;
            while rank < r {
                let a = &a[rank * k..];
                if rows == TILE && r - rank >= TILE {
                    dots_tile::<S, TILE, TILE>(simd, k, alpha, x, a, &mut u[rank..], r);
                    rank += TILE;
                } else {
                    for (row, x) in x.chunks_exact(k).enumerate() {
                        dots_tile::<S, 1, 1>(simd, k, alpha, x, a, &mut u[row * r + rank..], r);
                    }
                    rank += 1;
                }
            }
        }
    }
}

#[inline(always)]
fn dots_tile<S: Simd, const T: usize, const R: usize>(
    simd: S,
    k: usize,
    alpha: f32,
    x: &[f32],
    a: &[f32],
    u: &mut [f32],
    u_row: usize,
) {
    let whole = k / S::F32_LANES;
    let mut xs = [S::as_simd_f32s(&x[..k]).0; T];
    let mut rows = [S::as_simd_f32s(&a[..k]).0; R];
    for (t, slot) in xs.iter_mut().enumerate() {
        *slot = &S::as_simd_f32s(&x[t * k..(t + 1) * k]).0[..whole];
    }
    for (j, slot) in rows.iter_mut().enumerate() {
        *slot = &S::as_simd_f32s(&a[j * k..(j + 1) * k]).0[..whole];
    }
    let mut sums = [[simd.splat_f32s(0.0); R]; T];
    for c in 0..whole {
        for t in 0..T {
            let x = xs[t][c];
            for j in 0..R {
                sums[t][j] = simd.mul_add_e_f32s(x, rows[j][c], sums[t][j]);
            }
        }
    }
    for t in 0..T {
        for j in 0..R {
            let mut sum = simd.reduce_sum_f32s(sums[t][j]);
            for c in whole * S::F32_LANES..k {
                sum += x[t * k + c] * a[j * k + c];
            }
            u[t * u_row + j] = alpha * sum;
        }
    }
}

/// `y += alpha drop(u b)`: u `[n, r]`, b `[r, m]`, y `[n, m]`; dropout of the product's elements where asked.
#[allow(clippy::too_many_arguments)]
pub fn spread(n: usize, r: usize, m: usize, alpha: f32, u: &[f32], b: &[f32], drop: Option<Dropout>, y: &mut [f32]) {
    assert!(u.len() >= n * r && b.len() >= r * m && y.len() >= n * m);
    if n == 0 || r == 0 || m == 0 {
        return;
    }
    let tasks = y[..n * m].par_chunks_mut(ROWS * m).zip(u[..n * r].par_chunks(ROWS * r)).enumerate();
    tasks.for_each_init(Vec::new, |scratch, (task, (y, u))| {
        let drop = drop.map(|drop| drop.rows(task * ROWS, task * ROWS + u.len() / r));
        Arch::new().dispatch(Spread { r, m, alpha, u, b, drop, y, scratch });
    });
}

struct Spread<'a> {
    r: usize,
    m: usize,
    alpha: f32,
    u: &'a [f32],
    b: &'a [f32],
    drop: Option<Dropout<'a>>,
    y: &'a mut [f32],
    scratch: &'a mut Vec<f32>,
}

impl WithSimd for Spread<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { r, m, alpha, u, b, drop, y, scratch } = self;
        scratch.resize(2 * TILE * m, 0.0);
        let mut scaled = [0f32; TILE * 256];
        for (strip, (y, u)) in y.chunks_mut(TILE * m).zip(u.chunks(TILE * r)).enumerate() {
            let (sums, dropped) = scratch.split_at_mut(TILE * m);
            let sums = &mut sums[..y.len()];
            if drop.is_some() {
                sums.fill(0.0);
            }
            // Ranks above 256 in several goes.
            for first in (0..r).step_by(256) {
                let ranks = (r - first).min(256);
                for (scaled, u) in scaled.chunks_exact_mut(ranks).zip(u.chunks_exact(r)) {
                    for j in 0..ranks {
                        scaled[j] = alpha * u[first + j];
                    }
                }
                let (b, y) = (&b[first * m..(first + ranks) * m], if drop.is_some() { &mut *sums } else { &mut *y });
                if y.len() == TILE * m {
                    spread_rows::<S, TILE>(simd, ranks, m, &scaled, b, y);
                } else {
                    for (y, u) in y.chunks_exact_mut(m).zip(scaled.chunks_exact(ranks)) {
                        spread_rows::<S, 1>(simd, ranks, m, u, b, y);
                    }
                }
            }
            if let Some(drop) = drop {
                for (row, (y, sums)) in y.chunks_exact_mut(m).zip(sums.chunks_exact(m)).enumerate() {
                    let dropped = &mut dropped[..m];
                    drop.row(strip * TILE + row, 0, sums, dropped);
                    for (y, d) in y.iter_mut().zip(dropped) {
                        *y += *d;
                    }
                }
            }
        }
    }
}

/// `y += u b` for T rows.
#[inline(always)]
fn spread_rows<S: Simd, const T: usize>(simd: S, r: usize, m: usize, u: &[f32], b: &[f32], y: &mut [f32]) {
    let pair = 2 * S::F32_LANES;
    let mut c = 0;
    while c + pair <= m {
        let mut sums = [[simd.splat_f32s(0.0); 2]; T];
        for t in 0..T {
            let y = S::as_simd_f32s(&y[t * m + c..][..pair]).0;
            sums[t] = [y[0], y[1]];
        }
        for j in 0..r {
            let b = S::as_simd_f32s(&b[j * m + c..][..pair]).0;
            for t in 0..T {
                let u = simd.splat_f32s(u[t * r + j]);
                sums[t][0] = simd.mul_add_e_f32s(u, b[0], sums[t][0]);
                sums[t][1] = simd.mul_add_e_f32s(u, b[1], sums[t][1]);
            }
        }
        for t in 0..T {
            let y = S::as_mut_simd_f32s(&mut y[t * m + c..][..pair]).0;
            y[0] = sums[t][0];
            y[1] = sums[t][1];
        }
        c += pair;
    }
    for t in 0..T {
        for c in c..m {
            let sum: f32 = (0..r).map(|j| u[t * r + j] * b[j * m + c]).sum();
            y[t * m + c] += sum;
        }
    }
}

/// `g += alpha u^T x`: u `[n, r]`, x `[n, m]` (dropped where asked), g `[r, m]`.
#[allow(clippy::too_many_arguments)]
pub fn outer(n: usize, r: usize, m: usize, alpha: f32, u: &[f32], x: &[f32], drop: Option<Dropout>, g: &mut [f32]) {
    assert!(u.len() >= n * r && x.len() >= n * m && g.len() >= r * m);
    if n == 0 || r == 0 || m == 0 {
        return;
    }
    let blocks: Vec<(usize, Vec<f32>)> = (0..m.div_ceil(COLUMNS))
        .into_par_iter()
        .map(|block| {
            let first = block * COLUMNS;
            let width = COLUMNS.min(m - first);
            let mut sums = vec![0.0; r * width];
            Arch::new().dispatch(Outer { n, r, m, first, width, u, x, drop, sums: &mut sums });
            (first, sums)
        })
        .collect();
    for (first, sums) in blocks {
        let width = sums.len() / r;
        for (j, sums) in sums.chunks_exact(width).enumerate() {
            g[j * m + first..][..width].iter_mut().zip(sums).for_each(|(g, s)| *g += alpha * s);
        }
    }
}

struct Outer<'a> {
    n: usize,
    r: usize,
    m: usize,
    first: usize,
    width: usize,
    u: &'a [f32],
    x: &'a [f32],
    drop: Option<Dropout<'a>>,
    /// `[r, width]`
    sums: &'a mut [f32],
}

impl WithSimd for Outer<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { n, r, m, first, width, u, x, drop, sums } = self;
        let mut strip = [0f32; STRIP * COLUMNS];
        for row in (0..n).step_by(STRIP) {
            let rows = STRIP.min(n - row);
            for (t, strip) in strip.chunks_exact_mut(width).take(rows).enumerate() {
                let x = &x[(row + t) * m + first..][..width];
                match drop {
                    Some(drop) => drop.row(row + t, first, x, strip),
                    None => strip.copy_from_slice(x),
                }
            }
            let u = &u[row * r..(row + rows) * r];
            let mut rank = 0;
            while rank < r {
                let sums = &mut sums[rank * width..];
                if r - rank >= RANKS {
                    outer_rows::<S, RANKS>(simd, rows, r, rank, width, u, &strip, sums);
                    rank += RANKS;
                } else {
                    outer_rows::<S, 1>(simd, rows, r, rank, width, u, &strip, sums);
                    rank += 1;
                }
            }
        }
    }
}

/// `sums[j] += sum over rows of u[row, rank + j] x[row]` for R ranks.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
fn outer_rows<S: Simd, const R: usize>(
    simd: S,
    rows: usize,
    r: usize,
    rank: usize,
    width: usize,
    u: &[f32],
    x: &[f32],
    sums: &mut [f32],
) {
    let pair = 2 * S::F32_LANES;
    let mut c = 0;
    while c + pair <= width {
        let mut acc = [[simd.splat_f32s(0.0); 2]; R];
        for j in 0..R {
            let sums = S::as_simd_f32s(&sums[j * width + c..][..pair]).0;
            acc[j] = [sums[0], sums[1]];
        }
        for t in 0..rows {
            let x = S::as_simd_f32s(&x[t * width + c..][..pair]).0;
            let u = &u[t * r + rank..][..R];
            for j in 0..R {
                let u = simd.splat_f32s(u[j]);
                acc[j][0] = simd.mul_add_e_f32s(u, x[0], acc[j][0]);
                acc[j][1] = simd.mul_add_e_f32s(u, x[1], acc[j][1]);
            }
        }
        for j in 0..R {
            let sums = S::as_mut_simd_f32s(&mut sums[j * width + c..][..pair]).0;
            sums[0] = acc[j][0];
            sums[1] = acc[j][1];
        }
        c += pair;
    }
    for j in 0..R {
        for c in c..width {
            let sum: f32 = (0..rows).map(|t| u[t * r + rank + j] * x[t * width + c]).sum();
            sums[j * width + c] += sum;
        }
    }
}

/// `[m, r]` from `[r, m]` and back.
pub fn transposed(rows: usize, columns: usize, x: &[f32]) -> Vec<f32> {
    let mut y = vec![0.0; rows * columns];
    for i in 0..rows {
        for j in 0..columns {
            y[j * rows + i] = x[i * columns + j];
        }
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Purpose;

    fn values(len: usize, seed: u64) -> Vec<f32> {
        let key = Key::new(seed, Purpose::Init);
        (0..len as u64).map(|i| (key.unit(i) * 2.0 - 1.0) as f32).collect()
    }

    fn close(got: &[f32], want: &[f64]) {
        for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
            assert!((g as f64 - w).abs() < 2e-5 * (1.0 + w.abs()), "element {i}: {g}, expected {w}");
        }
    }

    /// Every product against plain loops in f64, over odd sizes, with and without dropout.
    #[test]
    fn products_equal_plain_loops() {
        for (n, r, k) in [(1, 1, 1), (7, 3, 33), (33, 8, 64), (70, 16, 576), (5, 20, 200), (2, 300, 40)] {
            let (x, a, u) = (values(n * k, 1), values(r * k, 2), values(n * r, 3));
            let keys: Vec<Key> = (0..n as u64).map(|i| Key::new(9, Purpose::Dropout).at(i)).collect();
            for p in [0.0f32, 0.3] {
                let drop = (p > 0.0).then_some(Dropout { p, keys: &keys });
                let mut mask = vec![1.0f32; n * k];
                if let Some(drop) = drop {
                    let ones = vec![1.0; k];
                    mask.chunks_exact_mut(k).enumerate().for_each(|(row, mask)| drop.row(row, 0, &ones, mask));
                    assert!(n * k < 40 || mask.contains(&0.0));
                }
                let dropped = |t: usize, c: usize| x[t * k + c] as f64 * mask[t * k + c] as f64;
                let mut got = vec![0.0; n * r];
                dots(n, r, k, 0.5, &x, drop, &a, &mut got);
                let want = |t: usize, j: usize| 0.5 * (0..k).map(|c| dropped(t, c) * a[j * k + c] as f64).sum::<f64>();
                close(&got, &(0..n * r).map(|i| want(i / r, i % r)).collect::<Vec<_>>());

                let mut got = values(r * k, 4);
                let before = got.clone();
                outer(n, r, k, 0.5, &u, &x, drop, &mut got);
                let want = |j: usize, c: usize| {
                    before[j * k + c] as f64 + 0.5 * (0..n).map(|t| u[t * r + j] as f64 * dropped(t, c)).sum::<f64>()
                };
                close(&got, &(0..r * k).map(|i| want(i / k, i % k)).collect::<Vec<_>>());

                let mut got = values(n * k, 5);
                let before = got.clone();
                spread(n, r, k, 0.5, &u, &a, drop, &mut got);
                let want = |t: usize, c: usize| {
                    let sum: f64 = (0..r).map(|j| u[t * r + j] as f64 * a[j * k + c] as f64).sum();
                    before[t * k + c] as f64 + 0.5 * sum * mask[t * k + c] as f64
                };
                close(&got, &(0..n * k).map(|i| want(i / k, i % k)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn dropout_keeps_its_share_and_scales() {
        let keys = [Key::new(1, Purpose::Dropout)];
        let drop = Dropout { p: 0.25, keys: &keys };
        let ones = vec![1.0; 40_000];
        let mut y = vec![0.0; ones.len()];
        drop.row(0, 0, &ones, &mut y);
        let kept = y.iter().filter(|&&y| y != 0.0).count() as f64 / y.len() as f64;
        assert!((kept - 0.75).abs() < 0.01, "{kept}");
        assert!(y.iter().all(|&y| y == 0.0 || (y - 4.0 / 3.0).abs() < 1e-6));
        // A part of a row draws what the whole row draws there.
        let mut part = vec![0.0; 100];
        drop.row(0, 96, &ones[96..196], &mut part);
        assert_eq!(part, y[96..196]);
    }
}
