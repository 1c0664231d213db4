#!/usr/bin/env python3
"""What training and sweeps cost beyond one machine, and how long a step of several processes takes. Standard library only.

  scaling.py plan [--tokens 800] [--mfu 0.35] [--dollars 3]      the table of docs/scaling.md
  scaling.py check WHOLE PART SEVERAL --exchange 0.6              run folders of `train`: a step predicted and measured

`plan` counts: nothing in it was measured. Its assumptions are its arguments, and it prints them.
"""

import argparse
import csv
import statistics
from pathlib import Path

MODELS = {
    # layers, width, feed-forward, query heads, key-value heads, head width, vocabulary (head not tied)
    "Qwen3-8B": (36, 4096, 12288, 32, 8, 128, 151_672),
    "Qwen3-32B": (64, 5120, 25600, 64, 8, 128, 151_672),
}
RANK = 32


class Model:
    def __init__(self, name):
        layers, d, ff, q, kv, dh, vocab = MODELS[name]
        shapes = [(d, q * dh), (d, kv * dh), (d, kv * dh), (q * dh, d), (d, ff), (d, ff), (ff, d)]
        self.blocks = layers * sum(a * b for a, b in shapes)
        self.head = d * vocab
        self.weights = self.blocks + 2 * self.head
        self.lora = layers * sum(RANK * (a + b) for a, b in shapes)
        self.attention = 4 * layers * q * dh  # FLOPs of a token and each position that it sees
        self.cache = 2 * layers * kv * dh * 2  # bytes a position, bf16
        self.new_rows = 2 * 3 * d

    def forward(self, context):
        """FLOPs of a token after `context` others."""
        return 2 * (self.blocks + self.head) + self.attention * context

    def learnt(self, length):
        """FLOPs of a token that is learnt from: forward, again in the backward pass (blocks recomputed), and the gradients of
        activations; frozen matrices have no gradient of their own, and those of the factors are under a hundredth of it."""
        return 3 * self.forward(length / 2)


