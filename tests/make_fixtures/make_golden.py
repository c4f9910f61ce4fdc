#!/usr/bin/env python3
"""Write the golden fixtures, or check a folder of them.

    make_golden.py                 write ../fixtures/golden and ../fixtures/peft
    make_golden.py --check DIR..   recompute expected.* of finished folders from their model and adapter, and print the
                                   largest relative errors; exit 1 where one is above 1e-6 or a token differs
"""

import argparse
import json
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file

from reference import Feedback, Reference

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
VOCAB, HIDDEN, ROWS, TOKENS, CHANGES, NEW_TOKENS, PROMPT = 67, 32, 2, 12, 8, 12, 5
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
MODES = {"standard": ("standard", 0), "soft": ("soft", 0), "fused1": ("fused", 1), "fused2": ("fused", 2)}
# A greedy token is fixed by float32 arithmetic only where the best logit is clearly the best.
CLEAR_MARGIN = 0.01

COMMON = dict(
    vocab_size=VOCAB,
    hidden_size=HIDDEN,
    intermediate_size=56,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    initializer_range=0.2,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=0,
)
THETA = {"rope_theta": 10000.0, "rope_type": "default"}
LLAMA3 = {
    "rope_theta": 500000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(
        **COMMON, rms_norm_eps=1e-5, rope_parameters=THETA, tie_word_embeddings=True
    ),
    "llama3rope": lambda: transformers.LlamaConfig(
        **COMMON, rms_norm_eps=1e-5, rope_parameters=LLAMA3, tie_word_embeddings=False
    ),
    "qwen2": lambda: transformers.Qwen2Config(
        **COMMON, rms_norm_eps=1e-6, rope_parameters=THETA | {"rope_theta": 1e6}, tie_word_embeddings=True
    ),
    "qwen3": lambda: transformers.Qwen3Config(
        **COMMON, rms_norm_eps=1e-6, rope_parameters=THETA | {"rope_theta": 1e6}, tie_word_embeddings=True, head_dim=12
    ),
    "mistral": lambda: transformers.MistralConfig(
        **COMMON, rms_norm_eps=1e-5, rope_parameters=THETA, tie_word_embeddings=False, sliding_window=5
    ),
}
GOLDEN = [
    ("llama", "replace", "sigmoid"),
    ("llama3rope", "residual", "signed"),
    ("qwen2", "replace", "signed"),
    ("qwen3", "residual", "sigmoid"),
    ("mistral", "residual", "sigmoid"),
]
# name, golden folder of the base, LoraConfig
PEFT = [
    ("lora", "llama-replace-sigmoid", dict(target_modules=LINEAR)),
    ("rslora", "llama-replace-sigmoid", dict(target_modules=LINEAR, use_rslora=True)),
    ("dora", "llama-replace-sigmoid", dict(target_modules=LINEAR, use_dora=True)),
    ("dora-bias", "qwen2-replace-signed", dict(target_modules=LINEAR, use_dora=True)),
    ("subset", "llama-replace-sigmoid", dict(target_modules=["q_proj", "v_proj"])),
    ("dropout", "llama-replace-sigmoid", dict(target_modules=LINEAR, lora_dropout=0.1)),
    ("all-linear", "qwen3-residual-sigmoid", dict(target_modules="all-linear")),
]


