#!/usr/bin/env python3
"""fullband against torch + peft on this machine, in turn, several rounds; medians, ratios, JSON.

    python3 benches/peers/run.py BASE [--rounds 3] [--steps 3] [--variants bf16,autocast,f32,compile-bf16]

BASE is SmolLM2-135M-Instruct as `fullband fetch` leaves it. Makes its own Python environment in target/peers, from
requirements.txt. Shape: 4 documents x 256 tokens, LoRA r = 8 on all linear layers, all tokens trained, one pass; fullband
also with two and three passes. Machines are noisy: within a round every side runs once, and ratios are medians of the
rounds' ratios. Writes target/peers/result.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WORK = ROOT / "target/peers"


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def environment():
    python = WORK / "env/bin/python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", WORK / "env"], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "-r", HERE / "requirements.txt"], check=True)
    return python


def rate(report, key):
    return report["tokens"] / statistics.median(report[key])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--variants", default="bf16,autocast,f32")
    parser.add_argument("--python", help="an interpreter that has the requirements already")
    args = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    python = args.python or environment()
    subprocess.run(["cargo", "build", "--release", "--lib", "--tests", "--bins", "--examples"], cwd=ROOT, check=True)
    ours = [ROOT / "target/release/examples/step_time", args.base, "--steps", args.steps]
    sides = {f"fullband K={k}": [*ours, "--passes", k] for k in (1, 2, 3)}
    for variant in args.variants.split(","):
        sides[f"torch {variant}"] = [python, HERE / "torch_step.py", variant, "--steps", args.steps]
    rounds = []
    for number in range(args.rounds):
        rounds.append({name: run(command) for name, command in sides.items()})
        line = [f"{name} {rate(r, 'train_seconds'):.0f}" for name, r in rounds[-1].items()]
        print(f"round {number + 1}, tok/s:", ", ".join(line), flush=True)
    (WORK / "result.json").write_text(json.dumps(rounds, indent=1) + "\n")

    def median(name, key):
        return statistics.median(rate(r[name], key) for r in rounds)

    def ratio(key, a="fullband K=1", b=None):
        return statistics.median(rate(r[a], key) / rate(r[b], key) for r in rounds)

    isa = rounds[0]["fullband K=1"]["isa"]
    print(f"\n{isa}; medians over {args.rounds} rounds; fullband / peer")
    print(f"{'':<20}{'train tok/s':>12}{'ratio':>8}{'prefill tok/s':>15}{'ratio':>8}{'peak GB':>9}")
    for name in sides:
        peak = max(r[name]["peak_bytes"] for r in rounds) / 1e9
        print(
            f"{name:<20}{median(name, 'train_seconds'):>12.0f}{ratio('train_seconds', b=name):>8.2f}"
            f"{median(name, 'prefill_seconds'):>15.0f}{ratio('prefill_seconds', b=name):>8.2f}{peak:>9.2f}"
        )
    for k in (2, 3):
        print(f"a step of K = {k} takes {ratio('train_seconds', b=f'fullband K={k}'):.2f} of K = 1")


if __name__ == "__main__":
    main()