def plan(a):
    print(f"Assumed: {a.tokens} tokens a solution, {a.mfu:.0%} of {a.flops / 1e12:.0f} TFLOP/s a GPU in training, "
          f"${a.dollars:g} a GPU hour; decoding reads the weights once a step at {a.decode:.0%} of {a.bandwidth / 1e12:.1f} TB/s.\n")
    print("| model | run | tokens learnt or decoded | FLOPs | GPU hours | $ |\n| --- | --- | ---: | ---: | ---: | ---: |")
    for name in MODELS:
        m = Model(name)
        rows = 20_000
        supervised = [("phase 1 (3 passes)", 3), ("phase 2 (27 passes)", 27)]
        for run, passes in supervised:
            tokens = rows * passes * a.tokens
            flops = tokens * m.learnt(a.tokens)
            hours = flops / (a.mfu * a.flops) / 3600
            print(f"| {name} | {run} | {tokens / 1e6:.0f} M | {flops:.1e} | {hours:.0f} | {hours * a.dollars:.0f} |")
        rollouts, epochs = 800 * 5, 3
        decode = 800 * a.tokens * 2 * m.weights / (a.decode * a.bandwidth) / 3600  # five rows share a pass
        learn = rollouts * epochs * a.tokens * m.learnt(a.tokens) / (a.mfu * a.flops) / 3600
        flops = rollouts * a.tokens * (m.forward(a.tokens / 2) + epochs * m.learnt(a.tokens))
        print(f"| {name} | Switch-GRPO (800 steps, 5 rollouts) | {rollouts * a.tokens / 1e6:.1f} M | {flops:.1e} | "
              f"{decode + learn:.0f} | {(decode + learn) * a.dollars:.0f} |")
        problems, continuations, batch = 500, 24, 100
        tokens = problems * continuations * a.tokens
        hours = continuations * problems / batch * a.tokens * 2 * m.weights / (a.decode * a.bandwidth) / 3600
        print(f"| {name} | default interventions (500 problems, {continuations} continuations) | {tokens / 1e6:.1f} M | "
              f"{tokens * m.forward(a.tokens / 2):.1e} | {hours:.1f} | {hours * a.dollars:.0f} |")
    print("\n| model | weights, bf16 | trained with LoRA | one flat gradient | with whole embeddings | cache of 100 rows |\n"
          "| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in MODELS:
        m = Model(name)
        gradient = 4 * (m.lora + m.new_rows)
        whole = 4 * (m.lora + 2 * m.head)
        print(f"| {name} | {2 * m.weights / 1e9:.1f} GB | {m.lora / 1e6:.0f} M | {gradient / 1e9:.2f} GB | {whole / 1e9:.1f} GB | "
              f"{100 * m.cache * a.tokens / 1e9:.1f} GB |")
    print("\nAn all-reduce over n processes moves 2 (n - 1) / n of the gradient through each; beside a step of 8 solutions a process:\n")
    print("| model | compute a step | 1 GB/s (MPI through the host) | 40 GB/s (NCCL, one node) | whole embeddings at 1 GB/s |\n"
          "| --- | ---: | ---: | ---: | ---: |")
    for name in MODELS:
        m = Model(name)
        compute = 8 * a.tokens * m.learnt(a.tokens) / (a.mfu * a.flops)
        cells = []
        for size, rate in [(4 * (m.lora + m.new_rows), 1e9), (4 * (m.lora + m.new_rows), 40e9), (4 * (m.lora + 2 * m.head), 1e9)]:
            exchange = 2 * 7 / 8 * size / rate
            cells.append(f"{exchange:.2f} s ({compute / (compute + exchange):.0%})")
        print(f"| {name} | {compute:.2f} s | {' | '.join(cells)} |")
    print("\nIn brackets: the share of a step that is compute, with 8 processes.")


def milliseconds(run, phase, share):
    """A step of a phase: the quantile `share` of its steps, the first fifth left out; and their number."""
    with open(Path(run) / phase / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    rows = rows[len(rows) // 5:]
    steps = sorted(1e3 * float(r["positions"]) / float(r["tokens_per_s"]) for r in rows)
    return steps[int(share * (len(steps) - 1))], len(steps)


def check(a):
    """Each of n processes computes what one does on an nth of the batch (on fewer cores than processes they take turns), and
    then the gradient is summed in the time that `cargo test --features mpi --test mpi -- --ignored --nocapture exchange_rates`
    found for its size."""
    whole, _ = milliseconds(a.whole, a.phase, a.quantile)
    part, counted = milliseconds(a.part, a.phase, a.quantile)
    measured, steps = milliseconds(a.several, a.phase, a.quantile)
    predicted = part * max(1, a.processes / a.cores) + a.exchange
    print(f"{a.phase}, quantile {a.quantile:g} of the steps: one process {whole:.2f} ms; on a part of the batch {part:.2f} ms "
          f"({counted} steps); {a.processes} processes: predicted {predicted:.2f} ms, measured {measured:.2f} ms ({steps} steps), "
          f"{measured / predicted - 1:+.0%}; speed-up {whole / measured:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    p = commands.add_parser("plan")
    p.add_argument("--tokens", type=float, default=800)
    p.add_argument("--mfu", type=float, default=0.35)
    p.add_argument("--flops", type=float, default=989e12)
    p.add_argument("--bandwidth", type=float, default=3.35e12)
    p.add_argument("--decode", type=float, default=0.3)
    p.add_argument("--dollars", type=float, default=3.0)
    p.set_defaults(run=plan)
    c = commands.add_parser("check")
    c.add_argument("whole", help="a run folder of `train` by one process")
    c.add_argument("part", help="the same with batch / n")
    c.add_argument("several", help="the first by n processes")
    c.add_argument("--processes", type=int, default=2)
    c.add_argument("--exchange", type=float, required=True, help="milliseconds in which n processes sum the gradient")
    c.add_argument("--phase", default="base")
    c.add_argument("--cores", type=int, default=2)
    c.add_argument("--quantile", type=float, default=0.5, help="lower on a machine that does other work too")
    c.set_defaults(run=check)
    a = parser.parse_args()
    a.run(a)


main()
