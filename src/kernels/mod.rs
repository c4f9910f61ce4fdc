//! CPU operations with their backward. Plain slices in, plain slices out, threads over rows; no tensor library here
//! but for the `CustomOp` seams. All matrices are row-major f32 unless a name says otherwise.

pub mod gemm;
pub mod packed;
