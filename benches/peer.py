"""Times our benches and the same models in PyTorch and llama.cpp on the same two cores, in turns, and prints medians and ratios.

    python benches/peer.py                                   # cargo bench for ours; half an hour on a quiet machine
    python benches/peer.py --compile --json peer.json        # torch.compile as one more peer
    python benches/peer.py --ours './bench {name}' --rounds 5 --figures 'decode/.*smollm2'
    python benches/peer.py --ours ''                         # the peers alone
    python benches/peer.py --loaded 1 [--passive]            # beside one busy process
    python benches/peer.py --avx2 --figures 4.8M             # both sides with AVX2
    python benches/peer.py --memory                          # peak memory of the training steps instead of speed

Needs torch and transformers, peft for LoRA, llama-cpp-python and gguf for llama.cpp (made with torch 2.15.0, transformers 5.23.0,
peft 0.21.2, llama-cpp-python 0.3.36, gguf 0.19.0, Python 3.11). Peers:
  lean          a hand-written module: scaled_dot_product_attention, preallocated KV cache, no framework around it;
                LoRA as y = x W^T + (x A^T) B^T * scale
  transformers  Qwen3ForCausalLM or LlamaForCausalLM with sdpa and its DynamicCache, and PEFT's LoRA: what most people run
  compiled      (--compile) torch.compile of lean's forward, or of its forward and loss; compiling is not counted. Blank for
                decoding: lean's cache grows a position each step, so every step would be compiled anew, and a cache of fixed length
                would attend to all of it, which is another computation than the one timed here
  llama.cpp     decode/batch_1/smollm2 from a GGUF written here: f32 weights and cache, the last position's logits
All hold the same random weights; logits of the PyTorch models, uncached and cached, are compared before anything is timed, and so
are those with LoRA factors (B not zero) and the compiled ones; how many greedy tokens llama.cpp shares is said. Figures, named
as in benches/decoder.rs:
  decoder/forward     rows x length tokens, logits of every position, no gradient
  decoder/train_step  forward, mean cross-entropy, backward, AdamW (PyTorch's default one; fused=True was up to 5 % faster): one graph
  decoder/lora_step   the same through LoRA on all seven projections (rank 16, alpha 32, no dropout), all else frozen
  decode/batch_{1,16} a prompt of 32 tokens prefilled, then 64 greedy tokens over a KV cache; only new tokens count, the prefill's
                      time does as well
Ours has two rows for a step, and both stand against one PyTorch figure of the round: decoder/{train,lora}_two_workers is what
`switchyard train` does (half of the rows to each of two threads, gradients summed, global clip). That step and decoder/lora_step
learn each row's next tokens (all positions but the last) and clip; PyTorch takes all positions and does not clip.
Sizes: 4.8M (d 256, 6 layers, 8/2 heads, ffn 768, vocab 512; 16 x 128), micro (d 64, 4 layers, 4/2 heads, head_dim 16,
ffn 192, vocab 32; 32 x 48) and smollm2 (SmolLM2-135M's shape: Llama, d 576, 30 layers, 9/3 heads, head_dim 64, ffn 1536, vocab 49152;
4 x 256; LoRA and decoding only).

With decode/batch_1/smollm2 comes the bound that memory sets: every token reads all projections and the head once, so it takes at
least their bytes over the rate at which 512 MiB are read (a sum) or copied (bytes read and written), by one thread and by all.

`--ours` is a shell command; `{name}` becomes the figure's name, and the command is run once per figure and round, between the peers.
A command without `{name}` is run once a round and times every figure. It must print JSON lines {"name", "tokens_per_s"};
other lines are ignored, and a command that fails, or prints no figure, stops the script. A peer that is not installed, or a compiler
that fails, leaves its column blank, and a line under the table says why.
The machine must be quiet. With another process on one of two cores, PyTorch's threads wait for each other by spinning and
lose a factor of ten to a hundred while ours lose little: ratios from 1.6 to 997 were seen for one figure. So the script measures first and
between rounds how idle its cores are, and stops below 90 %; `--busy-ok` goes on and says under the table that it is no measurement.
`--loaded N` measures that case on purpose: N busy loops of niceness 0 on the same cores, from before the first round to the end.
`--passive` is what a careful user of a loaded machine sets for PyTorch and llama.cpp: OMP_WAIT_POLICY=PASSIVE and GOMP_SPINCOUNT=0,
waiting threads sleep. The default is theirs: threads spin.
`--avx2` measures what most people's processors do: SWITCHYARD_CPU for ours, ATEN_CPU_CAPABILITY, DNNL_MAX_CPU_ISA and
MKL_ENABLE_INSTRUCTIONS for PyTorch. Under it ours multiplies many rows of f32 with loops of its own, as `gemm` cannot be asked for less.
Each peer runs with one thread and with `--threads`, and its faster result counts: small steps are often faster on one.

A ratio above 1 means ours is faster. Ratios are taken inside a round and their median is shown, so that slow drift of the
machine cancels; beside it the smallest and largest.

`--memory` runs every training step in a process of its own, for `--seconds` and three steps at least with `--threads` threads, and
prints that process's peak resident set (ru_maxrss). For PyTorch the peak until its imports were done, before there is a model, stands
beside it: a build with CUDA imports hundreds of MiB more than one without, and AdamW imports torch._dynamo. Ours is the newest
binary that `cargo bench --profile dev --no-run` names, or `--ours`: a binary, or a command with `{name}`, but not cargo itself.
"""

