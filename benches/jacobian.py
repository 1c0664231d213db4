"""The Jacobian lens of one text, by `probe lens` and by TransformerLens: processor time and memory, and how far the matrices differ.

    pip install transformer-lens
    python benches/jacobian.py SmolLM2-folder --probe target/debug/probe

The model is a folder of transformers in f32 (benches/in_hand.py makes one of a .gguf file). Each side is one process with one
thread; loading is measured by a run that stops there, and taken off. All layers but the last, eight dimensions
of the final state together, the first four positions left out.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

TEXT = "The harbour of the old town was quiet when the last ship came in from the north, and nobody saw it."
SKIP, TOGETHER = 4, 8


def theirs(folder, out):
    import torch
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.tools.analysis.jacobian_lens import JacobianLens, _jacobian_for_prompt, _ordinary_vjp
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    bridge = TransformerBridge.boot_transformers(folder, hf_model=model, tokenizer=tokenizer, dtype=torch.float32)
    bridge.eval()
    for parameter in bridge.parameters():
        parameter.requires_grad_(False)
    if out is None:
        return
    found = _jacobian_for_prompt(
        bridge,
        tokenizer(TEXT, return_tensors="pt").input_ids,
        source_layers=list(range(model.config.num_hidden_layers - 1)),
        dim_batch=TOGETHER,
        skip_first_positions=SKIP,
        backward_provider=_ordinary_vjp,
    )
    JacobianLens(found, n_prompts=1, d_model=model.config.hidden_size).save(out)


def run(command):
    """Seconds of the processor, and the largest GB that any child has had so far."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, after.ru_maxrss / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--probe", type=Path, default=Path("target/debug/probe"))
    parser.add_argument("--theirs", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.theirs:
        return theirs(args.model, None if args.theirs == "load" else args.theirs)
    with tempfile.TemporaryDirectory() as folder:
        text, ours, other = (Path(folder) / name for name in ("text.txt", "ours.pt", "theirs.pt"))
        text.write_text(TEXT + "\n")
        lens = [args.probe, "lens", "--model", args.model, "--prompt", "The", "--threads", 1]
        fit = ["--kind", "jacobian", "--fit", text, "--skip", SKIP, "--together", TOGETHER, "--save", ours]
        again = [sys.executable, __file__, args.model, "--theirs"]
        for name, load, whole in [("ours", lens, lens + fit), ("TransformerLens", again + ["load"], again + [other])]:
            loading, _ = run(load)
            seconds, memory = run(whole)
            print(f"{name}: {seconds - loading:.1f} CPU-seconds, {memory:.1f} GB at most so far", flush=True)
        import torch

        a, b = (torch.load(path, weights_only=False)["J"] for path in (ours, other))
        worst = max(((a[l].float() - b[l].float()).norm() / b[l].float().norm()).item() for l in b)
        print(f"{len(b)} layers, largest relative difference {worst:.1e} (half precision)")


main()
