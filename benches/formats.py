"""Times one model whose weights are stored in f32, bf16, Q8_0 and other formats, in ours, llama.cpp and PyTorch, in turns on the same two cores.

    python benches/formats.py --probe target/debug/probe            # about ten minutes on a quiet machine
    python benches/formats.py --probe target/debug/probe --rounds 5 --json formats.json
    python benches/formats.py --probe target/debug/probe --formats f16,q5_0,q4_0   # these, and f32
    python benches/formats.py --probe target/debug/probe --formats q4_k,q5_k,q6_k  # in a model whose widths are blocks of 256

Needs what benches/peer.py needs. SmolLM2-135M's shape, random weights, written as .gguf files that ours and llama.cpp both read. Every
figure is a process of its own, so that nobody's waiting threads take another's core:
  decode    a prompt of 32 tokens, then 64 greedy tokens over a KV cache, one row; only new tokens count, the prefill's time does too
  prefill   512 tokens, and the logits of the last
A process times each figure for --seconds, three times at least, after a call that is not counted, and gives the median. llama.cpp: KV
cache in f32 as ours, batches of 512; PyTorch: transformers with sdpa, in f32 and bf16 (it has none of ggml's). All with two threads.
Between processes the rate at which 512 MiB are read and copied is measured: on a shared computer it changes by a third within minutes,
so ratios are taken inside a round; their median is shown with the smallest and largest.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

import peer
import torch

# The bf16 file, where ours rounds what is multiplied to bf16, as PyTorch does.
ROUNDED = "stored-bf16"
# The integer files, where ours rounds what is multiplied to 8 bits, as llama.cpp does.
INTEGERS = "stored-q8"
DIMS = peer.SIZES["smollm2"][0]
# llama.cpp's own quantiser writes them; its numbers of these types.
K_TYPES = {"q4_k": 14, "q5_k": 16, "q6_k": 18}
WIDER = dict(hidden_size=768, num_attention_heads=12)
PROMPT, NEW, LONG = peer.PROMPT, peer.NEW, 512


def write(path, weights, form):
    """The model in a format: matrices in it, norms in f32."""
    if form in K_TYPES:
        return write_k_type(path, weights, form)
    import gguf

    kind = None if form == "f32" else gguf.GGMLQuantizationType[form.upper()]
    plain = gguf.GGUFWriter.add_tensor

    def add(self, name, tensor):
        if kind is None or tensor.ndim < 2:
            return plain(self, name, tensor)
        return plain(self, name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)

    gguf.GGUFWriter.add_tensor = add
    peer.write_gguf(path, DIMS, weights)
    gguf.GGUFWriter.add_tensor = plain


def write_k_type(path, weights, form):
    import ctypes

    import llama_cpp as lib

    with tempfile.TemporaryDirectory() as folder:
        plain = os.path.join(folder, "f32.gguf")
        write(plain, weights, "f32")
        params = lib.llama_model_quantize_default_params()
        params.ftype, params.pure, params.nthread = K_TYPES[form], True, 2
        if lib.llama_model_quantize(plain.encode(), path.encode(), ctypes.byref(params)):
            sys.exit(f"formats.py: llama.cpp did not write {form}")


def ids(n):
    return [i * 7919 % DIMS["vocab_size"] for i in range(n)]


def llama(path, seconds):
    """{figure: tokens/s} of llama.cpp."""
    import llama_cpp as lib
    import numpy

    f32 = lib.GGML_TYPE_F32
    model = lib.Llama(path, n_ctx=1024, n_batch=LONG, n_ubatch=LONG, n_threads=2, n_threads_batch=2, use_mmap=False, type_k=f32, type_v=f32, verbose=False)

    def decode():
        model.reset()
        tokens = ids(PROMPT)
        for _ in range(NEW):
            model.eval(tokens)
            logits = numpy.ctypeslib.as_array(lib.llama_get_logits_ith(model.ctx, -1), shape=(model.n_vocab(),))
            tokens = [int(logits.argmax())]

    def prefill():
        model.reset()
        model.eval(ids(LONG))
        lib.llama_get_logits_ith(model.ctx, -1)

    return {"decode": peer.rate(decode, NEW, seconds), "prefill": peer.rate(prefill, LONG, seconds)}


def pytorch(form, seconds):
    """{figure: tokens/s} of transformers."""
    torch.set_num_threads(2)
    model = peer.Transformers(DIMS, peer.weights(DIMS)).model.to({"f32": torch.float32, "bf16": torch.bfloat16}[form]).eval()

    @torch.inference_mode()
    def prefill():
        model(torch.tensor([ids(LONG)]), logits_to_keep=1)

    @torch.inference_mode()
    def decode():
        tokens, cache = torch.tensor([ids(PROMPT)]), None
        for _ in range(NEW):
            out = model(tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            tokens, cache = out.logits[:, -1].argmax(-1, keepdim=True), out.past_key_values

    return {"decode": peer.rate(decode, NEW, seconds), "prefill": peer.rate(prefill, LONG, seconds)}


def ours(a, path, dtype="stored"):
    """{figure: tokens/s} of `probe bench`."""
    shape = ["--rows", "1", "--prompt", str(LONG), "--new", str(NEW), "--rounds", str(a.calls), "--threads", "2", "--dtype", dtype]
    command = [a.probe, "bench", path, *shape]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {}
    for figure in ("decode", "prefill"):
        found[figure] = float(re.search(rf"^{figure} .*?([\d.]+) tokens/s", text, re.M).group(1))
    return found


def child(*arguments):
    """A figure of a peer, from a process of its own."""
    text = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True).stdout
    return json.loads(text.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=5, help="calls of ours that a median is taken of")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--formats", type=lambda text: text.split(","), default=["bf16", "q8_0"], help="beside f32; ggml's names")
    parser.add_argument("--json")
    parser.add_argument("--llama", help=argparse.SUPPRESS)
    parser.add_argument("--pytorch", help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--wider", action="store_true", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.wider:
        DIMS.update(WIDER)
    if a.llama:
        return print(json.dumps(llama(a.llama, a.seconds)))
    if a.pytorch:
        return print(json.dumps(pytorch(a.pytorch, a.seconds)))
    if a.memory:
        return print(json.dumps(peer.memory_rates(2)))
    if not a.probe:
        parser.error("--probe: where is the program?")
    wider = ["--wider"] if K_TYPES.keys() & {*a.formats} else []
    if wider:
        DIMS.update(WIDER)
    share = peer.idle(range(os.cpu_count()))
    if share is not None and share < peer.QUIET:
        sys.exit(f"formats.py: the cores are {share:.0%} idle (expected at least {peer.QUIET:.0%}): stop what runs there")
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        weights = peer.weights(DIMS)
        paths = {form: os.path.join(folder, f"{form}.gguf") for form in dict.fromkeys(["f32", *a.formats])}
        for form, path in paths.items():
            write(path, weights, form)
        for _ in range(a.rounds):
            row = {"memory": child("--memory")}
            for form, path in paths.items():
                row[form] = {"ours": ours(a, path), "llama.cpp": child("--llama", path, "--seconds", str(a.seconds))}
                if form in ("f32", "bf16"):
                    row[form]["PyTorch"] = child("--pytorch", form, *wider, "--seconds", str(a.seconds))
            if "bf16" in paths:
                row[ROUNDED] = {**row["bf16"], "ours": ours(a, paths["bf16"], ROUNDED)}
            for form in (form for form in paths if form.startswith("q")):
                row[f"{form}, {INTEGERS}"] = {**row[form], "ours": ours(a, paths[form], INTEGERS)}
            rounds.append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)
    if a.json:
        with open(a.json, "w") as out:
            json.dump({"command": sys.argv, "rounds": rounds}, out)
    show(rounds)


def spread(values, form="{:.2f}"):
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{form} [{form}, {form}]".format(middle, least, most)


def show(rounds):
    peers = ("ours", "llama.cpp", "PyTorch")
    print(f"median [smallest, largest] of {len(rounds)} rounds\n")
    peer.header("tokens/s", *peers, *[f"ours / {p}" for p in peers[1:]], "ours / ours in f32")
    for figure in ("decode", "prefill"):
        for form in (form for form in rounds[0] if form != "memory"):
            of = lambda who: [r[form][who][figure] for r in rounds if who in r[form]]
            beside = lambda others: spread([x / y for x, y in zip(of("ours"), others)]) if others else ""
            rates = [f"{statistics.median(of(p)):,.0f}" if of(p) else "" for p in peers]
            peer.line(f"{figure}, {form}", *rates, *[beside(of(p)) for p in peers[1:]], beside([r["f32"]["ours"][figure] for r in rounds]))
    size = peer.token_bytes(DIMS)
    print(f"\nA token reads {size / 1e6:.1f} MB of weights in f32; ours in f32 of what memory allows:")
    peer.header("memory", "GB/s", "ours, of it")
    for what in rounds[0]["memory"]:
        rate = [r["memory"][what] for r in rounds]
        peer.line(what, f"{statistics.median(rate):.1f}", spread([r["f32"]["ours"]["decode"] * size / (r["memory"][what] * 1e9) for r in rounds]))


if __name__ == "__main__":
    main()