import argparse
import contextlib
import importlib.metadata
import json
import os
import re
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F

CARGO = "cargo bench -q --profile dev --bench decoder -- '^{name}$'"
BUILD = "cargo bench --profile dev --no-run --bench decoder --message-format=json"
PROMPT, NEW = 32, 64
RANK, ALPHA = 16, 32
QUIET = 0.9
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
AVX2 = {"SWITCHYARD_CPU": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "DNNL_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
FULL = ("decoder/forward", "decoder/train_step", "decoder/train_two_workers", "decode/batch_1", "decode/batch_16")
LORA = ("decoder/lora_step", "decoder/lora_two_workers", "decode/batch_1", "decode/batch_16")
QWEN3 = dict(qk_norm=True, rms_norm_eps=1e-6, rope_theta=1e6, max_position_embeddings=1024)
LLAMA = dict(qk_norm=False, rms_norm_eps=1e-5, rope_theta=1e5, max_position_embeddings=1024)
SIZES = {
    "4.8M": (dict(vocab_size=512, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=2, head_dim=32, **QWEN3), 16, 128, FULL),
    "micro": (dict(vocab_size=32, hidden_size=64, intermediate_size=192, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, **QWEN3), 32, 48, FULL),
    "smollm2": (dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, head_dim=64, **LLAMA), 4, 256, LORA),
}
TWO_WORKERS = {"decoder/train_two_workers": "decoder/train_step", "decoder/lora_two_workers": "decoder/lora_step"}
STEPS = ("decoder/train_step", "decoder/lora_step")
GGUF = "decode/batch_1/smollm2"
SPIN = """import os, sys
try:
    os.setpriority(os.PRIO_PROCESS, 0, 0)
except OSError:
    pass
while os.getppid() == int(sys.argv[1]):
    for _ in range(10**6):
        pass
"""
# A process's ru_maxrss is at least what its parent held when it was started; this parent holds little.
PEAK = "import resource, subprocess, sys; r = subprocess.call(sys.argv[1], shell=True); print('peak', resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, flush=True); sys.exit(r)"


def weights(dims):
    """Random weights under Hugging Face's names."""
    c, draw = SimpleNamespace(**dims), torch.Generator().manual_seed(1)
    normal = lambda *shape: torch.empty(shape).normal_(std=0.02, generator=draw)
    d, ffn, heads, kv = c.hidden_size, c.intermediate_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    w = {"model.embed_tokens.weight": normal(c.vocab_size, d), "model.norm.weight": torch.ones(d)}
    shapes = {"self_attn.q_proj": (heads, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d), "self_attn.o_proj": (d, heads), "mlp.gate_proj": (ffn, d), "mlp.up_proj": (ffn, d), "mlp.down_proj": (d, ffn)}
    norms = {"input_layernorm": d, "post_attention_layernorm": d} | ({"self_attn.q_norm": c.head_dim, "self_attn.k_norm": c.head_dim} if c.qk_norm else {})
    for l in range(c.num_hidden_layers):
        w |= {f"model.layers.{l}.{k}.weight": normal(*shape) for k, shape in shapes.items()}
        w |= {f"model.layers.{l}.{k}.weight": torch.ones(n) for k, n in norms.items()}
    return w


def factors(w):
    """Random LoRA factors (A, B) of every projection, B not zero."""
    draw = torch.Generator().manual_seed(2)
    normal = lambda *shape: torch.empty(shape).normal_(std=0.02, generator=draw)
    return {k: (normal(RANK, x.shape[1]), normal(x.shape[0], RANK)) for k, x in w.items() if "_proj." in k}


