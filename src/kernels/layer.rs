//! One decoder layer, forward and backward, over a flat batch: norm, attention, norm, SwiGLU, with adapters inside.
//! The backward keeps what is dear to make again (products, attention output) and makes the rest anew (norms,
//! SwiGLU); with `Keep::Input` it keeps nothing but the layer's input and runs the forward once more.

use super::attention::{self, BackwardTask, Task};
use super::elementwise::{Rotary, add, join_heads, rms_norm, rms_norm_backward, split_heads, swiglu, swiglu_backward};
use super::linear::{Linear, LowRank, Saved as LinearSaved};
use super::pool::Buffer;
use super::profile::{Part, timed};
use crate::random::Key;

/// The linear modules of a layer in the order of [`Layer::linears`], by their names in a checkpoint.
pub const MODULES: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];
const Q: usize = 0;
const K: usize = 1;
const V: usize = 2;
const O: usize = 3;
const GATE: usize = 4;
const UP: usize = 5;
const DOWN: usize = 6;

/// Adapters of a layer's modules.
pub type Deltas = [Option<LowRank>; 7];

#[derive(Clone, Copy, Debug)]
pub struct LayerShape {
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub eps: f32,
    pub window: Option<usize>,
}

impl LayerShape {
    fn attention(&self) -> attention::Shape {
        attention::Shape { head_dim: self.head_dim, window: self.window }
    }
}

/// A decoder layer's frozen weights.
pub struct Layer {
    pub shape: LayerShape,
    pub linears: [Linear; 7],
    /// `[D]`
    pub input_norm: Vec<f32>,
    /// `[D]`
    pub post_attention_norm: Vec<f32>,
    /// `[head_dim]` each, for q and k.
    pub head_norms: Option<(Vec<f32>, Vec<f32>)>,
}

/// The batch as a layer sees it; the same for all layers of a pass.
pub struct Pass<'a> {
    /// `[docs + 1]`
    pub offsets: &'a [usize],
    /// `[N]`: absolute position of each token in its document.
    pub positions: &'a [u32],
    pub rotary: &'a Rotary,
    /// `[N]`: a key for each token, where adapters drop inputs.
    pub dropout: Option<&'a [Key]>,
    /// Which layer this is, for the dropout keys.
    pub layer: usize,
}

impl Pass<'_> {
    fn keys(&self, module: usize, deltas: &Deltas) -> Option<Vec<Key>> {
        let keys = self.dropout?;
        deltas[module].as_ref().filter(|d| d.dropout > 0.0)?;
        let index = (self.layer * MODULES.len() + module) as u64;
        Some(keys.iter().map(|k| k.at(index)).collect())
    }
}

/// Keys and values of one layer for every document that is being decoded.
#[derive(Clone, Default)]
pub struct LayerCache {
    /// `[docs][kv_heads]`, each `[S, dh]`.
    pub k: Vec<Vec<Vec<f32>>>,
    pub v: Vec<Vec<Vec<f32>>>,
}

/// What a layer's backward needs, beside its input.
pub struct Saved {
    linears: [Option<LinearSaved>; 7],
    /// q and k as the product gave them, for the backward of the head norms.
    plain: Option<(Buffer, Buffer)>,
    /// `[H, N, dh]`, `[KV, N, dh]`, `[KV, N, dh]`: rotated.
    q: Buffer,
    k: Buffer,
    v: Buffer,
    /// `[H, N, dh]` and `[H, N]`
    out: Buffer,
    lse: Buffer,
    /// `[N, D]`: after attention.
    middle: Buffer,
    /// `[N, F]` each.
    gate: Buffer,
    up: Buffer,
}

