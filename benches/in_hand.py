"""Five research tasks with a session of ours and with TransformerLens 4, on the same model: lines to write, and seconds.

    pip install ./python transformer-lens
    python benches/in_hand.py SmolLM2.gguf                       # a folder of transformers is written beside it, for both
    python benches/in_hand.py SmolLM2-folder --rounds 5 --only lens,patch --probe target/debug/probe

The first four tasks are on the model that is named, the fifth on fixtures/micro, which has latent steps. Each task of each side is
a function below, as a reader would type it into a notebook; its lines are counted without blank ones and comments. Each runs in a
process of its own, so that imports and loading count, the sides in turns. Every process has one thread (`--threads`): two would wait
for each other on a busy machine. Wall time and the processor time of the process and its children are printed, medians with the
smallest and largest; processor time is what a busy machine changes least. What the two sides find is compared: arrays by their
largest difference, texts by how many are the same.
"""

import argparse
import inspect
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
LAYER = 15
NAMES = ["Mary", "John", "Anna", "Tom", "Lucy", "Paul", "Kate", "Mark", "Emma", "Jack"]
PROMPTS = [f"{a} and {b} went to the {place}, and {a} said" for a in NAMES[:5] for b in NAMES[5:] for place in ("shop", "old harbour")]
PAIR = "When {} met {}, {} gave it to"
PAIRS = [
    {"clean": PAIR.format(a, b, b), "corrupt": PAIR.format(a, b, a), "answer": f" {a}", "wrong": f" {b}"}
    for a, b in [("Mary", "John"), ("Tom", "Mark"), ("Paul", "James"), ("David", "Peter")]
]


def problems():
    """Problems of one's own, in the words of fixtures/micro, with the value of each step."""
    out = []
    for a, b, c in ["hag", "bcd", "efj", "klm", "adg", "hbf"]:
        for start, first, second in [(1, 1, 1), (1, 2, 1), (2, 1, 2), (2, 2, 2)]:
            one, two = start + first, start + first + second
            steps = [
                {"expression": f"{start}+{first}", "value": one, "span": f"{start} + {first} = {one}"},
                {"expression": f"s1+{second}", "value": two, "span": f"{one} + {second} = {two}"},
            ]
            question = f"{a} = {start} ; {b} = {a} + {first} ; {c} = {b} + {second} ; ? {c} :"
            solution = f"{b} = {start} + {first} = {one} ; {c} = {one} + {second} = {two} ; # {two}"
            name = f"{a}{b}{c}-{start}-{first}-{second}"
            out.append({"id": name, "question": question, "solution": solution, "answer": str(two), "steps": steps})
    return out


def ours_cache(path, threads):
    import switchyard as sy

    with sy.load(path, threads=threads) as model:
        cache = model.cache(PROMPTS, f"blocks.{LAYER}.hook_out")
    return [cache["resid_post", LAYER][row, length - 1] for row, length in enumerate(cache.lengths)]


def theirs_cache(path, threads):
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(path, device="cpu")
    name = f"blocks.{LAYER}.hook_out"
    found = []
    for prompt in PROMPTS:
        _, cache = model.run_with_cache(prompt, names_filter=name, prepend_bos=False, stop_at_layer=LAYER + 1)
        found.append(cache[name][0, -1].detach().numpy())
    return found


def ours_patch(path, threads):
    import switchyard as sy

    with sy.load(path, threads=threads) as model:
        heat = model.pairs(PAIRS, components=["resid"], modes=["denoise"]).heatmap()
    heat._repr_html_()
    return heat.values[:-1]


def theirs_patch(path, threads):
    import matplotlib.pyplot as plt
    import torch
    from transformer_lens import patching
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(path, device="cpu")
    clean, corrupt = (model.to_tokens([pair[key] for pair in PAIRS], prepend_bos=False) for key in ("clean", "corrupt"))
    answer, wrong = (torch.tensor([model.to_single_token(pair[key]) for pair in PAIRS]) for key in ("answer", "wrong"))
    rows = torch.arange(len(PAIRS))

    def lead(logits):
        return (logits[rows, -1, answer] - logits[rows, -1, wrong]).sum()

    with torch.no_grad():
        logits, cache = model.run_with_cache(clean)
        base = lead(model(corrupt))
        heat = patching.get_act_patch_resid_pre(model, corrupt, cache, lead)
    heat = ((heat - base) / (lead(logits) - base)).numpy()
    plt.imshow(heat, origin="lower")
    return heat


