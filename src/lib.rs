pub mod checkpoint;
pub mod cli;
pub mod corpus;
pub mod error;
pub mod kernels;
pub mod random;
pub mod recipe;

pub use error::{Error, Result};
