"""Times our benches and the same models in PyTorch on the same two cores, in turns, and prints medians and ratios.

    python benches/peer.py                                   # cargo bench for ours; about 6 minutes
    python benches/peer.py --ours './bench {name}' --rounds 5 --json peer.json
    python benches/peer.py --ours ''                         # PyTorch alone

Needs torch and transformers (made with torch 2.15.0, transformers 5.23.0, Python 3.11). Two peers:
  lean          a hand-written module: scaled_dot_product_attention, preallocated KV cache, no framework around it
  transformers  Qwen3ForCausalLM with sdpa and its DynamicCache, what most people run
Both hold the same weights; their logits, uncached and cached, are compared before anything is timed. Figures, named
as in benches/decoder.rs:
  decoder/forward     rows x length tokens, logits of every position, no gradient
  decoder/train_step  forward, mean cross-entropy, backward, AdamW
  decode/batch_{1,16} a prompt of 32 tokens prefilled, then 64 greedy tokens over a KV cache; only new tokens count
Sizes: 4.8M (d 256, 6 layers, 8/2 heads, ffn 768, vocab 512; 16 x 128) and micro (d 64, 4 layers, 4/2 heads, head_dim 16,
ffn 192, vocab 32; 32 x 48).

`--ours` is a shell command; `{name}` becomes the figure's name, and the command is run once per figure and round, between the peers.
A command without `{name}` is run once a round and times every figure. It must print JSON lines {"name", "tokens_per_s"};
other lines are ignored, and a command that fails, or prints no figure, stops the script.
A ratio above 1 means ours is faster. Ratios are taken inside a round and their median is shown, so that slow drift of the
machine cancels; beside it the smallest and largest.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
import transformers
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

CARGO = "cargo bench -q --bench decoder -- '^{name}$'"
PROMPT, NEW = 32, 64
SIZES = {
    "4.8M": (dict(vocab_size=512, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=2, head_dim=32), 16, 128),
    "micro": (dict(vocab_size=32, hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16), 32, 48),
}
WORK = ("decoder/forward", "decoder/train_step", "decode/batch_1", "decode/batch_16")


class Transformers:
    """Qwen3ForCausalLM as it is."""

    def __init__(self, dims):
        torch.manual_seed(1)
        config = Qwen3Config(**dims, max_position_embeddings=1024, rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6), attn_implementation="sdpa", bos_token_id=None, eos_token_id=None)
        self.model, self.config = Qwen3ForCausalLM(config), config

    def parameters(self):
        return self.model.parameters()

    def logits(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits

    def cache(self, rows, length):
        return DynamicCache(config=self.config)

    def step(self, ids, cache):
        return self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]


class Lean:
    """The same function over copies of the same weights."""

    def __init__(self, peer):
        c = self.c = peer.config
        self.w = {k: p.detach().clone().requires_grad_() for k, p in peer.model.named_parameters()}
        inv = 1e6 ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angle = torch.outer(torch.arange(c.max_position_embeddings).float(), inv).repeat(1, 2)
        self.cos, self.sin = angle.cos(), angle.sin()

    def parameters(self):
        return self.w.values()

    def norm(self, x, key):
        return F.rms_norm(x, x.shape[-1:], self.w[key], self.c.rms_norm_eps)

    def body(self, ids, cache=None):
        c, (b, n), w = self.c, ids.shape, self.w
        start = cache["length"] if cache else 0
        cos, sin = self.cos[start : start + n], self.sin[start : start + n]
        rotate = lambda x: x * cos + torch.cat((-x[..., c.head_dim // 2 :], x[..., : c.head_dim // 2]), -1) * sin
        x = F.embedding(ids, w["model.embed_tokens.weight"])
        for l in range(c.num_hidden_layers):
            p = f"model.layers.{l}."
            y = self.norm(x, p + "input_layernorm.weight")
            q, k, v = (F.linear(y, w[p + f"self_attn.{s}_proj.weight"]).view(b, n, -1, c.head_dim) for s in "qkv")
            q = rotate(self.norm(q, p + "self_attn.q_norm.weight").transpose(1, 2))
            k = rotate(self.norm(k, p + "self_attn.k_norm.weight").transpose(1, 2))
            v = v.transpose(1, 2)
            if cache:
                for kept, new in ((cache["k"][l], k), (cache["v"][l], v)):
                    kept[:, :, start : start + n] = new
                k, v = cache["k"][l][:, :, : start + n], cache["v"][l][:, :, : start + n]
            assert n == 1 or start == 0  # the causal mask below knows no longer past
            z = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1, enable_gqa=True)
            x = x + F.linear(z.transpose(1, 2).reshape(b, n, -1), w[p + "self_attn.o_proj.weight"])
            y = self.norm(x, p + "post_attention_layernorm.weight")
            y = F.silu(F.linear(y, w[p + "mlp.gate_proj.weight"])) * F.linear(y, w[p + "mlp.up_proj.weight"])
            x = x + F.linear(y, w[p + "mlp.down_proj.weight"])
        if cache:
            cache["length"] = start + n
        return self.norm(x, "model.norm.weight")

    def logits(self, ids):
        return F.linear(self.body(ids), self.w["model.embed_tokens.weight"])

    def cache(self, rows, length):
        c = self.c
        empty = lambda: [torch.empty(rows, c.num_key_value_heads, length, c.head_dim) for _ in range(c.num_hidden_layers)]
        return {"length": 0, "k": empty(), "v": empty()}

    def step(self, ids, cache):
        return F.linear(self.body(ids, cache)[:, -1], self.w["model.embed_tokens.weight"])


def greedy(model, ids, new):
    """[rows, prompt] -> [rows, new] ids."""
    with torch.inference_mode():
        cache, out = model.cache(len(ids), ids.shape[1] + new), []
        for _ in range(new):
            ids = model.step(ids, cache).argmax(-1, keepdim=True)
            out.append(ids)
        return torch.cat(out, 1)


def batch(dims, rows, length):
    """The ids of benches/decoder.rs."""
    return (torch.arange(rows * length) * 7919 % (dims["vocab_size"] - 3)).view(rows, length)


def close(mine, theirs, what):
    off = ((mine - theirs).abs().max() / theirs.abs().max()).item()
    if off > 1e-4:
        sys.exit(f"peer.py: the two PyTorch models differ in {what} by {off:.1e} (expected at most 1e-4): nothing was timed")


def agree(lean, peer, ids):
    with torch.inference_mode():
        whole = peer.logits(ids[:4, :40])
        close(lean.logits(ids[:4, :40]), whole, "logits")
        for model, name in ((lean, "lean"), (peer, "transformers")):
            cache = model.cache(4, 40)
            model.step(ids[:4, :PROMPT], cache)
            last = [model.step(ids[:4, t : t + 1], cache) for t in range(PROMPT, 40)]
            close(torch.stack(last, 1), whole[:, PROMPT:], f"cached logits of {name}")


def job(model, work, ids):
    """A function to time, and how many tokens one call is worth."""
    if work == "decoder/forward":
        def run():
            with torch.inference_mode():
                model.logits(ids)
        return run, ids.numel()
    if work == "decoder/train_step":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        def run():
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(model.logits(ids).flatten(0, 1), ids.flatten()).backward()
            optimizer.step()
        return run, ids.numel()
    rows = int(work.rsplit("_", 1)[1])
    prompt = ids[:rows, :PROMPT]
    return lambda: greedy(model, prompt, NEW), rows * NEW


def rate(run, tokens, seconds):
    """Median tokens per second of the calls that fit, five at least, after one call not counted."""
    run()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return tokens / statistics.median(times)


def ours(command, names, threads):
    """What the command says of these names."""
    result = subprocess.run(command, shell=True, capture_output=True, text=True, env=dict(os.environ, RAYON_NUM_THREADS=str(threads)))
    found = {}
    for line in result.stdout.splitlines():
        if line.lstrip().startswith("{"):
            try:
                row = json.loads(line)
                found[row["name"]] = float(row["tokens_per_s"])
            except (ValueError, KeyError, TypeError):
                continue
    missing = [n for n in names if n not in found]
    if result.returncode or missing:
        tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-5:])
        sys.exit(f"peer.py: `{command}` ended with {result.returncode} and gave no figure for {missing or 'nothing'}\n{tail}")
    return found


def measure(a):
    models = {}
    for size in a.sizes:
        dims, rows, length = SIZES[size]
        peer = Transformers(dims)
        lean = Lean(peer)
        ids = batch(dims, rows, length)
        agree(lean, peer, ids)
        models[size] = (lean, peer, ids)
    names = [f"{work}/{size}" for size in a.sizes for work in WORK]
    jobs = {f"{work}/{size}": [job(m, work, models[size][2]) for m in models[size][:2]] for size in a.sizes for work in WORK}
    seen = {n: {"ours": [], "lean": [], "transformers": []} for n in names}
    for r in range(a.rounds):
        print(f"round {r + 1} of {a.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        whole = ours(a.ours, names, a.threads) if a.ours and "{name}" not in a.ours else {}
        for n in names:
            for label, (run, tokens) in zip(("lean", "transformers"), jobs[n]):
                seen[n][label].append(rate(run, tokens, a.seconds))
            if a.ours:
                found = whole or ours(a.ours.replace("{name}", n), [n], a.threads)
                seen[n]["ours"].append(found[n])
    return seen


def ratio(row, label):
    if not row["ours"]:
        return ""
    r = [x / y for x, y in zip(row["ours"], row[label])]
    return f"{statistics.median(r):.2f} [{min(r):.2f}, {max(r):.2f}]"


def table(seen):
    print("| tokens/s | ours | PyTorch, lean | transformers | ours / lean | ours / transformers |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, row in seen.items():
        shown = [f"{statistics.median(row[k]):,.0f}" if row[k] else "" for k in ("ours", "lean", "transformers")]
        print("| " + " | ".join([name, *shown, ratio(row, "lean"), ratio(row, "transformers")]) + " |")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--ours", default=CARGO, help=f"shell command (default: {CARGO}); '' for none")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2.0, help="per peer, figure and round")
    p.add_argument("--threads", type=int, default=2, help="threads, and cores, for either side")
    p.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    p.add_argument("--json", metavar="FILE", help="every single figure, too")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    if hasattr(os, "sched_setaffinity"):  # our command inherits it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: a.threads])
    seen = measure(a)
    about = dict(torch=torch.__version__, transformers=transformers.__version__, threads=a.threads, rounds=a.rounds, ours=a.ours, load_after=os.getloadavg()[0])
    print(json.dumps(about))
    table(seen)
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"about": about, "tokens_per_s": seen}, f, indent=1)


if __name__ == "__main__":
    main()
