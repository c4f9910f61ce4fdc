#!/usr/bin/env python3
"""Load adapter folders that fullband wrote with the real `peft`, compare logits, and record what came out.

    check_peft.py [OURS_DIR]          default: ../fixtures/ours

OURS_DIR/<name>/    adapter_config.json and adapter_model.safetensors; base_model_name_or_path names the base's folder
                    relative to OURS_DIR/.. ; expected.safetensors: `ids` [B, T] and `logits` [B, T, V], as fullband
                    computed them in f32 (STANDARD)
OURS_DIR/peft.json  written: versions, and for each adapter the sha256 of what was loaded, tensor names that differ from
                    those peft would write, the relative error of the logits (norm of the difference over norm), and by
                    how much the adapter moves them

Prints one line an adapter; exit 1 where a name differs or an error is above 1e-5.
"""

import hashlib
import json
import sys
from pathlib import Path

import peft
import torch
import transformers
from safetensors.torch import load_file

TOLERANCE = 1e-5


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def relative(got, want):
    return ((got - want).norm() / want.norm()).item()


def check(folder):
    expected = load_file(folder / "expected.safetensors")
    ids, logits = expected["ids"].long(), expected["logits"].double()
    config = json.loads((folder / "adapter_config.json").read_text())
    base = folder.parent.parent / config["base_model_name_or_path"]
    base = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    model = peft.PeftModel.from_pretrained(base, folder).eval()
    with torch.no_grad():
        got = model(input_ids=ids, use_cache=False).logits.double()
        with model.disable_adapter():
            plain = model(input_ids=ids, use_cache=False).logits.double()
    # peft only warns about names that it does not know, so the names are compared here.
    in_file = load_file(folder / "adapter_model.safetensors")
    in_peft = peft.get_peft_model_state_dict(model)
    odd = sorted(set(in_file) ^ set(in_peft))
    odd += [k for k in set(in_file) & set(in_peft) if in_file[k].shape != in_peft[k].shape]
    return {
        "sha256": sha256(folder / "adapter_model.safetensors"),
        "config_sha256": sha256(folder / "adapter_config.json"),
        "tensors": len(in_file),
        "names_differ": odd,
        "error": relative(got, logits),
        "change": relative(got, plain),
    }


def main():
    default = Path(__file__).resolve().parent.parent / "fixtures/ours"
    ours = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    found = {folder.name: check(folder) for folder in sorted(ours.iterdir()) if folder.is_dir()}
    versions = {m.__name__: m.__version__ for m in (peft, transformers, torch)}
    (ours / "peft.json").write_text(json.dumps({"versions": versions, "adapters": found}, indent=1) + "\n")
    failed = False
    for name, of in found.items():
        ok = not of["names_differ"] and of["error"] <= TOLERANCE < of["change"]
        failed |= not ok
        print(f"{'ok' if ok else 'FAILED'} {name}: {of['tensors']} tensors, error {of['error']:.1e}, moved by {of['change']:.1e}")
        for key in of["names_differ"]:
            print("  name or shape that does not fit:", key)
    sys.exit(failed)


if __name__ == "__main__":
    main()