def ours_lens(path, threads):
    import switchyard as sy

    with sy.load(path, threads=threads) as model:
        lens = model.lens("The Eiffel Tower is in the city of")
    return [lens.top(layer)[0] for layer in range(len(lens.layers))]


def theirs_lens(path, threads):
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.tools.analysis import logit_lens

    model = TransformerBridge.boot_transformers(path, device="cpu")
    tokens = model.to_tokens("The Eiffel Tower is in the city of", prepend_bos=False)
    lens = logit_lens(model, tokens)
    return [model.to_single_str_token(int(row.argmax())) for row in lens.values.reshape(-1, model.cfg.d_vocab)[1:]]


def ours_steer(path, threads):
    import switchyard as sy

    hook = f"blocks.{LAYER}.hook_out"
    with sy.load(path, threads=threads) as model:
        love, hate = model.cache(["I love this", "I hate this"], f"{hook}@pos[-1]")[f"{hook}@pos[-1]"][:, 0]
        runs = model.generate(PROMPTS[:20], hooks={hook: sy.add(0.5 * (love - hate))}, max_new_tokens=20)
    return [run.text for run in runs]


def theirs_steer(path, threads):
    from transformer_lens.model_bridge import TransformerBridge

    hook = f"blocks.{LAYER}.hook_out"
    model = TransformerBridge.boot_transformers(path, device="cpu")
    _, cache = model.run_with_cache(["I love this", "I hate this"], names_filter=hook, prepend_bos=False)
    love, hate = cache[hook][:, -1]
    with model.hooks(fwd_hooks=[(hook, lambda state, hook: state + 0.5 * (love - hate))]):
        # With its cache, 4.3.0 over transformers 5.23 continues every prompt by hyphens.
        cached = {"use_past_kv_cache": False, "prepend_bos": False}
        texts = model.generate(PROMPTS[:20], max_new_tokens=20, do_sample=False, **cached)
    return [text[len(prompt) :] for prompt, text in zip(PROMPTS, texts)]


def ours_known(path, threads):
    import switchyard as sy

    with sy.load(path, threads=threads) as model:
        done = model.intervene(problems(), modes=["known_value"], draws=2, like="micro")
    (row,) = [row for row in done.known if row["holds"] == "value"]
    return [row["hit_rate.value"], row["hit_rate.low"], row["hit_rate.high"], row["chance.value"]]


def theirs_known(path, threads):
    import random

    import torch
    from transformer_lens.model_bridge import TransformerBridge

    model = TransformerBridge.boot_transformers(path, device="cpu")
    ids = {word: model.tokenizer.convert_tokens_to_ids(word) for word in ("<swi>", "</swi>", "<eos>")}

    def embedded(tokens):
        return model.original_model.get_input_embeddings()(torch.as_tensor(tokens).reshape(1, -1))

    @torch.no_grad()
    def run(question, exchanged=None, states=None):
        x, text, blocks = embedded(model.to_tokens(f"<bos> {question}", prepend_bos=False)), [], []
        while len(text) < 40 and ids["<eos>"] not in text:
            text.append(int(model(x, start_at_layer=0)[0, -1].argmax()))
            x = torch.cat([x, embedded(text[-1])], 1)
            if text[-1] == ids["<swi>"]:
                blocks.append([])
                for step in range(5):
                    _, cache = model.run_with_cache(x, start_at_layer=0, names_filter="ln_final.hook_out")
                    state = states[step] if exchanged == len(blocks) - 1 else cache["ln_final.hook_out"][:, -1:]
                    blocks[-1].append(state)
                    x = torch.cat([x, state], 1)
                x = torch.cat([x, embedded(ids["</swi>"])], 1)
        return model.tokenizer.decode(text).split("#")[-1].split()[:1], blocks

    asked = [(problem, *run(problem["question"])) for problem in problems()]
    right = [(problem, blocks) for problem, answer, blocks in asked if answer == [problem["answer"]] and len(blocks) == 2]
    held = [(problem["steps"][block]["value"], states[block]) for problem, states in right for block in range(2)]
    draw, hits, chances = random.Random(0), [], []
    for problem, _ in 2 * right:
        block = draw.randrange(2)
        value, last = problem["steps"][block]["value"], problem["steps"][1]["expression"]
        pool = [(other if block else eval(last.replace("s1", str(other))), states) for other, states in held if other != value]
        predicted, states = draw.choice(pool)
        chances.append(np.mean([answer == predicted for answer, _ in pool]))
        hits.append(run(problem["question"], block, states)[0] == [str(predicted)])
    n, rate, chance = len(right), np.mean(hits), np.mean(chances)
    middle, half = (rate + 1.92 / n) / (1 + 3.84 / n), 1.96 / (1 + 3.84 / n) * np.sqrt(rate * (1 - rate) / n + 0.96 / n**2)
    return [rate, middle - half, middle + half, chance]


