"""The page's laboratory as a widget: a small model runs in the browser, where its latent blocks can be swapped."""

import base64
import gzip
import json
import os
import re
from pathlib import Path

import numpy as np

from . import safetensors
from .asking import several
from .rows import rows as read_rows

#: Maximum number of weights that a browser runs.
MOST = 5_000_000
#: The page's scripts in load order, without `start.js`, which only the page needs.
SCRIPTS = ("decoder.js", "experiment.js", "draw.js", "bench.js", "lab.js")
TITLES = {
    "sft": "after supervised training",
    "grpo_start": "where reinforcement learning starts",
    "grpo": "after reinforcement learning",
}


def view(run, rows=None, problems=None, phases=None):
    """Shows the checkpoints of a training run (`"fixtures/micro"`): pick a problem, swap in another latent block, see the answer.

    `problems`: questions in the format of the run's task (`"a = 5 ; h = a + 4 ; ? h :"`), by default those in `rows`, a folder
    that `probe` wrote (`"reports/micro"`). `phases`: names of checkpoints, by default all. Works in Jupyter, VS Code and marimo;
    needs `pip install anywidget` and a checkout of Switchyard for the page's scripts. Raises `ValueError` for a model that a
    browser cannot run.
    """
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise ImportError("sy.view needs anywidget: pip install anywidget") from error
    data, weights = page_data(run, rows, problems, phases)

    class Laboratory(anywidget.AnyWidget):
        _esm = script()
        _css = style()
        data = traitlets.Dict().tag(sync=True)
        weights = traitlets.Dict().tag(sync=True)

    return Laboratory(data=data, weights=weights)


def page_data(run, rows=None, problems=None, phases=None):
    """Data for the script: the run with its problems and models, and the weights by phase."""
    run = Path(run)
    there = {path.parent.parent.name: path.parent for path in sorted(run.glob("*/checkpoint/model.safetensors"))}
    order = [name for name in TITLES if name in there] + [name for name in there if name not in TITLES]
    phases = order if phases is None else several(phases)
    missing = [phase for phase in phases if phase not in there]
    if missing or not phases:
        wanted = ", ".join(missing) or "a checkpoint"
        whole = "no */checkpoint/model.safetensors (where LoRA is trained: with checkpoint.whole=true)"
        raise ValueError(f"{run}: no {wanted} here; it has {', '.join(there) or whole}")
    prompts = _problems(run, rows, problems, phases)
    models, weights = [], {}
    for phase in phases:
        model, weights[phase] = _model(there[phase], phase)
        models.append(model)
    about = {
        "name": run.name,
        "path": str(run),
        "prefix": "<bos> ",
        "modulus": _modulus(run / "recipe.toml"),
        "problems": prompts,
        "answers": [],
        "tokenizer": _json(there[phases[0]] / "tokenizer.json"),
        "models": models,
    }
    if about["tokenizer"]["model"]["type"] != "WordLevel":
        raise ValueError(f"{there[phases[0]] / 'tokenizer.json'}: only tokenizers of whole words run in a browser")
    return {"runs": [about]}, weights


def script():
    """The page's scripts as one JavaScript module."""
    parts = [(_source() / "live" / name).read_text(encoding="utf-8") for name in SCRIPTS]
    return "\n".join(parts) + _RENDER


_RENDER = """
export default {
  render({ model, el: root }) {
    const box = document.createElement('div');
    root.classList.add('lab');
    root.append(box);
    box.view = new Lab(box, model.get('data'), (id) => model.get('weights')[id], false);
  },
};
"""


def style():
    """The page's CSS, scoped to the widget."""
    page = (_source() / "page" / "style.css").read_text(encoding="utf-8")
    return f".lab {{\n{page.replace(':root', '&')}}}\n{(_source() / 'live' / 'lab.css').read_text(encoding='utf-8')}"


def _source():
    named = os.environ.get("SWITCHYARD_SOURCE")
    checkout = Path(named) if named else Path(__file__).resolve().parents[3]
    source = checkout / "programs" / "src" / "report"
    if not (source / "live" / "lab.js").is_file():
        raise FileNotFoundError(f"{checkout}: no checkout of Switchyard; set SWITCHYARD_SOURCE to one: the widget needs the page's scripts")
    return source


def _problems(run, rows, problems, phases):
    if problems is None and rows is None:
        raise ValueError("no problems given: pass problems=['a = 5 ; h = a + 4 ; ? h :'], or rows='reports/micro' for the problems in its rows")
    if problems is None:
        files = [Path(rows) / f"positions-{phase}.parquet" for phase in phases]
        found = [file for file in files if file.is_file()]
        if not found:
            raise ValueError(f"{rows}: no rows of problems here ({', '.join(file.name for file in files)}); `probe` writes them")
        prompts = read_rows(found[0])["prompt"]
        problems = [prompt for prompt in prompts if isinstance(prompt, str)]
    problems = several(problems)
    wrong = [problem for problem in problems if not isinstance(problem, str)]
    if wrong:
        raise TypeError(f"problems are questions, found {wrong[0]!r}")
    problems = [re.sub(r"^\s*<bos>\s*", "", problem) for problem in problems]
    if not problems:
        raise ValueError(f"{run}: no problems")
    return problems


def _model(checkpoint, phase):
    tensors, _ = safetensors.read(checkpoint / "model.safetensors")
    count = sum(tensor.size for tensor in tensors.values())
    if count > MOST:
        raise ValueError(f"{checkpoint}: {count} weights are more than the {MOST} that a browser runs")
    floats = np.concatenate([np.asarray(tensor, "<f4").ravel() for tensor in tensors.values()])
    planes = floats.view("u1").reshape(-1, 4).T
    config, reasoning = _json(checkpoint / "config.json"), checkpoint / "reasoning.json"
    stop = config.get("eos_token_id")
    model = {
        "phase": phase,
        "title": TITLES.get(phase, phase),
        "config": config,
        "reasoning": _json(reasoning) if reasoning.is_file() else None,
        "stop": stop if isinstance(stop, list) else [] if stop is None else [stop],
        "index": [[name, list(tensor.shape)] for name, tensor in tensors.items()],
        "data": phase,
        "rounded": "",
    }
    return model, base64.b64encode(gzip.compress(planes.tobytes(), 9, mtime=0)).decode("ascii")


def _modulus(recipe):
    """Modulus of the arithmetic if the task is `chains`, else None."""
    text = recipe.read_text(encoding="utf-8") if recipe.is_file() else ""
    if not re.search(r'^family\s*=\s*"chains"', text, re.M):
        return None
    found = re.search(r"^modulus\s*=\s*(\d+)", text, re.M)
    return int(found.group(1)) if found else 7


def _json(path):
    return json.loads(path.read_text(encoding="utf-8"))
