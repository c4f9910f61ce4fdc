//! Products with a packed weight, per family of instructions that this machine runs, against sums in f64.

use fullband::kernels::isa::Isa;
use fullband::kernels::packed::{PackedWeight, Precision, Weight};
use half::bf16;
use proptest::prelude::*;

const PRECISIONS: [Precision; 2] = [Precision::F32, Precision::Bf16];

/// (n, out, in): one of everything, tiny test models, one past and one short of blocks and panels, more than one
/// stretch of the inner dimension, more than one group of rows.
const SHAPES: [(usize, usize, usize); 12] = [
    (1, 1, 1),
    (1, 48, 112),
    (7, 112, 48),
    (7, 101, 16),
    (33, 16, 101),
    (33, 33, 31),
    (2, 65, 130),
    (15, 17, 1000),
    (127, 300, 70),
    (9, 700, 33),
    (129, 31, 600),
    (240, 64, 64),
];

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_supported())
}

/// `len` values in -1..1 from a linear congruential generator.
fn values(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_769).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn packed(w: &[f32], out: usize, inner: usize, precision: Precision, isa: Isa) -> PackedWeight {
    PackedWeight::with_isa(Weight::F32(w), out, inner, precision, isa).unwrap()
}

/// Checks `got[row, column]` against `start + sum over k of left(row, k) * right(k, column)`.
///
/// The bound, from the sum S of the magnitudes: each bf16 operand is off by 2^-9 of itself at most (half a unit of 8 bits), so a
/// product by 2^-8 + 2^-18; a sum of d products in f32, in any order, by d 2^-24 S to first order.
fn assert_product(
    (rows, depth, columns): (usize, usize, usize),
    precision: Precision,
    start: Option<&[f32]>,
    left: impl Fn(usize, usize) -> f32,
    right: impl Fn(usize, usize) -> f32,
    got: &[f32],
    what: &str,
) {
    let operands = match precision {
        Precision::F32 => 0.0,
        Precision::Bf16 => 2f64.powi(-8) + 2f64.powi(-18),
    };
    let bound = operands + (depth + 2) as f64 * 2f64.powi(-24);
    for row in 0..rows {
        for column in 0..columns {
            let start = start.map_or(0.0, |start| f64::from(start[row * columns + column]));
            let products = (0..depth).map(|k| f64::from(left(row, k)) * f64::from(right(k, column)));
            let (sum, size) = products.fold((start, start.abs()), |(sum, size), p| (sum + p, size + p.abs()));
            let got = f64::from(got[row * columns + column]);
            assert!((got - sum).abs() <= bound * size + 1e-30, "{what} [{row}, {column}]: {got}, expected {sum}");
        }
    }
}

fn check((n, out, inner): (usize, usize, usize), precision: Precision, isa: Isa, seed: u32) {
    let (w, x, g) = (values(out * inner, seed), values(n * inner, seed + 1), values(n * out, seed + 2));
    let weight = packed(&w, out, inner, precision, isa);
    let what = format!("{isa:?} {precision:?} n {n} out {out} in {inner}");

    let mut y = vec![f32::NAN; n * out];
    weight.forward(&x, n, &mut y);
    let (row, column) = (|r: usize, k: usize| x[r * inner + k], |k: usize, c: usize| w[c * inner + k]);
    assert_product((n, inner, out), precision, None, row, column, &y, &format!("{what} forward"));

    let (row, column) = (|r: usize, k: usize| g[r * out + k], |k: usize, c: usize| w[k * inner + c]);
    let mut gx = vec![f32::NAN; n * inner];
    weight.backward(&g, n, &mut gx, false);
    assert_product((n, out, inner), precision, None, row, column, &gx, &format!("{what} backward"));

    let start = values(n * inner, seed + 3);
    let mut gx = start.clone();
    weight.backward(&g, n, &mut gx, true);
    assert_product((n, out, inner), precision, Some(&start), row, column, &gx, &format!("{what} accumulated"));
}