impl Layer {
    /// `x [N, D]` -> `y [N, D]`. `theta`: the layer's adapters, flat.
    pub fn forward(
        &self,
        x: &[f32],
        theta: &[f32],
        deltas: &Deltas,
        pass: &Pass,
        cache: Option<&mut LayerCache>,
    ) -> (Vec<f32>, Saved) {
        let LayerShape { hidden: d, intermediate: f, heads, kv_heads, head_dim: dh, eps, .. } = self.shape;
        let n = x.len() / d;
        let mut linears: [Option<LinearSaved>; 7] = Default::default();
        let mut run = |module: usize, input: &[f32], y: &mut [f32]| {
            let delta = deltas[module].as_ref().map(|delta| (delta, theta));
            let keys = pass.keys(module, deltas);
            linears[module] = self.linears[module].forward(input, n, delta, keys.as_deref(), y);
        };

        let mut normed = Buffer::scratch(n * d);
        timed(Part::Norm, || rms_norm(x, &self.input_norm, eps, &mut normed));
        let mut plain_q = Buffer::scratch(n * heads * dh);
        let mut plain_k = Buffer::scratch(n * kv_heads * dh);
        let mut plain_v = Buffer::scratch(n * kv_heads * dh);
        run(Q, &normed, &mut plain_q);
        run(K, &normed, &mut plain_k);
        run(V, &normed, &mut plain_v);

        let rotary = Some((pass.rotary, pass.positions));
        let norms = self.head_norms.as_ref();
        let mut q = Buffer::scratch(plain_q.len());
        let mut k = Buffer::scratch(plain_k.len());
        let mut v = Buffer::scratch(plain_v.len());
        timed(Part::Heads, || split_heads(&plain_q, heads, dh, norms.map(|(q, _)| (&q[..], eps)), rotary, &mut q));
        timed(Part::Heads, || split_heads(&plain_k, kv_heads, dh, norms.map(|(_, k)| (&k[..], eps)), rotary, &mut k));
        timed(Part::Heads, || split_heads(&plain_v, kv_heads, dh, None, None, &mut v));
        let mut out = Buffer::scratch(q.len());
        let mut lse = Buffer::scratch(heads * n);
        timed(Part::Attention, || self.attend(pass.offsets, &q, &k, &v, cache, &mut out, &mut lse));
        let mut joined = plain_v;
        if joined.len() != out.len() {
            joined = Buffer::scratch(out.len());
        }
        timed(Part::Heads, || join_heads(&out, heads, dh, None, &mut joined));

        let mut middle = Buffer::scratch(n * d);
        run(O, &joined, &mut middle);
        add(&mut middle, x);
        timed(Part::Norm, || rms_norm(&middle, &self.post_attention_norm, eps, &mut normed));
        let mut gate = Buffer::scratch(n * f);
        let mut up = Buffer::scratch(n * f);
        run(GATE, &normed, &mut gate);
        run(UP, &normed, &mut up);
        let mut activated = Buffer::scratch(n * f);
        timed(Part::Swiglu, || swiglu(&gate, &up, &mut activated));
        let mut y = vec![0.0; n * d];
        run(DOWN, &activated, &mut y);
        add(&mut y, &middle);
        let plain = norms.is_some().then_some((plain_q, plain_k));
        (y, Saved { linears, plain, q, k, v, out, lse, middle, gate, up })
    }