def entropy(logits, ids):
    return F.cross_entropy(logits.flatten(0, 1), ids.flatten())


class Transformers:
    """Qwen3ForCausalLM or LlamaForCausalLM as it is, with these weights or its own."""

    def __init__(self, dims, w=None, lora=None):
        from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

        c = dict(dims)
        kind, config = (Qwen3ForCausalLM, Qwen3Config) if c.pop("qk_norm") else (LlamaForCausalLM, LlamaConfig)
        rope = dict(rope_type="default", rope_theta=c.pop("rope_theta"))
        self.config, self.Cache = config(**c, tie_word_embeddings=True, rope_parameters=rope, attn_implementation="sdpa", bos_token_id=None, eos_token_id=None), DynamicCache
        self.model = kind(self.config)
        self.load(w or {})
        if lora is not None:
            from peft import LoraConfig, get_peft_model

            self.model = get_peft_model(self.model, LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=[f"{p}_proj" for p in ("q", "k", "v", "o", "gate", "up", "down")]))
            name = lambda key, x: f"base_model.model.{key.removesuffix('.weight')}.lora_{x}.default.weight"
            self.load({name(key, x): f for key, pair in lora.items() for x, f in zip("AB", pair)})

    def load(self, w):
        unknown = self.model.load_state_dict(w, strict=False).unexpected_keys
        assert not unknown, f"no place for {unknown[0]}"

    def parameters(self):
        return [p for p in self.model.parameters() if p.requires_grad]

    def logits(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits

    def loss(self, ids):
        return entropy(self.logits(ids), ids)

    def cache(self, rows, length):
        return self.Cache(config=self.config)

    def step(self, ids, cache):
        return self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]