TASKS = {
    "cache": "50 prompts, one layer, the last token's state",
    "patch": "four pairs, layer by position, as a heat map",
    "lens": "the logit lens of a text",
    "steer": "20 prompts continued by 20 tokens under a direction",
    "known": "known values of problems of one's own exchanged",
}


def lines(function):
    body = inspect.getsource(function).splitlines()[1:]
    return sum(1 for line in body if line.strip() and not line.strip().startswith("#"))


def child(task, side, path, threads):
    """Runs in a process of its own and prints what was found."""
    found = globals()[f"{side}_{task}"](path, threads)
    print(json.dumps(np.asarray(found).tolist() if not isinstance(found[0], str) else found))


def timed(task, side, path, args):
    environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1", "MPLBACKEND": "agg"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "python" / "src"), os.environ.get("PYTHONPATH", "")])
    if args.probe:
        environment["SWITCHYARD_PROBE"] = str(Path(args.probe).absolute())
    words = [sys.executable, __file__, str(path), "--child", f"{task},{side}", "--threads", str(args.threads)]
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{side}_{task}: {done.stderr[-3000:]}")
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, busy, json.loads(done.stdout.strip().splitlines()[-1])


def same(one, other):
    if isinstance(one[0], str):
        return f"{sum(a == b for a, b in zip(one, other))} of {max(len(one), len(other))} texts the same"
    one, other = np.asarray(one), np.asarray(other)
    if one.shape != other.shape:
        return f"{np.round(one, 3).tolist()} and {np.round(other, 3).tolist()}"
    return f"largest difference {np.abs(one - other).max():.1e} of values up to {np.abs(one).max():.1f}"


def folder_of(model):
    """A folder that both sides open: of a GGUF file its weights in float32."""
    if model.is_dir():
        return model
    folder = model.with_suffix("")
    if not (folder / "config.json").is_file():
        from transformers import AutoModelForCausalLM, AutoTokenizer

        read = AutoModelForCausalLM.from_pretrained(str(model.parent), gguf_file=model.name)
        # The weights are float32 by now, and would not be written as long as they are said to be quantised.
        read.hf_quantizer, read.is_quantized = None, False
        if hasattr(read.config, "quantization_config"):
            del read.config.quantization_config
        read.save_pretrained(folder)
        AutoTokenizer.from_pretrained(str(model.parent), gguf_file=model.name).save_pretrained(folder)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a folder of transformers, or a .gguf file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default=",".join(TASKS))
    parser.add_argument("--probe", help="the program `probe`; without it the one that the package finds")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(*args.child.split(","), str(args.model), args.threads)
    folder = folder_of(args.model)
    print(f"load average before: {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {args.threads} thread a side")
    print("\n| task | lines | seconds | processor seconds | found |\n| --- | --- | --- | --- | --- |")
    for task in args.only.split(","):
        path = ROOT / "fixtures" / "micro" / "sft" / "checkpoint" if task == "known" else folder
        rounds = [[timed(task, side, path, args) for side in ("ours", "theirs")] for _ in range(args.rounds)]
        cells = []
        for of in (0, 1):
            sides = [[one[side][of] for one in rounds] for side in (0, 1)]
            cells.append(" / ".join(f"{statistics.median(s):.1f} [{min(s):.1f}, {max(s):.1f}]" for s in sides))
        written = " / ".join(str(lines(globals()[f"{side}_{task}"])) for side in ("ours", "theirs"))
        print(f"| {TASKS[task]} | {written} | {' | '.join(cells)} | {same(rounds[0][0][2], rounds[0][1][2])} |", flush=True)
    print(f"\nEach cell: ours / TransformerLens; load average after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