#[test]
fn products_match_f64() {
    for isa in isas() {
        for precision in PRECISIONS {
            for (i, shape) in SHAPES.into_iter().enumerate() {
                check(shape, precision, isa, i as u32);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn products_of_any_shape_match_f64(n in 1usize..70, out in 1usize..150, inner in 1usize..150, seed in 0u32..1000) {
        for isa in isas() {
            for precision in PRECISIONS {
                check((n, out, inner), precision, isa, seed);
            }
        }
    }
}

fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len());
    let differs = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
    assert_eq!(differs, None, "{what}: the first element that differs");
}

/// A batch of n rows equals its rows alone, for every n that takes another way through blocks, tails and groups.
#[test]
fn a_row_depends_on_its_input_row_alone() {
    let (most, out, inner) = (128, 101, 600);
    let (w, x, g) = (values(out * inner, 1), values(most * inner, 2), values(most * out, 3));
    for isa in isas() {
        for precision in PRECISIONS {
            let weight = packed(&w, out, inner, precision, isa);
            let mut y = vec![0.0; most * out];
            weight.forward(&x, most, &mut y);
            let mut gx = vec![1.5; most * inner];
            weight.backward(&g, most, &mut gx, true);
            for n in (1..=34).chain([63, 64, 65, 112, 113, 127]) {
                // From the end, so that a row sits at another place of its block.
                let first = most - n;
                let what = format!("{isa:?} {precision:?} n {n}");
                let mut part = vec![0.0; n * out];
                weight.forward(&x[first * inner..], n, &mut part);
                assert_same_bits(&part, &y[first * out..], &format!("{what} forward"));
                let mut part = vec![1.5; n * inner];
                weight.backward(&g[first * out..], n, &mut part, true);
                assert_same_bits(&part, &gx[first * inner..], &format!("{what} backward"));
            }
        }
    }
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let (n, out, inner) = (130, 200, 310);
    let (w, x) = (values(out * inner, 1), values(n * inner, 2));
    for isa in isas() {
        for precision in PRECISIONS {
            let weight = packed(&w, out, inner, precision, isa);
            let results = [1, 2, 3, 7].map(|threads| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut y = vec![0.0; n * out];
                pool.install(|| weight.forward(&x, n, &mut y));
                y
            });
            for y in &results[1..] {
                assert_same_bits(y, &results[0], &format!("{isa:?} {precision:?}"));
            }
        }
    }
}

/// Operands that bf16 holds, products and sums that f32 holds: every family is exact, so all are equal.
#[test]
fn small_integers_are_exact() {
    let (n, out, inner) = (37, 77, 130);
    let integers = |len, seed| values(len, seed).into_iter().map(|v| (v * 9.0).round()).collect::<Vec<f32>>();
    let (w, x) = (integers(out * inner, 1), integers(n * inner, 2));
    for isa in isas() {
        for precision in PRECISIONS {
            let mut y = vec![0.0; n * out];
            packed(&w, out, inner, precision, isa).forward(&x, n, &mut y);
            for row in 0..n {
                for column in 0..out {
                    let sum: f32 = (0..inner).map(|k| x[row * inner + k] * w[column * inner + k]).sum();
                    assert_eq!(y[row * out + column], sum, "{isa:?} {precision:?} [{row}, {column}]");
                }
            }
        }
    }
}

/// A checkpoint in bf16 and the same widened to f32 are the same weight.
#[test]
fn weights_of_both_types_agree() {
    let (n, out, inner) = (5, 50, 70);
    let narrow: Vec<bf16> = values(out * inner, 1).into_iter().map(bf16::from_f32).collect();
    let wide: Vec<f32> = narrow.iter().map(|w| w.to_f32()).collect();
    let x = values(n * inner, 2);
    for isa in isas() {
        for precision in PRECISIONS {
            let results = [Weight::Bf16(&narrow), Weight::F32(&wide)].map(|weight| {
                let weight = PackedWeight::with_isa(weight, out, inner, precision, isa).unwrap();
                assert_eq!((weight.out_features(), weight.in_features()), (out, inner));
                let mut y = vec![0.0; n * out];
                weight.forward(&x, n, &mut y);
                y
            });
            assert_same_bits(&results[0], &results[1], &format!("{isa:?} {precision:?}"));
        }
    }
}

/// A row that is not finite stays so, and leaves the others alone: padding multiplies zeros by zeros.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    let (n, out, inner) = (20, 33, 45);
    let w = values(out * inner, 1);
    let mut x = values(n * inner, 2);
    x[3 * inner + 7] = f32::NAN;
    x[5 * inner + 44] = f32::INFINITY;
    for isa in isas() {
        for precision in PRECISIONS {
            let mut y = vec![0.0; n * out];
            packed(&w, out, inner, precision, isa).forward(&x, n, &mut y);
            for (row, y) in y.chunks(out).enumerate() {
                assert_eq!(y.iter().all(|y| y.is_finite()), row != 3 && row != 5, "{isa:?} {precision:?} row {row}");
                assert!(row != 3 || y.iter().all(|y| y.is_nan()));
            }
        }
    }
}

#[test]
fn no_rows_and_no_depth() {
    for isa in isas() {
        for precision in PRECISIONS {
            let weight = packed(&values(6, 1), 2, 3, precision, isa);
            weight.forward(&[], 0, &mut []);
            weight.backward(&[], 0, &mut [], true);
            let weight = packed(&[], 2, 0, precision, isa);
            let mut y = [f32::NAN; 4];
            weight.forward(&[], 2, &mut y);
            assert_eq!(y, [0.0; 4]);
        }
    }
}

#[test]
fn a_family_that_is_missing_is_an_error() {
    for isa in Isa::ALL {
        let made = PackedWeight::with_isa(Weight::F32(&[1.0]), 1, 1, Precision::F32, isa);
        match made {
            Ok(_) => assert!(isa.is_supported()),
            Err(error) => {
                assert!(!isa.is_supported());
                assert_eq!(error.exit_code(), 2);
                assert!(error.to_string().contains(isa.name()), "{error}");
            }
        }
    }
}
