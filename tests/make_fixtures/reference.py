"""A float64 reference of latent feedback, written on `transformers` and `peft` and on nothing of fullband's.

Owns the mathematics that the Rust code is tested against: fusion, the multi-pass objective, the decode modes and the
contraction trace. Everything is slow and plain: no cache, no packing, whole sequences of equal length, so that a
reader can compare it line by line with the description in the project's documentation.

Shapes: B rows, T tokens, D hidden size, V vocabulary.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


def exact_norms(model):
    """Make the RMS norms of `model` compute in the model's dtype; transformers computes them in float32."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):

            def forward(x, norm=module):
                return norm.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon))

            module.forward = forward


def rms(x, eps):
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + eps)


@dataclass
class Feedback:
    """The feedback weights and how they are used."""

    form: str  # replace | residual
    gate: str  # sigmoid | signed
    eps: float
    state_proj: torch.Tensor  # W_U [D, D]
    token_gate: torch.Tensor  # W_G [D, D]
    norm: torch.Tensor  # [D]

    def fuse(self, s, e):
        """`s`: carried states of the previous positions, already `rms`-normalised, `e`: plain inputs; both [.., D]."""
        v = s @ self.state_proj.T
        z = rms(e, self.eps) @ self.token_gate.T
        gate = torch.sigmoid(z) if self.gate == "sigmoid" else 2 * torch.sigmoid(z) - 1
        if self.form == "residual":
            return e + self.norm * v * gate
        return self.norm * rms(v * gate, self.eps)


class Reference:
    """A causal language model of transformers (plain or wrapped by peft, in float64) with feedback weights."""

    def __init__(self, causal_lm, feedback):
        self.model = causal_lm
        self.feedback = feedback
        exact_norms(causal_lm)

    def embed(self, ids):
        return self.model.get_input_embeddings()(ids)

    def trunk(self, inputs):
        """Inputs [B, T, D] -> states after the final norm [B, T, D]."""
        return self.model.model(inputs_embeds=inputs, use_cache=False).last_hidden_state

    def logits(self, states):
        return self.model.get_output_embeddings()(states)

    def carried(self, states):
        return rms(states, self.feedback.eps)

    def fused_inputs(self, states, plain, cuts):
        """Inputs of the next pass; the first `cuts[row]` positions of each row keep their plain input."""
        fused = self.feedback.fuse(self.carried(states)[:, :-1], plain[:, 1:])
        fused = torch.cat([plain[:, :1], fused], dim=1)
        position = torch.arange(plain.shape[1])
        return torch.where((position[None, :] < cuts[:, None])[..., None], plain, fused)

    def passes(self, ids, prefix_cuts):
        """States of pass 1 and of one feedback pass for every row of `prefix_cuts` [K-1, B]."""
        plain = self.embed(ids)
        states = [self.trunk(plain)]
        for cuts in prefix_cuts:
            states.append(self.trunk(self.fused_inputs(states[-1], plain, cuts)))
        return states

    def loss(self, states, labels):
        """Mean over the trained labels of all rows; position t predicts `labels[t + 1]`, -100 is not trained."""
        logits = self.logits(states[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)

    def trace(self, ids, changes):
        """rms(s^(k) - s^(k-1)) for k = 2 .. changes + 1, every position but the first of a row being fused."""
        plain = self.embed(ids)
        cuts = torch.ones(ids.shape[0], dtype=torch.long)
        states, out = self.trunk(plain), []
        for _ in range(changes):
            after = self.trunk(self.fused_inputs(states, plain, cuts))
            out.append((self.carried(after) - self.carried(states)).pow(2).mean().sqrt().item())
            states = after
        return out

    def decode(self, prompt, mode, prefill_passes, new_tokens):
        """Greedy tokens, and the smallest gap between the best and the second logit on the way."""
        plain = self.embed(torch.tensor([prompt]))
        inputs = plain
        if mode == "fused":
            for _ in range(prefill_passes):
                inputs = self.fused_inputs(self.trunk(inputs), plain, torch.tensor([1]))
        tokens, margin = [], float("inf")
        for _ in range(new_tokens):
            state = self.trunk(inputs)[:, -1:]
            best = self.logits(state)[0, 0].topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            token = best.indices[0].item()
            tokens.append(token)
            entry = self.embed(torch.tensor([[token]]))
            if mode != "standard":
                entry = self.feedback.fuse(self.carried(state), entry)
            inputs = torch.cat([inputs, entry], dim=1)
        return {"tokens": tokens, "min_margin": margin}
