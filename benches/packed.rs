//! Frozen linear layers: every family of instructions that this machine runs, both precisions, and the `gemm` crate
//! for comparison. The shapes are SmolLM2-135M's; rows as in decoding, in a small batch and in training.
//!
//! `cargo bench --bench packed -- 'forward/1536x576/1024'` for a part; throughput is in floating-point operations.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use fullband::kernels::gemm;
use fullband::kernels::isa::Isa;
use fullband::kernels::packed::{PackedWeight, Precision, Weight};

/// (out, in): attention's square, its keys and values, up, down.
const SHAPES: [(usize, usize); 4] = [(576, 576), (192, 576), (1536, 576), (576, 1536)];
const ROWS: [usize; 4] = [1, 8, 128, 1024];
const HEAD: (usize, usize) = (49152, 576);

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919) % 2003) as f32 / 1000.0 - 1.0).collect()
}

fn bench_shape(criterion: &mut Criterion, (out, inner): (usize, usize), rows: &[usize]) {
    let w = values(out * inner);
    for &n in rows {
        let (x, mut y, mut gx) = (values(n * inner), vec![0.0; n * out], vec![0.0; n * inner]);
        for direction in ["forward", "backward"] {
            let mut group = criterion.benchmark_group(format!("{direction}/{out}x{inner}/{n}"));
            group.throughput(Throughput::Elements(2 * (n * out * inner) as u64));
            group.sample_size(20);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_supported()) {
                for precision in [Precision::Bf16, Precision::F32] {
                    let Ok(weight) = PackedWeight::with_isa(Weight::F32(&w), out, inner, precision, isa) else {
                        continue;
                    };
                    let id = BenchmarkId::from_parameter(format!("{isa:?}-{precision:?}"));
                    group.bench_function(id, |bencher| {
                        bencher.iter(|| match direction {
                            "forward" => weight.forward(black_box(&x), n, &mut y),
                            _ => weight.backward(black_box(&y), n, &mut gx, false),
                        });
                    });
                }
            }
            group.bench_function("gemm-crate-F32", |bencher| {
                bencher.iter(|| match direction {
                    "forward" => gemm::nt(n, out, inner, 1.0, black_box(&x), &w, 0.0, &mut y),
                    _ => gemm::nn(n, inner, out, 1.0, black_box(&y), &w, 0.0, &mut gx),
                });
            });
            group.finish();
        }
    }
}

fn packed(criterion: &mut Criterion) {
    for shape in SHAPES {
        bench_shape(criterion, shape, &ROWS);
    }
    bench_shape(criterion, HEAD, &[1, 128]);
}

criterion_group!(benches, packed);
criterion_main!(benches);
