//! Reused f32 buffers. A step asks for the same sizes again and again; memory fresh from the system costs a page fault
//! every 4 KiB, which on small virtual machines is dearer than the arithmetic done in it.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Mutex;

static POOL: Mutex<BTreeMap<usize, Vec<Vec<f32>>>> = Mutex::new(BTreeMap::new());

/// A buffer that goes back to the pool when dropped.
pub struct Buffer(Vec<f32>);

/// Capacities are rounded up to eighths of a power of two, so that batches of nearly equal length share buffers.
fn class(len: usize) -> usize {
    let step = (len.next_power_of_two() / 8).max(64);
    len.div_ceil(step) * step
}

impl Buffer {
    /// `len` numbers of arbitrary (but initialised) content: for results that are written whole.
    pub fn scratch(len: usize) -> Self {
        let class = class(len);
        let reused = POOL.lock().expect("no thread panics holding the pool").get_mut(&class).and_then(Vec::pop);
        let mut data = reused.unwrap_or_else(|| vec![0.0; class]);
        data.resize(len, 0.0);
        Self(data)
    }

    pub fn zeros(len: usize) -> Self {
        let mut buffer = Self::scratch(len);
        buffer.0.fill(0.0);
        buffer
    }

    pub fn copy_of(x: &[f32]) -> Self {
        let mut buffer = Self::scratch(x.len());
        buffer.0.copy_from_slice(x);
        buffer
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let data = std::mem::take(&mut self.0);
        if data.capacity() > 0
            && let Ok(mut pool) = POOL.lock()
        {
            pool.entry(class(data.capacity())).or_default().push(data);
        }
    }
}

impl Deref for Buffer {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_fixed_points_and_never_short() {
        for len in [0, 1, 63, 64, 65, 1000, 1 << 20, (1 << 20) + 1, 786_432, 1_572_865] {
            assert!(class(len) >= len);
            assert_eq!(class(class(len)), class(len));
        }
    }
}
