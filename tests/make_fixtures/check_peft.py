#!/usr/bin/env python3
"""Load an adapter folder that fullband wrote with the real `peft` and compare logits.

    check_peft.py ADAPTER_DIR BASE_DIR EXPECTED.safetensors [--tolerance 1e-4]

ADAPTER_DIR            adapter_config.json and adapter_model.safetensors; other files are not looked at
BASE_DIR               a Hugging Face folder of the base
EXPECTED.safetensors   `ids` [B, T] (integers) and `logits` [B, T, V], as fullband computed them in f32 (STANDARD)

Prints one line; exit 1 where a tensor name of the file is not one that peft would write for this configuration, or the
logits differ by more than the tolerance (norm of the difference over norm).
"""

import argparse
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("expected", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()

    expected = load_file(args.expected)
    ids, logits = expected["ids"].long(), expected["logits"].double()
    base = transformers.AutoModelForCausalLM.from_pretrained(args.base, dtype=torch.float32).eval()
    model = peft.PeftModel.from_pretrained(base, args.adapter).eval()
    with torch.no_grad():
        got = model(input_ids=ids, use_cache=False).logits.double()
        with model.disable_adapter():
            plain = model(input_ids=ids, use_cache=False).logits.double()

    # peft only warns about names that it does not know, so the names are compared here.
    in_file = load_file(args.adapter / "adapter_model.safetensors")
    in_peft = peft.get_peft_model_state_dict(model)
    odd = sorted(set(in_file) ^ set(in_peft))
    odd += [k for k in set(in_file) & set(in_peft) if in_file[k].shape != in_peft[k].shape]
    error = ((got - logits).norm() / logits.norm()).item()
    change = ((got - plain).norm() / plain.norm()).item()
    ok = not odd and error <= args.tolerance and change > args.tolerance
    print(
        f"{'ok' if ok else 'FAILED'} peft {peft.__version__} transformers {transformers.__version__} "
        f"torch {torch.__version__}: {len(in_file)} tensors, relative error of the logits {error:.1e}, "
        f"the adapter moves them by {change:.1e}"
    )
    for name in odd:
        print("  name or shape that does not fit:", name)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
