//! Plain loops compiled for the vector instructions that the processor has at run time.

use pulp::{Arch, Simd, WithSimd};

/// Runs `f` compiled for the best instructions. Call it as `vectorised(#[inline(always)] || ..)`: a body that is not
/// inlined is compiled for the baseline. For the same reason `f` is called as `FnMut`: called as `FnOnce` a closure goes
/// through a shim, which is not inlined where the body is long.
#[inline(always)]
pub fn vectorised<R>(f: impl FnMut() -> R) -> R {
    Arch::new().dispatch(Loops(f))
}

struct Loops<F>(F);

impl<R, F: FnMut() -> R> WithSimd for Loops<F> {
    type Output = R;

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> R {
        (self.0)()
    }
}
