//! Latent feedback: the state of the previous position enters layer 0 together with the token's embedding
//! (arXiv:2608.08888). The fusion's weights, the multi-pass objective, the plan of a training step.

mod multipass;
mod plan;
mod store;
mod warm_start;

pub use multipass::{passes, passes_with};
pub use plan::Plan;
pub use store::{CONFIG, FeedbackConfig, load, load_weights, save};
pub use warm_start::{Fit, warm_start};

use std::sync::Mutex;

use candle_core::Tensor;

use crate::error::Result;
use crate::kernels::fuse::FuseShape;
use crate::kernels::ops::FuseOp;
use crate::model::{Adapters, Layout, Model, Params};
use crate::random::{Key, Purpose};
use crate::recipe::{FeedbackRecipe, Form, Gate};

/// The fusion's weights: `W_U`, `W_G` (`[D, D]` each) and `norm [D]` in one flat variable.
pub struct Feedback {
    pub form: Form,
    pub gate: Gate,
    pub params: Params,
    shape: FuseShape,
}

/// A frozen base with what is trained on it.
pub struct Tuned {
    pub base: Model,
    pub lora: Option<Adapters>,
    pub feedback: Option<Feedback>,
}

impl Feedback {
    /// All weights 0: for loading.
    pub fn zeros(base: &Model, form: Form, gate: Gate) -> Result<Self> {
        let d = base.config().hidden_size;
        let mut layout = Layout::default();
        layout.push("latent_feedback.state_proj.weight", &[d, d]);
        layout.push("latent_feedback.token_gate.weight", &[d, d]);
        layout.push("latent_feedback.norm.weight", &[d]);
        let shape = FuseShape {
            hidden: d,
            eps: base.config().rms_norm_eps as f32,
            residual: form == Form::Residual,
            signed: gate == Gate::Signed,
        };
        Ok(Self { form, gate, params: layout.build(base.device())?, shape })
    }

    /// Weights as training starts: `W_G` uniform with standard deviation `1 / sqrt(D)`, `W_U` zero under `residual`
    /// (so that FUSED equals STANDARD) and as `W_G` under `replace`, `norm` the embedding table's root mean square.
    pub fn init(base: &Model, recipe: &FeedbackRecipe, seed: u64) -> Result<Self> {
        let feedback = Self::zeros(base, recipe.form, recipe.gate)?;
        let shape = feedback.shape;
        let key = Key::new(seed, Purpose::Init).at(u64::MAX);
        let bound = (3.0 / shape.hidden as f64).sqrt();
        let uniform = |i: usize| ((key.unit(i as u64) * 2.0 - 1.0) * bound) as f32;
        let mut values = vec![0.0; shape.parameters()];
        if !shape.residual {
            shape.state_proj().for_each(|i| values[i] = uniform(i));
        }
        shape.token_gate().for_each(|i| values[i] = uniform(i));
        values[shape.norm()].fill(base.embedding_rms());
        feedback.params.set(values)?;
        Ok(feedback)
    }

    /// Whether a fused input is its embedding, exactly: the `residual` form with `W_U = 0`, as training starts.
    pub fn adds_nothing(&self) -> Result<bool> {
        Ok(self.shape.residual && self.params.values()?[self.shape.state_proj()].iter().all(|&w| w == 0.0))
    }

    pub fn shape(&self) -> FuseShape {
        self.shape
    }

    /// Layer-0 inputs `[N, D]`: each of `rows` (each at least 1) fused of its embedding and the state of the row before
    /// it, the others as they are. `jitter [rows, D]` is added to the carried states. Gradients reach `states`, and the
    /// weights where `train`.
    pub fn fuse(
        &self,
        embeddings: &Tensor,
        states: &Tensor,
        rows: &[usize],
        jitter: Option<Vec<f32>>,
        train: bool,
    ) -> Result<Tensor> {
        let theta = self.params.tensor(train);
        if !embeddings.device().is_cpu() {
            return multipass::fuse_composed(self.shape, embeddings, states, rows, jitter, &theta);
        }
        let op = FuseOp {
            shape: self.shape,
            embeddings: embeddings.contiguous()?,
            rows: rows.to_vec(),
            jitter,
            keep: states.track_op() || theta.track_op(),
            saved: Mutex::new(None),
        };
        Ok(states.contiguous()?.apply_op2(&theta, op)?)
    }

    /// The input of one token (or of one for each document): `states [B, D]` that sampled it, `embeddings [B, D]`.
    pub fn fuse_next(&self, embeddings: &Tensor, states: &Tensor) -> Result<Tensor> {
        let theta = self.params.tensor(false);
        if !embeddings.device().is_cpu() {
            return multipass::fuse_rows(self.shape, embeddings, states, None, &theta);
        }
        use crate::kernels::{fuse, ops::with_slice};
        let (states, embeddings) = (states.contiguous()?, embeddings.contiguous()?);
        let fused = with_slice(&theta, |theta| {
            with_slice(&states, |h| with_slice(&embeddings, |e| fuse::forward(self.shape, theta, h, e, None).0))
        })???;
        Ok(Tensor::from_vec(fused, embeddings.shape(), embeddings.device())?)
    }
}