    #[allow(clippy::too_many_arguments)]
    fn attend(
        &self,
        offsets: &[usize],
        q: &[f32],
        k: &[f32],
        v: &[f32],
        cache: Option<&mut LayerCache>,
        out: &mut [f32],
        lse: &mut [f32],
    ) {
        let LayerShape { heads, kv_heads, head_dim: dh, .. } = self.shape;
        let (n, group) = (q.len() / (heads * dh), heads / kv_heads);
        let docs = offsets.len() - 1;
        let mut outs = split_by_document(out, heads, n, dh, offsets);
        let mut lses = split_by_document(lse, heads, n, 1, offsets);
        let rows = |x: &'_ [f32], head: usize, doc: usize| -> std::ops::Range<usize> {
            debug_assert!(!x.is_empty() || n == 0);
            (head * n + offsets[doc]) * dh..(head * n + offsets[doc + 1]) * dh
        };
        let cache = cache.map(|cache| {
            for doc in 0..docs {
                for h in 0..kv_heads {
                    cache.k[doc][h].extend_from_slice(&k[rows(k, h, doc)]);
                    cache.v[doc][h].extend_from_slice(&v[rows(v, h, doc)]);
                }
            }
            &*cache
        });
        let mut tasks = Vec::with_capacity(docs * kv_heads);
        for h in 0..kv_heads {
            for doc in 0..docs {
                let heads = h * group..(h + 1) * group;
                tasks.push(Task {
                    q: heads.clone().map(|head| &q[rows(q, head, doc)]).collect(),
                    k: cache.map_or(&k[rows(k, h, doc)], |c| &c.k[doc][h]),
                    v: cache.map_or(&v[rows(v, h, doc)], |c| &c.v[doc][h]),
                    out: heads.clone().map(|head| std::mem::take(&mut outs[head][doc])).collect(),
                    lse: heads.map(|head| std::mem::take(&mut lses[head][doc])).collect(),
                });
            }
        }
        attention::forward(tasks, self.shape.attention());
    }

    /// Gradients with respect to the input (`[N, D]`, where `need_input`) and, added, to `gtheta`.
    #[allow(clippy::too_many_arguments)]
    pub fn backward(
        &self,
        x: &[f32],
        theta: &[f32],
        deltas: &Deltas,
        pass: &Pass,
        saved: Saved,
        gy: &[f32],
        need_input: bool,
        mut gtheta: Option<&mut [f32]>,
    ) -> Option<Vec<f32>> {
        let LayerShape { hidden: d, intermediate: f, heads, kv_heads, head_dim: dh, eps, .. } = self.shape;
        let n = x.len() / d;
        let Saved { linears, plain, q, k, v, out, lse, middle, mut gate, mut up } = saved;
        let mut back = |module: usize, input: &[f32], g: &mut [f32], gx: Option<(&mut [f32], bool)>| {
            let delta = deltas[module].as_ref().map(|delta| (delta, theta));
            let keys = pass.keys(module, deltas);
            let saved = linears[module].as_ref();
            let gtheta = gtheta.as_deref_mut();
            self.linears[module].backward(input, n, delta, keys.as_deref(), saved, g, gx, gtheta);
        };

        let mut g_middle = Buffer::copy_of(gy);
        let mut wide = Buffer::scratch(n * f);
        let mut g_wide = Buffer::scratch(n * f);
        timed(Part::Swiglu, || swiglu(&gate, &up, &mut wide));
        let mut g = Buffer::copy_of(gy);
        back(DOWN, &wide, &mut g, Some((&mut g_wide, false)));
        timed(Part::Swiglu, || swiglu_backward(&mut gate, &mut up, &g_wide));
        let mut normed = Buffer::scratch(n * d);
        timed(Part::Norm, || rms_norm(&middle, &self.post_attention_norm, eps, &mut normed));
        let mut g_normed = Buffer::scratch(n * d);
        back(GATE, &normed, &mut gate, Some((&mut g_normed, false)));
        back(UP, &normed, &mut up, Some((&mut g_normed, true)));
        timed(Part::Norm, || rms_norm_backward(&middle, &self.post_attention_norm, eps, &g_normed, &mut g_middle));

        let mut joined = Buffer::scratch(out.len());
        timed(Part::Heads, || join_heads(&out, heads, dh, None, &mut joined));
        let mut g_joined = Buffer::scratch(out.len());
        g.copy_from_slice(&g_middle);
        back(O, &joined, &mut g, Some((&mut g_joined, false)));
        let mut g_out = joined;
        timed(Part::Heads, || split_heads(&g_joined, heads, dh, None, None, &mut g_out));
        let (mut gq, mut gk, mut gv) = (Buffer::scratch(q.len()), Buffer::zeros(k.len()), Buffer::zeros(v.len()));
        timed(Part::Attention, || {
            self.attend_backward(pass.offsets, [&q, &k, &v, &out, &lse, &g_out], [&mut gq, &mut gk, &mut gv])
        });

        let rotary = Some((pass.rotary, pass.positions));
        let mut flat_q = g_joined;
        let mut flat_k = Buffer::scratch(k.len());
        let mut flat_v = Buffer::scratch(v.len());
        timed(Part::Heads, || join_heads(&gq, heads, dh, rotary, &mut flat_q));
        timed(Part::Heads, || join_heads(&gk, kv_heads, dh, rotary, &mut flat_k));
        timed(Part::Heads, || join_heads(&gv, kv_heads, dh, None, &mut flat_v));
        if let (Some((q_norm, k_norm)), Some((plain_q, plain_k))) = (&self.head_norms, &plain) {
            for (flat, norm, plain) in [(&mut flat_q, q_norm, plain_q), (&mut flat_k, k_norm, plain_k)] {
                let mut g = Buffer::zeros(flat.len());
                timed(Part::Norm, || rms_norm_backward(plain, norm, eps, flat, &mut g));
                *flat = g;
            }
        }
        timed(Part::Norm, || rms_norm(x, &self.input_norm, eps, &mut normed));
        let mut through = |module, g: &mut [f32], accumulate| {
            back(module, &normed, g, need_input.then_some((&mut g_normed[..], accumulate)));
        };
        through(Q, &mut flat_q, false);
        through(K, &mut flat_k, true);
        through(V, &mut flat_v, true);
        need_input.then(|| {
            let mut gx = g_middle.to_vec();
            timed(Part::Norm, || rms_norm_backward(x, &self.input_norm, eps, &g_normed, &mut gx));
            gx
        })
    }

    fn attend_backward(&self, offsets: &[usize], inputs: [&[f32]; 6], gradients: [&mut [f32]; 3]) {
        let LayerShape { heads, kv_heads, head_dim: dh, .. } = self.shape;
        let [q, k, v, out, lse, g] = inputs;
        let [gq, gk, gv] = gradients;
        let (n, group) = (q.len() / (heads * dh), heads / kv_heads);
        let mut gqs = split_by_document(gq, heads, n, dh, offsets);
        let mut gks = split_by_document(gk, kv_heads, n, dh, offsets);
        let mut gvs = split_by_document(gv, kv_heads, n, dh, offsets);
        let mut tasks = Vec::new();
        for h in 0..kv_heads {
            for doc in 0..offsets.len() - 1 {
                let part = |x: &'_ [f32], head: usize, width: usize| -> std::ops::Range<usize> {
                    debug_assert!(x.len() >= (head + 1) * n * width);
                    (head * n + offsets[doc]) * width..(head * n + offsets[doc + 1]) * width
                };
                let group = h * group..(h + 1) * group;
                tasks.push(BackwardTask {
                    q: group.clone().map(|head| &q[part(q, head, dh)]).collect(),
                    k: &k[part(k, h, dh)],
                    v: &v[part(v, h, dh)],
                    out: group.clone().map(|head| &out[part(out, head, dh)]).collect(),
                    lse: group.clone().map(|head| &lse[part(lse, head, 1)]).collect(),
                    g: group.clone().map(|head| &g[part(g, head, dh)]).collect(),
                    gq: group.map(|head| std::mem::take(&mut gqs[head][doc])).collect(),
                    gk: std::mem::take(&mut gks[h][doc]),
                    gv: std::mem::take(&mut gvs[h][doc]),
                });
            }
        }
        attention::backward(tasks, self.shape.attention());
    }
}

/// `[H, N, width]` as `[H][docs]` slices.
fn split_by_document<'a>(
    x: &'a mut [f32],
    heads: usize,
    n: usize,
    width: usize,
    offsets: &[usize],
) -> Vec<Vec<&'a mut [f32]>> {
    debug_assert_eq!(x.len(), heads * n * width);
    let mut rest = x;
    let mut out = Vec::with_capacity(heads);
    for _ in 0..heads {
        let mut documents = Vec::with_capacity(offsets.len() - 1);
        for document in offsets.windows(2) {
            let (head, tail) = rest.split_at_mut((document[1] - document[0]) * width);
            documents.push(head);
            rest = tail;
        }
        out.push(documents);
    }
    out
}
