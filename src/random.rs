//! Counter-based randomness. A value depends on the seed, on what it is for and on where it is used (step, document,
//! position), never on what was drawn before: a resumed run draws what an undisturbed one would have drawn, and a
//! document draws the same whatever it is packed with.

/// What a value is drawn for. Streams never overlap.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub enum Purpose {
    Shuffle = 1,
    Split = 2,
    Passes = 3,
    PrefixCut = 4,
    Jitter = 5,
    Dropout = 6,
    Init = 7,
    WarmStart = 8,
    Sampling = 9,
}

/// A key from which values are drawn by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key(u64);

impl Key {
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        Self(mix(seed ^ mix(purpose as u64)))
    }

    /// The key of a part: `key.at(step).at(document)`.
    pub fn at(self, index: u64) -> Self {
        Self(mix(self.0 ^ mix(index.wrapping_add(0x5851_f42d_4c95_7f2d))))
    }

    /// 64 uniform bits.
    #[inline]
    pub fn bits(self, index: u64) -> u64 {
        mix(self.0.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// Uniform in `[0, 1)`.
    #[inline]
    pub fn unit(self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`; `n` must not be 0.
    pub fn below(self, index: u64, n: u64) -> u64 {
        ((self.bits(index) as u128 * n as u128) >> 64) as u64
    }

    /// A permutation of `0..n` (Fisher-Yates).
    pub fn permutation(self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            order.swap(i, self.below(i as u64, i as u64 + 1) as usize);
        }
        order
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
#[inline]
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
