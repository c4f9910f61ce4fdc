//! LoRA adapters: which modules get one, how they start, and PEFT's folder format. The arithmetic is the kernels'.

mod build;
mod peft;

pub use crate::model::Adapters;
pub use build::{LoraConfig, build, init, is_target, module_shape};
pub use peft::{CONFIG, load, save};
