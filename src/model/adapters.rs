//! Low-rank adapters as the trunk takes them: a flat variable a layer and where each module's parts lie in it. Made,
//! saved and merged by `crate::lora`.

use std::sync::Arc;

use super::params::Params;
use crate::kernels::layer::Deltas;

pub struct Adapters {
    /// One a layer.
    pub layers: Vec<Params>,
    /// One a layer.
    pub deltas: Vec<Arc<Deltas>>,
}

impl Adapters {
    /// Number of trained values.
    pub fn count(&self) -> usize {
        self.layers.iter().map(Params::len).sum()
    }
}
