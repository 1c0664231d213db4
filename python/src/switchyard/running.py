"""Runs `probe generate`: one prompt continued, with hooks that change it and a recording of its activations."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np

from . import safetensors
from .activations import Activations, activations, save
from .asking import plain, prompt_of, several
from .names import old_name
from .traces import Trace

#: How a line on standard error begins that says why a program ended: its own, the system's, Rust's.
ERROR = r"^((.*: )?error\b|.*: .*not found|thread '|memory allocation of |fatal )"


@dataclass(frozen=True, eq=False)
class Change:
    """What a hook does: `scale` by a number, `add` or `swap` an array of the size of one place. Every other change is a text."""

    what: str
    value: Any = None


def scale(by):
    """Multiplies what the model computed at the hook."""
    by = plain(float(by), "scale")
    safetensors.float32(by, "scale")
    return Change("scale", by)


def add(array):
    """Adds an array to what the model computed, at every place that the hook selects."""
    return Change("add", safetensors.real(array, "add"))


def swap(array):
    """Puts an array in the place of what the model computed."""
    return Change("swap", safetensors.real(array, "swap"))


@dataclass
class Run:
    """What a model wrote."""

    #: New token ids, latent steps left out.
    tokens: List[int]
    #: `None` if the model has no tokenizer.
    text: Optional[str]
    trace: Trace
    #: Of each hook: how often it fired and the mean norm of its change.
    hooks: List[Dict[str, Any]]
    #: `None` where nothing was recorded.
    activations: Optional[Activations]


def run(model, prompt, hooks=None, record=None, probe=None, **flags):
    """Continues `prompt` (text or a list of token ids) with a folder, file or hub id that `probe` takes.

    `hooks`: changes in one line each (`["blocks.3.hook_resid_post@latent[*,2]=scale:0.5"]`), as `--hook` takes them; or by hook its
    change: a text (`"zero"`, `"rotate:30"`, `"random_norm"`), `scale(2)`, `add(array)`, `swap(array)`. `record`: hooks to record. Other flags as `probe generate --help` names them: `max_new_tokens=40`,
    `k_cap=5`, `chat=True`. Raises `RuntimeError` with the program's own words, and how it ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = [*program(probe), "generate", "--model", str(model), "--json", *_prompt(prompt), *flags_of(flags)]
        for change in changes(hooks, folder):
            words += ["--hook", change]
        recording = Path(folder) / "recording.safetensors"
        if record is not None:
            words += ["--record", names_of(record), "--out", str(recording)]
        done = subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", check=False)
        if done.returncode != 0:
            raise RuntimeError(ended(done.returncode, done.stderr))
        warn(done.stderr, stacklevel=3)
        result = answer_of(done.stdout, "trace")
        trace = result["trace"]
        return Run(
            tokens=result["tokens"],
            text=result["text"],
            trace=Trace(trace["problem"], trace["prompt"], trace["positions"]),
            hooks=result.get("hooks", []),
            activations=activations(recording) if record is not None else None,
        )


def _prompt(prompt):
    prompt = prompt_of(prompt)
    return [f"--prompt={prompt}"] if isinstance(prompt, str) else ["--ids", ",".join(map(str, prompt))]


def flags_of(flags):
    words = []
    for name, value in flags.items():
        flag, value = "--" + name.replace("_", "-"), plain(value, name)
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words.append(f"{flag}={value}")
    return words


def names_of(hooks):
    """Hooks as one text, by the names that the program knows."""
    return _old(hooks if isinstance(hooks, str) else ",".join(hooks))


def changes(hooks, folder):
    """Changes as `--hook` takes them: lines, or by hook what is done there. Arrays go into files of the folder."""
    if isinstance(hooks, Mapping):
        return [
            f"{_old(hook)}={_change(change, hook, Path(folder) / f'hook-{number}.safetensors')}"
            for number, (hook, change) in enumerate(hooks.items())
        ]
    lines = several(hooks) if isinstance(hooks, (str, list, tuple, type(None))) else [hooks]
    if not all(isinstance(line, str) for line in lines):
        raise TypeError(f"hooks must be lines HOOK=CHANGE or a dictionary of changes by hook, found a {type(hooks).__name__}")
    return lines


def _old(names):
    """Every name of a list; commas inside brackets belong to a name."""
    parts, depth, start = [], 0, 0
    for index, letter in enumerate(names):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(names[start:index])
            start = index + 1
    return ",".join(old_name(part.strip()) for part in [*parts, names[start:]])


def _change(change, hook, file):
    if isinstance(change, str):
        return change
    if not isinstance(change, Change):
        found = repr(change) if isinstance(change, (int, float)) else f"a bare {type(change).__name__}"
        raise TypeError(f"{hook}: {found} is no change; use swap(array), add(array) or a text: 'zero', 'scale:2', 'random_norm'; a loaded model also takes a function")
    if change.what == "scale":
        return f"scale:{change.value!r}"
    save(file, {"value": safetensors.float32(change.value, f"{hook}: {change.what}")})
    return f"{change.what}:{file}"


def ended(code, said):
    """What is known of a program that ended: its exit code or signal, and its error where it said one."""
    signals = {number.value: number.name for number in signal.Signals}
    how = f"ended with code {code}" if code >= 0 else f"was ended by the signal {signals.get(-code, -code)}"
    starts = [at.start() for at in re.finditer(ERROR, said, re.M)]
    return f"the program {how}" + (f": {said[starts[-1]:].strip()}" if starts else "")


def warn(said, stacklevel):
    """Raises the warnings of a program's standard error as Python's."""
    for line in re.findall(r"^warning: (.*)$", said, re.M):
        warnings.warn(line, stacklevel=stacklevel)


def answer_of(text, *keys):
    """An answer in JSON, which has one of the keys."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not any(key in answer for key in keys):
        raise RuntimeError(f"this is no answer of the program `probe`: {text.strip()[:200]!r}")
    return answer


def program(named):
    """The words that begin a call of `probe`: a path that is named, what is installed, or the checkout's own build."""
    for told in filter(None, (named, os.environ.get("SWITCHYARD_PROBE"))):
        if not Path(told).is_file():
            raise FileNotFoundError(f"{told}: no such program")
        return [str(told)]
    targets = [Path(folder) for folder in filter(None, [os.environ.get("CARGO_TARGET_DIR")])]
    targets += [checkout / "target" for checkout in _checkouts()]
    # A notebook's environment is not always on its PATH: the wheel's program stands beside its Python.
    whole = [shutil.which("switchyard", path=str(Path(sys.executable).parent)), shutil.which("switchyard")]
    found = [[path, "probe"] for path in whole if path]
    built = [target / "debug" / "probe" for target in targets]
    found += [[path] for path in (shutil.which("probe"), *built) if path and Path(path).is_file()]
    if not found:
        looked = ", ".join(str(path) for path in built)
        raise FileNotFoundError(
            f"no program `probe` on the path{f' and none at {looked}' if looked else ''}: run `cargo build` in a checkout of Switchyard "
            "and Python inside it, or set SWITCHYARD_PROBE to the program's path"
        )
    return [str(word) for word in found[0]]


def _checkouts():
    """Checkouts of Switchyard: the one that this file belongs to, then those around the current folder."""
    here = [Path(__file__).resolve().parents[3], Path.cwd(), *Path.cwd().parents]
    return [folder for folder in dict.fromkeys(here) if (folder / "python" / "src" / "switchyard").is_dir()]