def randomise(model):
    """Give every norm, bias and lora_B a value of its own: what starts as one or zero would hide a mistake."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.endswith("norm.weight"):
                p.copy_(1 + 0.2 * torch.randn_like(p))
            elif name.endswith(".bias"):
                p.copy_(0.2 * torch.randn_like(p))
            elif "lora_B" in name:
                p.copy_(0.15 * torch.randn_like(p))
            elif "lora_magnitude_vector" in name:
                p.mul_(1 + 0.2 * torch.randn_like(p))


def load_base(folder, dtype):
    # Eager attention would compute its softmax in float32.
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


def load_reference(folder, form, gate):
    """The model with its adapter and feedback weights, all in float64."""
    base = load_base(folder, torch.float64)
    model = peft.PeftModel.from_pretrained(base, folder / "adapter", is_trainable=True).double().eval()
    w = {k: v.double().requires_grad_() for k, v in load_file(folder / "adapter/latent_feedback.safetensors").items()}
    feedback = Feedback(
        form,
        gate,
        base.config.rms_norm_eps,
        w["latent_feedback.state_proj.weight"],
        w["latent_feedback.token_gate.weight"],
        w["latent_feedback.norm.weight"],
    )
    return Reference(model.base_model.model, feedback)


def lora_gradients(causal_lm):
    """Gradients of the adapter, named as in the adapter's file without peft's prefix."""
    out = {}
    for name, p in causal_lm.named_parameters():
        if p.requires_grad and p.grad is not None:
            # The file has no `.weight` after the magnitude.
            stored = name.replace(".default", "").replace("lora_magnitude_vector.weight", "lora_magnitude_vector")
            out["grad." + stored] = p.grad
    return out


def expectations(ref, ids, labels, prefix_cuts, prompt):
    """Everything that expected.json and expected.safetensors state, in float64."""
    states = ref.passes(ids, prefix_cuts)
    losses = [ref.loss(h, labels) for h in states]
    total = losses[0] + sum(losses[1:]) / (len(losses) - 1)
    total.backward()
    tensors = {f"hidden.pass{k}": h for k, h in enumerate(states, 1)}
    tensors |= {f"logits.pass{k}": ref.logits(h) for k, h in enumerate(states, 1)}
    tensors |= lora_gradients(ref.model)
    tensors["grad.latent_feedback.state_proj.weight"] = ref.feedback.state_proj.grad
    tensors["grad.latent_feedback.token_gate.weight"] = ref.feedback.token_gate.grad
    tensors["grad.latent_feedback.norm"] = ref.feedback.norm.grad
    with torch.no_grad():
        numbers = {
            "losses": [x.item() for x in losses],
            "total": total.item(),
            "decode": {"prompt": prompt}
            | {name: ref.decode(prompt, mode, p, NEW_TOKENS) for name, (mode, p) in MODES.items()},
            "state_change_rms": ref.trace(ids[:1], CHANGES),
        }
    return numbers, {k: v.detach() for k, v in tensors.items()}


def as_stored(tensors):
    return {k: v.to(torch.float32).contiguous() for k, v in tensors.items()}


def batch():
    """Token ids, labels with untrained stretches, and a cut inside and one at the end of a row."""
    ids = torch.randint(3, VOCAB, (ROWS, TOKENS))
    ids[:, 0] = 1
    labels = ids.clone()
    labels[0, :4] = -100
    labels[1, :2] = -100
    labels[1, 7] = -100
    cuts = torch.stack([torch.tensor([1, 5]), torch.tensor([torch.randint(2, 6, ()).item(), TOKENS])])
    return ids, labels, cuts


def write_golden(family, form, gate, seed):
    folder = FIXTURES / "golden" / f"{family}-{form}-{gate}"
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[family](), dtype=torch.float32)
    randomise(model)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)

    lora = peft.LoraConfig(r=3, lora_alpha=6, target_modules=LINEAR, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, lora)
    randomise(adapted.base_model)
    save_adapter(adapted, folder / "adapter")
    feedback = {
        "latent_feedback.state_proj.weight": torch.randn(HIDDEN, HIDDEN) / HIDDEN**0.5,
        "latent_feedback.token_gate.weight": torch.randn(HIDDEN, HIDDEN) * (1.5 / HIDDEN**0.5),
        "latent_feedback.norm.weight": 0.2 * (1 + 0.2 * torch.randn(HIDDEN)),
    }
    save_file(feedback, folder / "adapter/latent_feedback.safetensors")

    ids, labels, cuts = batch()
    ref = load_reference(folder, form, gate)
    with torch.no_grad():
        prompt = clear_prompt(ref)
    numbers, tensors = expectations(ref, ids, labels, cuts, prompt)
    head = {"lora": {"r": 3, "alpha": 6}, "form": form, "gate": gate, "rms_eps": ref.feedback.eps}
    (folder / "expected.json").write_text(json.dumps(head | numbers, indent=1) + "\n")
    ints = {k: v.to(torch.int32) for k, v in {"ids": ids, "labels": labels, "prefix_cuts": cuts}.items()}
    save_file(as_stored(tensors) | ints, folder / "expected.safetensors")
    print(folder.name, "losses", [round(x, 4) for x in numbers["losses"]])


def clear_prompt(ref):
    """A prompt whose greedy tokens do not depend on float32 rounding in any mode."""
    for _ in range(200):
        prompt = [1] + torch.randint(3, VOCAB, (PROMPT - 1,)).tolist()
        if all(ref.decode(prompt, m, p, NEW_TOKENS)["min_margin"] > CLEAR_MARGIN for m, p in MODES.values()):
            return prompt
    raise SystemExit("no prompt with clear greedy tokens: change the seed")


def save_adapter(adapted, folder):
    adapted.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    # peft writes the targets as a set, in the order of the process's string hashes.
    config = json.loads((folder / "adapter_config.json").read_text())
    config["target_modules"].sort()
    config["base_model_name_or_path"] = None
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def write_peft(name, base_name, config, seed):
    """An adapter that peft wrote on a base of ../fixtures/golden, with its logits, loss and gradients."""
    folder = FIXTURES / "peft" / name
    torch.manual_seed(seed)
    lora = peft.LoraConfig(r=3, lora_alpha=6, task_type="CAUSAL_LM", **config)
    adapted = peft.get_peft_model(load_base(FIXTURES / "golden" / base_name, torch.float32), lora)
    with torch.no_grad():
        for key, p in adapted.named_parameters():
            if "lora_B" in key:
                p.copy_(0.15 * torch.randn_like(p))
            elif "lora_magnitude_vector" in key:
                p.mul_(1 + 0.2 * torch.randn_like(p))
    save_adapter(adapted, folder)

    ids, labels, _ = batch()
    base = load_base(FIXTURES / "golden" / base_name, torch.float64)
    model = peft.PeftModel.from_pretrained(base, folder, is_trainable=True).double().eval()
    ref = Reference(model.base_model.model, None)
    states = ref.trunk(ref.embed(ids))
    loss = ref.loss(states, labels)
    loss.backward()
    with torch.no_grad():
        logits = ref.logits(states)
        with model.disable_adapter():
            plain = ref.logits(ref.trunk(ref.embed(ids)))
    tensors = as_stored({"logits": logits, "logits.base": plain} | lora_gradients(ref.model))
    ints = {"ids": ids.to(torch.int32), "labels": labels.to(torch.int32)}
    save_file(tensors | ints, folder / "expected.safetensors")
    expected = {"base": base_name, "peft_version": peft.__version__, "loss": loss.item()}
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    print("peft", name, "loss", round(loss.item(), 4), "max change", (logits - plain).abs().max().item())


def relative(got, want):
    want = want.double()
    return ((got.double() - want).norm() / want.norm().clamp_min(1e-30)).item()


def check(folder):
    """Print the largest relative errors between the folder's expectations and this reference; True when all agree."""
    stated = json.loads((folder / "expected.json").read_text())
    stored = load_file(folder / "expected.safetensors")
    ints = {k: stored.pop(k).long() for k in ["ids", "labels", "prefix_cuts"]}
    ref = load_reference(folder, stated["form"], stated["gate"])
    global NEW_TOKENS, CHANGES
    NEW_TOKENS, CHANGES = len(stated["decode"]["standard"]["tokens"]), len(stated["state_change_rms"])
    numbers, tensors = expectations(ref, ints["ids"], ints["labels"], ints["prefix_cuts"], stated["decode"]["prompt"])
    same_keys = set(stored) == set(tensors)
    worst = {}
    for key in sorted(set(stored) & set(tensors)):
        kind = key.split(".")[0] + (".feedback" if "latent_feedback" in key else "")
        worst[kind] = max(worst.get(kind, 0.0), relative(tensors[key], stored[key]))
    for key in ["losses", "state_change_rms"]:
        worst[key] = relative(torch.tensor(numbers[key]), torch.tensor(stated[key]))
    worst["total"] = relative(torch.tensor(numbers["total"]), torch.tensor(stated["total"]))
    tokens = all(numbers["decode"][m]["tokens"] == stated["decode"][m]["tokens"] for m in MODES)
    ok = same_keys and tokens and all(e < 1e-6 for e in worst.values())
    print(folder.name, "ok" if ok else "DIFFERS", "tokens", "equal" if tokens else "DIFFER", end=" ")
    print(" ".join(f"{k} {e:.1e}" for k, e in worst.items()), "" if same_keys else "other tensor names")
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", nargs="+", type=Path, metavar="DIR")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.check:
        results = [check(folder) for folder in args.check]
        sys.exit(0 if all(results) else 1)
    for seed, spec in enumerate(GOLDEN):
        write_golden(*spec, seed=11 + seed)
    for seed, spec in enumerate(PEFT):
        write_peft(*spec, seed=101 + seed)


if __name__ == "__main__":
    main()
