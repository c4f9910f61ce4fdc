pub mod checkpoint;
pub mod cli;
pub mod corpus;
pub mod error;
pub mod eval;
pub mod feedback;
pub mod files;
pub mod infer;
pub mod kernels;
pub mod lora;
pub mod model;
pub mod random;
pub mod recipe;
pub mod train;
pub mod tuned;

pub use error::{Error, Result};
