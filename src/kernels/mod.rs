//! CPU operations with their backward. Slices in, slices out, threads over rows and tasks whose sums have one order;
//! `ops` alone knows the tensor library. All matrices are row-major f32 unless a name says otherwise.

pub mod adamw;
pub mod attention;
pub mod elementwise;
pub mod fuse;
pub mod gemm;
pub mod head;
pub mod isa;
pub mod layer;
pub mod linear;
pub mod ops;
pub mod packed;
pub mod pool;
pub mod profile;
pub mod simd;
pub mod skinny;