class Lean:
    """The same function over these very tensors; with factors, they alone are trained."""

    def __init__(self, dims, w, lora=None):
        c = self.c = SimpleNamespace(**dims)
        self.w = {k: x.detach().requires_grad_(lora is None) for k, x in w.items()}
        self.lora = {k: tuple(f.requires_grad_() for f in pair) for k, pair in (lora or {}).items()}
        inv = c.rope_theta ** (-torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        angle = torch.outer(torch.arange(c.max_position_embeddings).float(), inv).repeat(1, 2)
        self.cos, self.sin = angle.cos(), angle.sin()

    def parameters(self):
        return [f for pair in self.lora.values() for f in pair] or list(self.w.values())

    def norm(self, x, key):
        return F.rms_norm(x, x.shape[-1:], self.w[key], self.c.rms_norm_eps)

    def linear(self, x, key):
        y = F.linear(x, self.w[key])
        if key not in self.lora:
            return y
        a, b = self.lora[key]
        return y + F.linear(F.linear(x, a), b) * (ALPHA / RANK)

    def body(self, ids, cache=None):
        c, (b, n) = self.c, ids.shape
        start = cache["length"] if cache else 0
        cos, sin = self.cos[start : start + n], self.sin[start : start + n]
        rotate = lambda x: x * cos + torch.cat((-x[..., c.head_dim // 2 :], x[..., : c.head_dim // 2]), -1) * sin
        x = F.embedding(ids, self.w["model.embed_tokens.weight"])
        for l in range(c.num_hidden_layers):
            p = f"model.layers.{l}."
            y = self.norm(x, p + "input_layernorm.weight")
            q, k, v = (self.linear(y, p + f"self_attn.{s}_proj.weight").view(b, n, -1, c.head_dim) for s in "qkv")
            if c.qk_norm:
                q, k = self.norm(q, p + "self_attn.q_norm.weight"), self.norm(k, p + "self_attn.k_norm.weight")
            q, k, v = rotate(q.transpose(1, 2)), rotate(k.transpose(1, 2)), v.transpose(1, 2)
            if cache:
                for kept, new in ((cache["k"][l], k), (cache["v"][l], v)):
                    kept[:, :, start : start + n] = new
                k, v = cache["k"][l][:, :, : start + n], cache["v"][l][:, :, : start + n]
            assert n == 1 or start == 0  # the causal mask below knows no longer past
            z = F.scaled_dot_product_attention(q, k, v, is_causal=n > 1, enable_gqa=True)
            x = x + self.linear(z.transpose(1, 2).reshape(b, n, -1), p + "self_attn.o_proj.weight")
            y = self.norm(x, p + "post_attention_layernorm.weight")
            y = F.silu(self.linear(y, p + "mlp.gate_proj.weight")) * self.linear(y, p + "mlp.up_proj.weight")
            x = x + self.linear(y, p + "mlp.down_proj.weight")
        if cache:
            cache["length"] = start + n
        return self.norm(x, "model.norm.weight")

    def logits(self, ids):
        return F.linear(self.body(ids), self.w["model.embed_tokens.weight"])

    def loss(self, ids):
        return entropy(self.logits(ids), ids)

    def cache(self, rows, length):
        c = self.c
        empty = lambda: [torch.empty(rows, c.num_key_value_heads, length, c.head_dim) for _ in range(c.num_hidden_layers)]
        return {"length": 0, "k": empty(), "v": empty()}

    def step(self, ids, cache):
        return F.linear(self.body(ids, cache)[:, -1], self.w["model.embed_tokens.weight"])


class Compiled:
    """Lean, its forward and loss through torch.compile, one graph each or an error."""

    def __init__(self, lean):
        import torch._inductor.config

        torch._inductor.config.compile_threads = 1  # no helper processes beside the measurement
        torch._dynamo.config.recompile_limit = 64  # one graph a size and number of threads
        self.parameters = lean.parameters
        self.logits, self.loss = (torch.compile(f, fullgraph=True, dynamic=False) for f in (lean.logits, lean.loss))


class LlamaCpp:
    """The model in llama.cpp, from a GGUF that is gone once it is read."""

    def __init__(self, dims, w):
        import llama_cpp

        self.lib = llama_cpp
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.gguf")
            write_gguf(path, dims, w)
            self.llm = llama_cpp.Llama(path, n_ctx=PROMPT + NEW, n_batch=PROMPT, use_mmap=False, type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, verbose=False)

    def threads(self, n):
        self.lib.llama_set_n_threads(self.llm.ctx, n, n)

    def greedy(self, ids, new):
        """[prompt] -> [new] ids."""
        self.llm.reset()
        out = []
        for _ in range(new):
            self.llm.eval(ids)
            logits = self.lib.llama_get_logits_ith(self.llm.ctx, -1)
            ids = [int(self.view(logits).argmax())]
            out += ids
        return out

    def view(self, logits):
        import numpy

        return numpy.ctypeslib.as_array(logits, shape=(self.llm.n_vocab(),))


def write_gguf(path, dims, w):
    """A Llama in f32 without a tokenizer."""
    import gguf

    c, out = SimpleNamespace(**dims), gguf.GGUFWriter(path, "llama")
    out.add_context_length(c.max_position_embeddings)
    out.add_embedding_length(c.hidden_size)
    out.add_block_count(c.num_hidden_layers)
    out.add_feed_forward_length(c.intermediate_size)
    out.add_head_count(c.num_attention_heads)
    out.add_head_count_kv(c.num_key_value_heads)
    out.add_layer_norm_rms_eps(c.rms_norm_eps)
    out.add_rope_freq_base(c.rope_theta)
    out.add_rope_dimension_count(c.head_dim)
    out.add_vocab_size(c.vocab_size)
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_tokenizer_model("no_vocab")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c.num_hidden_layers)
    for key, x in w.items():
        x = x.detach()
        if "q_proj" in key or "k_proj" in key:  # llama.cpp rotates neighbours, Hugging Face halves
            x = x.view(-1, 2, c.head_dim // 2, c.hidden_size).transpose(1, 2).reshape(x.shape)
        out.add_tensor(names.get_name(key, try_suffixes=(".weight",)), x.numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def greedy(model, ids, new):
    """[rows, prompt] -> [rows, new] ids."""
    with torch.inference_mode():
        cache, out = model.cache(len(ids), ids.shape[1] + new), []
        for _ in range(new):
            ids = model.step(ids, cache).argmax(-1, keepdim=True)
            out.append(ids)
        return torch.cat(out, 1)


def batch(size):
    """The ids of benches/decoder.rs."""
    dims, rows, length, _ = SIZES[size]
    return (torch.arange(rows * length) * 7919 % (dims["vocab_size"] - 3)).view(rows, length)


def close(mine, theirs, what):
    off = ((mine - theirs).abs().max() / theirs.abs().max()).item()
    if not off <= 1e-4:
        sys.exit(f"peer.py: two PyTorch models differ in {what} by {off:.1e} (expected at most 1e-4): nothing was timed")


def agree(lean, peer, ids, size):
    with torch.inference_mode():
        whole = peer.logits(ids[:4, :40])
        close(lean.logits(ids[:4, :40]), whole, f"logits of {size}")
        for model, name in ((lean, "lean"), (peer, "transformers")):
            cache = model.cache(4, 40)
            model.step(ids[:4, :PROMPT], cache)
            last = [model.step(ids[:4, t : t + 1], cache) for t in range(PROMPT, 40)]
            close(torch.stack(last, 1), whole[:, PROMPT:], f"cached logits of {name}, {size}")
    counts = [sum(p.numel() for p in model.parameters()) for model in (lean, peer)]
    if counts[0] != counts[1]:
        sys.exit(f"peer.py: {size}: lean trains {counts[0]} parameters, transformers {counts[1]}: nothing was timed")


def job(model, work, ids):
    """A function to time, how many tokens one call is worth, and how it is told its threads."""
    use = torch.set_num_threads
    if work == "decoder/forward":
        def run():
            with torch.inference_mode():
                model.logits(ids)
        return run, ids.numel(), use
    if work in STEPS:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        def run():
            optimizer.zero_grad(set_to_none=True)
            model.loss(ids).backward()
            optimizer.step()
        return run, ids.numel(), use
    prompt = prompts(ids, int(work.rsplit("_", 1)[1]))
    if isinstance(model, LlamaCpp):
        one = prompt[0].tolist()
        return lambda: model.greedy(one, NEW), NEW, model.threads
    return lambda: greedy(model, prompt, NEW), len(prompt) * NEW, use


def prompts(ids, rows):
    return ids[torch.arange(rows) % len(ids), :PROMPT]


def idle(cores, seconds=1.0):
    """Share of these cores' time that nobody used, while this script sleeps; None where the system does not say."""
    def read():
        with open("/proc/stat") as f:
            rows = {r.split()[0]: [int(x) for x in r.split()[1:9]] for r in f if r.startswith("cpu")}
        rows = [rows[f"cpu{c}"] for c in cores]
        return sum(map(sum, rows)), sum(r[3] + r[4] for r in rows)
    try:
        before = read()
        time.sleep(seconds)
        after = read()
    except (OSError, KeyError):
        return None
    return (after[1] - before[1]) / max(after[0] - before[0], 1)


def best(job, a):
    """The better of one thread and all."""
    run, tokens, use = job
    rates = []
    for threads in sorted({1, a.threads}):
        use(threads)
        rates.append(rate(run, tokens, a.seconds))
    return max(rates)


def rate(run, tokens, seconds):
    """Median tokens per second of the calls that fit, three at least, after one call not counted."""
    run()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return tokens / statistics.median(times)


def memory_rates(threads):
    """GB/s over 512 MiB, far more than any cache here: read, and copied (read and written)."""
    x = torch.ones(2**27)
    y, found = torch.ones_like(x), {}
    for n in sorted({1, threads}):
        torch.set_num_threads(n)
        for what, f, passes in (("read", x.sum, 1), ("copy", lambda: y.copy_(x), 2)):
            f()
            times = []
            for _ in range(5):
                start = time.perf_counter()
                f()
                times.append(time.perf_counter() - start)
            found[f"{what}, {n} thread{'s'[: n > 1]}"] = passes * x.nbytes / statistics.median(times) / 1e9
    return found


def token_bytes(dims):
    """What one token reads of the weights: every projection, and the head (tied to the embedding) once."""
    c = SimpleNamespace(**dims)
    d, heads, kv = c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    return 4 * (c.num_hidden_layers * (2 * d * heads + 2 * d * kv + 3 * d * c.intermediate_size) + c.vocab_size * d)


def environment(threads):
    return dict(os.environ, RAYON_NUM_THREADS=str(threads))


def rows_of(text):
    """{name: tokens_per_s} of a bench's output."""
    found = {}
    for line in text.splitlines():
        if line.lstrip().startswith("{"):
            try:
                row = json.loads(line)
                found[row["name"]] = float(row["tokens_per_s"])
            except (ValueError, KeyError, TypeError):
                continue
    return found


def check(result, command, names):
    """The figures that the command printed; stops if one is missing."""
    found = rows_of(result.stdout)
    missing = [n for n in names if n not in found]
    if result.returncode or missing:
        tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-5:])
        sys.exit(f"peer.py: `{command}` ended with {result.returncode} and gave no figure for {missing or 'nothing'}\n{tail}")
    return found


def ours(command, names, threads):
    """What the command says of these names."""
    return check(subprocess.run(command, shell=True, capture_output=True, text=True, env=environment(threads)), command, names)


def chosen(a):
    """{figure of ours: the peers' figure that stands beside it}."""
    found = {}
    for size in a.sizes:
        for work in SIZES[size][3]:
            if re.search(a.figures, f"{work}/{size}"):
                found[f"{work}/{size}"] = f"{TWO_WORKERS.get(work, work)}/{size}"
    return found or sys.exit(f"peer.py: --figures {a.figures}: no figure of {', '.join(a.sizes)} has such a name")


def attempt(f, a, label, name):
    """f(), or None and a line under the table."""
    try:
        return f()
    except Exception as e:  # whatever a missing or failing tool raises
        a.notes.append(f"{label}, {name}: blank, {type(e).__name__}: {(str(e).strip() or 'no message').splitlines()[0][:200]}")
        return None


def compiled(lean, work, ids, a):
    """The job of the compiled model, compiled and compared."""
    model = Compiled(lean)
    made = job(model, work, ids)
    for threads in sorted({1, a.threads}):  # a compiled graph has its number of threads built in
        torch.set_num_threads(threads)
        if work == "decoder/forward":
            with torch.inference_mode():
                close(model.logits(ids), lean.logits(ids), "compiled logits")
        else:
            close(model.loss(ids).detach(), lean.loss(ids).detach(), "compiled loss")
        made[0]()
    return made


def llama_cpp(dims, w, ids, peer, a):
    """The job of llama.cpp; notes how many tokens are those of transformers."""
    model = LlamaCpp(dims, w)
    model.threads(a.threads)
    prompt = prompts(ids, 1)
    theirs, mine = greedy(peer, prompt, NEW)[0].tolist(), model.greedy(prompt[0].tolist(), NEW)
    same = next((i for i in range(NEW) if theirs[i] != mine[i]), NEW)
    a.notes.append(f"llama.cpp ({model.lib.llama_print_system_info().decode().strip(' |')}): the first {same} of {NEW} greedy tokens are those of transformers")
    return job(model, "decode/batch_1", ids)


def peers(a, names):
    """{figure: {peer: job}} of models that agree."""
    jobs = {}
    for size in a.sizes:
        mine = sorted({n for n in names if n.endswith("/" + size)}, key=names.index)
        if not mine:
            continue
        dims, ids = SIZES[size][0], batch(size)
        w = weights(dims)
        lean, peer = Lean(dims, w), Transformers(dims, w)
        agree(lean, peer, ids, size)
        with_lora = None
        if f"decoder/lora_step/{size}" in mine:
            lora = factors(w)
            with_lora = Lean(dims, w, lora), Transformers(dims, w, lora)
            agree(*with_lora, ids, size + " with LoRA")
        for n in mine:
            work = n.rsplit("/", 1)[0]
            a_lean, a_peer = with_lora if work == "decoder/lora_step" else (lean, peer)
            jobs[n] = {"lean": job(a_lean, work, ids), "transformers": job(a_peer, work, ids)}
            if a.compile and not work.startswith("decode/"):
                print(f"compiling {n}", file=sys.stderr)
                jobs[n]["compiled"] = attempt(lambda: compiled(a_lean, work, ids, a), a, "compiled", n)
            if n == GGUF:
                jobs[n]["llama.cpp"] = attempt(lambda: llama_cpp(dims, w, ids, peer, a), a, "llama.cpp", n)
    return jobs


def measure(a):
    """{figure: {side: [tokens/s of each round]}}; two rows of ours share the lists of their peers."""
    rows = chosen(a)
    jobs = peers(a, list(rows.values()))
    labels = ["lean", "transformers"] + ["compiled"] * a.compile + ["llama.cpp"] * (GGUF in jobs)
    theirs = {n: {label: [] for label in labels} for n in jobs}
    seen = {n: {"ours": [], **theirs[of]} for n, of in rows.items()}
    with busy(a):
        for r in range(a.rounds):
            quiet(a)
            print(f"round {r + 1} of {a.rounds}, idle {a.idle}", file=sys.stderr)
            whole = ours(a.ours, rows, a.threads) if a.ours and "{name}" not in a.ours else {}
            if GGUF in rows:
                a.memory_rates.append(memory_rates(a.threads))
            for n in jobs:
                for label, made in jobs[n].items():
                    if made:
                        theirs[n][label].append(best(made, a))
                for mine in (m for m, of in rows.items() if a.ours and of == n):
                    found = whole or ours(a.ours.replace("{name}", mine), [mine], a.threads)
                    seen[mine]["ours"].append(found[mine])
        quiet(a)
    return seen


@contextlib.contextmanager
def busy(a):
    """Other processes on the same cores, as many as --loaded says."""
    if a.loaded:
        quiet(a)
    loops = [subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())]) for _ in range(a.loaded)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def quiet(a):
    """Stops on a busy machine."""
    share = idle(a.cores)
    a.idle.append(None if share is None else round(share, 2))
    if share is not None and share < QUIET and not a.busy_ok:
        sys.exit(f"peer.py: cores {a.cores} are {share:.0%} idle (expected at least {QUIET:.0%}): stop what runs there, or --busy-ok")


def ratio(row, label):
    if not row["ours"] or not row[label]:
        return ""
    r = [x / y for x, y in zip(row["ours"], row[label])]
    return f"{statistics.median(r):.2f} [{min(r):.2f}, {max(r):.2f}]"


def line(*cells):
    print("| " + " | ".join(cells) + " |")


def header(*cells):
    line(*cells)
    line(*["---"] * len(cells))


def table(seen):
    labels = [label for label in ("lean", "transformers", "compiled", "llama.cpp") if any(label in row for row in seen.values())]
    header("tokens/s", "ours", *labels, *[f"ours / {label}" for label in labels])
    for name, row in seen.items():
        line(name, *[f"{statistics.median(row[k]):,.0f}" if row.get(k) else "" for k in ["ours", *labels]], *[ratio(row, label) for label in labels])


def bound(a, row):
    """How near decoding comes to what memory allows."""
    size = token_bytes(SIZES["smollm2"][0])
    sides = [k for k in ("ours", "lean", "transformers", "llama.cpp") if row.get(k)]
    print(f"\n{GGUF}: a token reads {size / 1e6:.1f} MB of weights (all projections, and the head once; f32), so at this rate at most")
    header("memory", "GB/s", "ms per token", "tokens/s", *[f"{k}, of it" for k in sides])
    for what in a.memory_rates[0]:
        gb = statistics.median(r[what] for r in a.memory_rates)
        most = gb * 1e9 / size
        line(what, f"{gb:.1f}", f"{1000 / most:.1f}", f"{most:.1f}", *[f"{statistics.median(row[k]) / most:.0%}" for k in sides])


def newest():
    """The bench's binary, as cargo names it."""
    result = subprocess.run(BUILD, shell=True, stdout=subprocess.PIPE, text=True)
    rows = [json.loads(r) for r in result.stdout.splitlines() if r.startswith("{")]
    found = [r["executable"] for r in rows if r.get("executable") and r["target"]["name"] == "decoder"]
    if result.returncode or not found:
        sys.exit(f"peer.py: `{BUILD}` ended with {result.returncode} and named no executable")
    return shlex.quote(found[-1])


def peak(command, threads):
    """Peak resident set of the command and what it starts, in MiB, and its result."""
    result = subprocess.run([sys.executable, "-c", PEAK, command], capture_output=True, text=True, env=environment(threads))
    *_, last = result.stdout.splitlines() or [""]
    if not last.startswith("peak "):
        sys.exit(f"peer.py: `{command}` could not be run\n{result.stderr}")
    return int(last.split()[1]) / 1024, result


def peak_of_peer(label, name, a):
    """(peak, peak until the imports were done) of one peer's step, in MiB."""
    options = ["--one", label, name, "--threads", str(a.threads), "--seconds", str(a.seconds)]
    command = shlex.join([sys.executable, os.path.abspath(__file__), *options])
    mib, result = peak(command, a.threads)
    check(result, command, [name])
    return mib, json.loads(result.stdout.splitlines()[0])["imports_mib"]


def one(label, name, a):
    """A peer's step alone in this process (for --memory): nothing is imported that this peer does without."""
    work, size = name.rsplit("/", 1)
    dims, lora = SIZES[size][0], work == "decoder/lora_step"
    if label == "transformers":
        import transformers

        transformers.LlamaForCausalLM, transformers.Qwen3ForCausalLM
        if lora:
            import peft  # noqa: F401
    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])  # imports torch._dynamo
    imports = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    torch.set_num_threads(a.threads)
    if label == "transformers":
        model = Transformers(dims, lora={} if lora else None)
    else:
        w = weights(dims)
        model = Lean(dims, w, factors(w) if lora else None)
    run, tokens, _ = job(model, work, batch(size))
    print(json.dumps(dict(name=name, tokens_per_s=rate(run, tokens, a.seconds), imports_mib=imports)))


