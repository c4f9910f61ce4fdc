//! Dense f32 products of matrices that are not frozen (adapters, feedback, attention blocks), over the `gemm` crate.
//! Names follow BLAS: `n` as stored, `t` transposed.

use gemm::Parallelism;

/// Products under this many multiply-adds run on the calling thread.
const PARALLEL_FROM: usize = 1 << 18;

/// `c = alpha a b^T + beta c`: a `[m, k]`, b `[n, k]`, c `[m, n]`.
#[allow(clippy::too_many_arguments)]
pub fn nt(m: usize, n: usize, k: usize, alpha: f32, a: &[f32], b: &[f32], beta: f32, c: &mut [f32]) {
    assert!(a.len() >= m * k && b.len() >= n * k && c.len() >= m * n);
    strided(m, n, k, alpha, (a, k, 1), (b, 1, k), beta, (c, n), threads(m * n * k));
}

/// `c = alpha a b + beta c`: a `[m, k]`, b `[k, n]`, c `[m, n]`.
#[allow(clippy::too_many_arguments)]
pub fn nn(m: usize, n: usize, k: usize, alpha: f32, a: &[f32], b: &[f32], beta: f32, c: &mut [f32]) {
    assert!(a.len() >= m * k && b.len() >= k * n && c.len() >= m * n);
    strided(m, n, k, alpha, (a, k, 1), (b, n, 1), beta, (c, n), threads(m * n * k));
}

/// `c = alpha a^T b + beta c`: a `[k, m]`, b `[k, n]`, c `[m, n]`.
#[allow(clippy::too_many_arguments)]
pub fn tn(m: usize, n: usize, k: usize, alpha: f32, a: &[f32], b: &[f32], beta: f32, c: &mut [f32]) {
    assert!(a.len() >= k * m && b.len() >= k * n && c.len() >= m * n);
    strided(m, n, k, alpha, (a, 1, m), (b, n, 1), beta, (c, n), threads(m * n * k));
}

fn threads(work: usize) -> Parallelism {
    if work < PARALLEL_FROM { Parallelism::None } else { Parallelism::Rayon(0) }
}

/// As `strided`, on the calling thread.
#[allow(clippy::too_many_arguments)]
pub fn strided_serial(
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    a: (&[f32], usize, usize),
    b: (&[f32], usize, usize),
    beta: f32,
    c: (&mut [f32], usize),
) {
    strided(m, n, k, alpha, a, b, beta, c, Parallelism::None);
}

/// `c = alpha a b + beta c` with (slice, row stride, column stride) for a `[m, k]` and b `[k, n]`, and (slice, row
/// stride) for c `[m, n]`.
#[allow(clippy::too_many_arguments)]
fn strided(
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    (a, a_row, a_column): (&[f32], usize, usize),
    (b, b_row, b_column): (&[f32], usize, usize),
    beta: f32,
    (c, c_row): (&mut [f32], usize),
    parallelism: Parallelism,
) {
    if m == 0 || n == 0 {
        return;
    }
    if k > 0 {
        assert!(a.len() > (m - 1) * a_row + (k - 1) * a_column);
        assert!(b.len() > (k - 1) * b_row + (n - 1) * b_column);
    }
    assert!(c.len() >= (m - 1) * c_row + n);
    // SAFETY: the assertions above keep every address that the strides reach inside its slice; c is borrowed mutably
    // and so overlaps neither a nor b.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            c_row as isize,
            beta != 0.0,
            a.as_ptr(),
            a_column as isize,
            a_row as isize,
            b.as_ptr(),
            b_column as isize,
            b_row as isize,
            beta,
            alpha,
            false,
            false,
            false,
            parallelism,
        );
    }
}
