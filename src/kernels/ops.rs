//! The kernels as candle custom operations with their backward: the seam between slices and the gradient graph.
//! An operation keeps what its backward needs and gives it away there, so memory falls as the backward proceeds; a
//! second backward through the same graph is refused.

use std::sync::{Arc, Mutex};

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Storage, Tensor, bail};

use super::elementwise::{Rotary, rms_norm, rms_norm_backward};
use super::fuse::{self, FuseShape};
use super::head;
use super::layer::{Deltas, Layer, Pass, Saved};
use super::packed::PackedWeight;
use super::profile::{Part, timed};
use crate::random::Key;

fn slice<'a>(storage: &'a CpuStorage, layout: &Layout, name: &str) -> Result<&'a [f32]> {
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&storage.as_slice::<f32>()?[start..end]),
        None => bail!("{name}: input of shape {:?} is not contiguous", layout.shape()),
    }
}

/// Runs `f` on the tensor's values; the tensor must be contiguous f32 on the CPU.
pub fn with_slice<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => Ok(f(slice(storage, layout, "kernel")?)),
        _ => bail!("CPU kernel called with a tensor on {:?}", tensor.device().location()),
    }
}

fn tensor(values: Vec<f32>, like: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(values, like.shape(), like.device())
}

fn taken<T>(kept: &Mutex<Option<T>>, name: &str) -> Result<T> {
    match kept.lock().expect("kernel state").take() {
        Some(saved) => Ok(saved),
        None => bail!("{name}: backward asked for twice, or forward ran without gradients"),
    }
}

/// One pass over one batch as the layers see it, owned.
pub struct PassData {
    pub offsets: Vec<usize>,
    pub positions: Vec<u32>,
    pub rotary: Arc<Rotary>,
    pub dropout: Option<Vec<Key>>,
}

impl PassData {
    pub fn layer(&self, layer: usize) -> Pass<'_> {
        Pass {
            offsets: &self.offsets,
            positions: &self.positions,
            rotary: &self.rotary,
            dropout: self.dropout.as_deref(),
            layer,
        }
    }
}

/// A decoder layer: `(x [N, D], theta [P]) -> [N, D]`.
pub struct LayerOp {
    pub layer: Arc<Layer>,
    pub index: usize,
    pub deltas: Arc<Deltas>,
    pub pass: Arc<PassData>,
    /// Whether anything before or in the layer needs a gradient; else nothing is kept.
    pub keep: bool,
    /// Keep the input only and run the forward again in the backward.
    pub recompute: bool,
    pub saved: Mutex<Option<Saved>>,
}

impl CustomOp2 for LayerOp {
    fn name(&self) -> &'static str {
        "decoder-layer"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, theta: &CpuStorage, lt: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, theta) = (slice(x, lx, self.name())?, slice(theta, lt, self.name())?);
        let (y, saved) = self.layer.forward(x, theta, &self.deltas, &self.pass.layer(self.index), None);
        if self.keep && !self.recompute {
            *self.saved.lock().expect("kernel state") = Some(saved);
        }
        Ok((CpuStorage::F32(y), lx.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, theta: &Tensor, _y: &Tensor, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let pass = self.pass.layer(self.index);
        let g = g.contiguous()?;
        let (need_x, need_theta) = (x.track_op(), theta.track_op());
        let (gx, gtheta) = with_slice(x, |xs| {
            with_slice(theta, |ts| {
                with_slice(&g, |gs| {
                    let saved = if self.recompute {
                        self.layer.forward(xs, ts, &self.deltas, &pass, None).1
                    } else {
                        taken(&self.saved, self.name())?
                    };
                    let mut gtheta = need_theta.then(|| vec![0.0; ts.len()]);
                    let gx = self.layer.backward(xs, ts, &self.deltas, &pass, saved, gs, need_x, gtheta.as_deref_mut());
                    Ok::<_, candle_core::Error>((gx, gtheta))
                })
            })
        })????;
        Ok((gx.map(|gx| tensor(gx, x)).transpose()?, gtheta.map(|gt| tensor(gt, theta)).transpose()?))
    }
}

/// RMS norm with a frozen weight: `[N, D] -> [N, D]`.
pub struct NormOp {
    pub weight: Arc<Vec<f32>>,
    pub eps: f32,
}

