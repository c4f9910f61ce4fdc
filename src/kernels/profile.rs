//! Where a step's time goes, by part: wall time of the calling thread, which waits for the others. Off unless
//! [`enable`] was called; then a part costs two readings of the clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

static ENABLED: AtomicBool = AtomicBool::new(false);
static NANOSECONDS: [AtomicU64; Part::ALL.len()] = [const { AtomicU64::new(0) }; Part::ALL.len()];
static OPERATIONS: AtomicU64 = AtomicU64::new(0);

/// What time is spent on. Parts do not nest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Products of the layers with frozen weights.
    Frozen,
    /// Everything of the adapters: low-rank products, dropout.
    Adapter,
    Attention,
    /// Splitting heads, rotary positions and head norms, and back.
    Heads,
    Norm,
    Swiglu,
    /// Head and loss.
    Head,
    /// Feedback fusion.
    Fusion,
    /// AdamW, and the clipping in it.
    Optimizer,
}

impl Part {
    pub const ALL: [Self; 9] = [
        Self::Frozen,
        Self::Adapter,
        Self::Attention,
        Self::Heads,
        Self::Norm,
        Self::Swiglu,
        Self::Head,
        Self::Fusion,
        Self::Optimizer,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Frozen => "products with frozen weights",
            Self::Adapter => "adapters",
            Self::Attention => "attention",
            Self::Heads => "heads and rotary",
            Self::Norm => "norms",
            Self::Swiglu => "SwiGLU",
            Self::Head => "head and loss",
            Self::Fusion => "feedback fusion",
            Self::Optimizer => "optimizer",
        }
    }
}

/// Measures from now on.
pub fn enable() {
    ENABLED.store(true, Relaxed);
}

/// Runs `f`; its time is `part`'s.
#[inline]
pub fn timed<R>(part: Part, f: impl FnOnce() -> R) -> R {
    if !ENABLED.load(Relaxed) {
        return f();
    }
    let began = Instant::now();
    let result = f();
    NANOSECONDS[part as usize].fetch_add(began.elapsed().as_nanos() as u64, Relaxed);
    result
}

/// Counts multiply-adds of frozen products (head and layers), of which the machine's rate makes a floor.
#[inline]
pub fn count(multiply_adds: usize) {
    if ENABLED.load(Relaxed) {
        OPERATIONS.fetch_add(2 * multiply_adds as u64, Relaxed);
    }
}

/// Seconds of each part so far.
pub fn seconds() -> [(Part, f64); Part::ALL.len()] {
    Part::ALL.map(|part| (part, NANOSECONDS[part as usize].load(Relaxed) as f64 / 1e9))
}

/// Floating-point operations of frozen products so far (a multiply-add is two).
pub fn operations() -> u64 {
    OPERATIONS.load(Relaxed)
}
