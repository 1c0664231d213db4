"""How far logits are from those of PyTorch in f32 with the same bf16 weights: PyTorch in bf16, and ours in two ways.

    python benches/drift.py --probe target/debug/probe --model FOLDER --data gsm8k/test.jsonl

FOLDER is a Hugging Face folder with weights in bf16; the tokens are the first questions and answers of the file, as one row. Per position:
KL(f32 || x) in nats, the largest difference of a logit, and how often the most probable token is the same. Needs what benches/peer.py needs.
"""

import argparse
import json
import os
import subprocess
import tempfile

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--probe", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--tokens", type=int, default=400)
    a = parser.parse_args()
    with open(a.data) as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(16))]
    text = " ".join(f"{row['question']} {row['answer']}" for row in rows)
    ids = AutoTokenizer.from_pretrained(a.model)(text)["input_ids"][: a.tokens]
    found = {}
    for name, dtype in (("PyTorch, f32", torch.float32), ("PyTorch, bf16", torch.bfloat16)):
        model = AutoModelForCausalLM.from_pretrained(a.model, dtype=dtype).eval()
        with torch.inference_mode():
            found[name] = model(torch.tensor([ids])).logits[0].double()
    with tempfile.TemporaryDirectory() as folder:
        prompts, out = os.path.join(folder, "ids.jsonl"), os.path.join(folder, "logits.safetensors")
        with open(prompts, "w") as file:
            json.dump({"ids": ids}, file)
        for dtype in ("stored", "stored-bf16"):
            command = [a.probe, "activations", a.model, "--prompts", prompts, "--logits", "--dtype", dtype, "--out", out]
            subprocess.run(command, check=True, capture_output=True)
            found[f"ours, {dtype}"] = load_file(out)["logits"][0].double()
            os.remove(out)
    reference = found.pop("PyTorch, f32")
    exact = reference.log_softmax(-1)
    print(f"{len(ids)} positions\n\n| | KL, mean | KL, largest | logit, largest difference | same most probable token |\n| --- | --- | --- | --- | --- |")
    for name, logits in found.items():
        kl = (exact.exp() * (exact - logits.log_softmax(-1))).sum(-1)
        off, same = (logits - reference).abs().max(), (logits.argmax(-1) == reference.argmax(-1)).double().mean()
        print(f"| {name} | {kl.mean():.1e} | {kl.max():.1e} | {off:.1e} | {same:.4f} |")


if __name__ == "__main__":
    main()
