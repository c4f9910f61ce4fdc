//! What a model is worth: losses per mode, contraction.

mod contraction;

pub use contraction::contraction;
