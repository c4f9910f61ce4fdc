"""One peer run: training steps and prefill of SmolLM2-135M's shape on torch + transformers + peft, on the CPU.

    torch_step.py {f32,bf16,autocast,compile-bf16} [--documents 4] [--tokens 256] [--rank 8] [--steps 5] [--threads 2]

Random weights: they cost what the real ones cost. Prints one JSON object like `examples/step_time.rs`.
"""

import argparse
import contextlib
import json
import resource
import time

import peft
import torch
import transformers

SHAPE = dict(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
    max_position_embeddings=8192,
)
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", choices=["f32", "bf16", "autocast", "compile-bf16"])
    for name, default in [("documents", 4), ("tokens", 256), ("rank", 8), ("steps", 5), ("threads", 2)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    dtype = torch.bfloat16 if "bf16" in args.variant else torch.float32
    config = transformers.LlamaConfig(**SHAPE)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.config.use_cache = False
    lora = peft.LoraConfig(r=args.rank, lora_alpha=16, target_modules=LINEAR, task_type="CAUSAL_LM")
    model = peft.get_peft_model(model, lora)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, weight_decay=0.0)
    forward = torch.compile(model) if args.variant.startswith("compile") else model
    ids = torch.randint(0, SHAPE["vocab_size"], (args.documents, args.tokens))
    autocast = torch.autocast("cpu", torch.bfloat16) if args.variant == "autocast" else contextlib.nullcontext()

    def train():
        with autocast:
            loss = forward(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def prefill():
        with torch.no_grad(), autocast:
            forward(input_ids=ids, logits_to_keep=1)

    def seconds(step):
        out = []
        for _ in range(args.steps + 1):
            began = time.perf_counter()
            step()
            out.append(time.perf_counter() - began)
        return out[1:]

    report = {
        "variant": args.variant,
        "tokens": ids.numel(),
        "train_seconds": seconds(train),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "prefill_seconds": seconds(prefill),
        "versions": {m.__name__: m.__version__ for m in (torch, transformers, peft)},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