def memory(a):
    """Peak memory of every chosen step, each in a process of its own."""
    rows = {n: of for n, of in chosen(a).items() if of.rsplit("/", 1)[0] in STEPS}
    command = a.ours and (a.ours if "{name}" in a.ours else a.ours + " --bench '^{name}$'")
    theirs = {of: {label: peak_of_peer(label, of, a) for label in ("lean", "transformers")} for of in dict.fromkeys(rows.values())}
    seen = {}
    for n, of in rows.items():
        seen[n] = {"ours": None, **theirs[of]}
        if command:
            mine = command.replace("{name}", n)
            seen[n]["ours"], result = peak(mine, a.threads)
            check(result, mine, [n])
    labels = ("lean", "transformers")
    header("peak MiB", "ours", *[what for label in labels for what in (label, "of it imports", f"{label} / ours", "without imports")])
    for n, row in seen.items():
        cells = [""] if row["ours"] is None else [f"{row['ours']:,.0f}"]
        for whole, imports in (row[label] for label in labels):
            cells += [f"{whole:,.0f}", f"{imports:,.0f}"]
            cells += ["", ""] if row["ours"] is None else [f"{x / row['ours']:.2f}" for x in (whole, whole - imports)]
        line(n, *cells)
    return seen


def versions():
    found = {}
    for package in ("torch", "transformers", "peft", "llama-cpp-python"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def say(a):
    """What the reader must know of the machine."""
    for note in a.notes:
        print(f"\n{note}")
    waiting = "with OpenMP threads that wait asleep (OMP_WAIT_POLICY=PASSIVE)" if a.passive else "with OpenMP threads that wait as they do by default"
    if a.loaded:
        print(f"\nOn a machine with {a.loaded} other busy process{'es'[: 2 * (a.loaded > 1)]} on {a.threads} cores, {waiting}; niceness of this script and both sides: {os.nice(0)}, of the others: 0.")
        first = a.idle[0]
        if first is not None and first < QUIET:
            print(f"NOT ALONE EVEN BEFORE: the cores were {first:.0%} idle before these were started.")
    elif min((x for x in a.idle if x is not None), default=1) < QUIET:
        print(f"\nNOT A MEASUREMENT: the cores were shared with other processes (idle {a.idle}).")
    elif a.passive:
        print(f"\nMeasured {waiting}.")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--ours", help=f"shell command (default: {CARGO}; with --memory the binary that cargo builds); '' for none")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2.0, help="per peer, figure and round")
    p.add_argument("--threads", type=int, default=2, help="threads, and cores, for either side")
    p.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES))
    p.add_argument("--figures", metavar="REGEX", default="", help="only figures with such a name, as decode/ or train_two_workers/micro")
    p.add_argument("--compile", action="store_true", help="torch.compile as one more peer; takes minutes")
    p.add_argument("--memory", action="store_true", help="peak memory of the training steps instead of speed")
    p.add_argument("--busy-ok", action="store_true", help="go on where other processes use the cores")
    p.add_argument("--loaded", type=int, metavar="N", default=0, help="measure beside N busy loops (implies --busy-ok)")
    p.add_argument("--passive", action="store_true", help="OpenMP threads that wait sleep instead of spinning")
    p.add_argument("--avx2", action="store_true", help="ours and PyTorch with AVX2 where the processor has more; llama.cpp stays as it was built")
    p.add_argument("--json", metavar="FILE", help="every single figure, too")
    p.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.memory and (a.loaded or a.compile):
        p.error("--memory goes with neither --loaded nor --compile")
    wanted = (PASSIVE if a.passive else {}) | (AVX2 if a.avx2 else {})
    if any(os.environ.get(k) != v for k, v in wanted.items()):  # read when torch is loaded
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | wanted)
    if a.one:
        return one(*a.one, a)
    a.idle, a.notes, a.memory_rates, a.cores = [], [], [], list(range(a.threads))
    a.busy_ok = a.busy_ok or a.loaded > 0
    if hasattr(os, "sched_setaffinity"):  # our command inherits it
        a.cores = sorted(os.sched_getaffinity(0))[: a.threads]
        os.sched_setaffinity(0, a.cores)
    if a.ours is None:
        a.ours = newest() if a.memory else CARGO
    seen = memory(a) if a.memory else measure(a)
    about = dict(**versions(), cuda_build=torch.version.cuda, threads=a.threads, avx2=a.avx2, rounds=a.rounds, ours=a.ours, idle=a.idle, loaded=a.loaded, passive=a.passive)
    print(json.dumps(about))
    if not a.memory:
        table(seen)
        if a.memory_rates:
            bound(a, seen[GGUF])
    say(a)
    if a.json:
        with open(a.json, "w") as f:
            json.dump({"about": about, "notes": a.notes, "GB_per_s": a.memory_rates, ("peak_MiB" if a.memory else "tokens_per_s"): seen}, f, indent=1)


if __name__ == "__main__":
    main()