impl CustomOp1 for NormOp {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = slice(x, layout, self.name())?;
        let mut y = vec![0.0; x.len()];
        timed(Part::Norm, || rms_norm(x, &self.weight, self.eps, &mut y));
        Ok((CpuStorage::F32(y), layout.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let g = g.contiguous()?;
        let gx = with_slice(x, |x| {
            with_slice(&g, |g| {
                let mut gx = vec![0.0; x.len()];
                timed(Part::Norm, || rms_norm_backward(x, &self.weight, self.eps, g, &mut gx));
                gx
            })
        })??;
        Ok(Some(tensor(gx, x)?))
    }
}

/// Head and loss: `states [N, D] -> []`, `sum_i weights[i] * -log p(tokens[i] | states[positions[i]])`.
pub struct LossOp {
    pub head: Arc<PackedWeight>,
    pub positions: Vec<u32>,
    pub tokens: Vec<u32>,
    pub weights: Vec<f32>,
    pub keep: bool,
    /// `[M, D]`
    pub gradient: Mutex<Option<Vec<f32>>>,
}

/// Rows of `x [N, D]`: `[positions.len(), D]`.
pub fn gather(x: &[f32], d: usize, positions: impl ExactSizeIterator<Item = usize>) -> Vec<f32> {
    let mut rows = Vec::with_capacity(positions.len() * d);
    for position in positions {
        rows.extend_from_slice(&x[position * d..(position + 1) * d]);
    }
    rows
}

impl CustomOp1 for LossOp {
    fn name(&self) -> &'static str {
        "head-loss"
    }

    fn cpu_fwd(&self, states: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let states = slice(states, layout, self.name())?;
        let rows = gather(states, self.head.in_features(), self.positions.iter().map(|&p| p as usize));
        let head::Loss { nll, gradient } =
            head::loss(&self.head, &rows, &self.tokens, self.keep.then_some(&self.weights[..]));
        *self.gradient.lock().expect("kernel state") = gradient;
        let sum: f64 = nll.iter().zip(&self.weights).map(|(&l, &w)| l as f64 * w as f64).sum();
        Ok((CpuStorage::F32(vec![sum as f32]), Shape::from(())))
    }

    fn bwd(&self, states: &Tensor, _loss: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let scale = g.to_scalar::<f32>()?;
        let gradient = taken(&self.gradient, self.name())?;
        let d = self.head.in_features();
        let mut gx = vec![0.0; states.elem_count()];
        for (row, &position) in gradient.chunks_exact(d).zip(&self.positions) {
            let out = &mut gx[position as usize * d..][..d];
            out.iter_mut().zip(row).for_each(|(o, r)| *o += scale * r);
        }
        Ok(Some(tensor(gx, states)?))
    }
}

/// Fusion: `(states [N, D], theta [P]) -> inputs [N, D]`. Row `rows[i]` of the result is fused of its own embedding and
/// the state of the row before; every other row is its embedding.
pub struct FuseOp {
    pub shape: FuseShape,
    /// `[N, D]`
    pub embeddings: Tensor,
    /// Fused rows, each at least 1.
    pub rows: Vec<usize>,
    /// `[rows.len(), D]`
    pub jitter: Option<Vec<f32>>,
    pub keep: bool,
    pub saved: Mutex<Option<fuse::Saved>>,
}

impl FuseOp {
    fn carried(&self, states: &[f32]) -> Vec<f32> {
        gather(states, self.shape.hidden, self.rows.iter().map(|&row| row - 1))
    }
}

impl CustomOp2 for FuseOp {
    fn name(&self) -> &'static str {
        "feedback-fusion"
    }

    fn cpu_fwd(
        &self,
        states: &CpuStorage,
        ls: &Layout,
        theta: &CpuStorage,
        lt: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (states, theta) = (slice(states, ls, self.name())?, slice(theta, lt, self.name())?);
        let d = self.shape.hidden;
        let mut inputs = with_slice(&self.embeddings, <[f32]>::to_vec)?;
        let e = gather(&inputs, d, self.rows.iter().copied());
        let carried = self.carried(states);
        let (fused, saved) =
            timed(Part::Fusion, || fuse::forward(self.shape, theta, &carried, &e, self.jitter.as_deref()));
        for (row, values) in self.rows.iter().zip(fused.chunks_exact(d)) {
            inputs[row * d..(row + 1) * d].copy_from_slice(values);
        }
        if self.keep {
            *self.saved.lock().expect("kernel state") = Some(saved);
        }
        Ok((CpuStorage::F32(inputs), ls.shape().clone()))
    }

    fn bwd(
        &self,
        states: &Tensor,
        theta: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let saved = taken(&self.saved, self.name())?;
        let d = self.shape.hidden;
        let (need_states, need_theta) = (states.track_op(), theta.track_op());
        let carried = with_slice(states, |states| self.carried(states))?;
        let g = with_slice(&g.contiguous()?, |g| gather(g, d, self.rows.iter().copied()))?;
        let (gh, gtheta) = with_slice(theta, |theta| {
            let mut gtheta = need_theta.then(|| vec![0.0; theta.len()]);
            let gh = timed(Part::Fusion, || {
                fuse::backward(self.shape, theta, &carried, &saved, &g, need_states, gtheta.as_deref_mut())
            });
            (gh, gtheta)
        })?;
        let gstates = gh.map(|gh| {
            let mut gstates = vec![0.0; states.elem_count()];
            for (row, values) in self.rows.iter().zip(gh.chunks_exact(d)) {
                gstates[(row - 1) * d..row * d].copy_from_slice(values);
            }
            tensor(gstates, states)
        });
        Ok((gstates.transpose()?, gtheta.map(|gt| tensor(gt, theta)).transpose()?))
    }
}
