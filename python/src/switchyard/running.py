"""Runs `probe generate`: continues one prompt, with hooks that change or record activations."""

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np

from . import safetensors
from .activations import Activations, activations, save
from .asking import plain, prompt_of, several
from .names import old_name
from .traces import Trace

#: Start of a line on standard error that explains an exit: an error of the program, the system or Rust.
ERROR = r"^((.*: )?error\b|.*: .*not found|thread '|memory allocation of |fatal )"


@dataclass(frozen=True, eq=False)
class Change:
    """A change at a hook: `scale` by a number, `add` or `swap` an array with the size of one position. All others are strings."""

    what: str
    value: Any = None


def scale(by):
    """Multiplies the value at the hook."""
    by = plain(float(by), "scale")
    safetensors.float32(by, "scale")
    return Change("scale", by)


def add(array):
    """Adds an array to the value at every position that the hook selects."""
    return Change("add", safetensors.real(array, "add"))


def swap(array):
    """Replaces the value at the hook by an array."""
    return Change("swap", safetensors.real(array, "swap"))


@dataclass
class Run:
    """Result of a generation."""

    #: New token ids, without latent steps.
    tokens: List[int]
    #: `None` if the model has no tokenizer.
    text: Optional[str]
    #: The text with its latent blocks: `⟨swi 4⟩[…]` for four latent steps, with p(`</swi>`) after each.
    shown: str
    trace: Trace = field(repr=False)
    #: Per hook: how often it fired and the mean norm of its change.
    hooks: List[Dict[str, Any]]
    #: `None` if nothing was recorded.
    activations: Optional[Activations]


def run(model, prompt, hooks=None, record=None, probe=None, **flags):
    """Continues `prompt` (text or a list of token ids) with a model: a folder, file or hub id.

    `hooks`: a list of `--hook` lines (`["blocks.3.hook_resid_post@latent[*,2]=scale:0.5"]`), or a dictionary from hook to change: a
    string (`"zero"`, `"rotate:30"`, `"random_norm"`), `scale(2)`, `add(array)` or `swap(array)`. `record`: hooks to record. Other
    flags are those of `probe generate --help`: `max_new_tokens=40`, `k_cap=5`, `chat=True`. Raises `RuntimeError` with the
    program's error and exit status.
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
        warn(done.stderr)
        result = answer_of(done.stdout, "trace")
        trace = result["trace"]
        return Run(
            tokens=result["tokens"],
            text=result["text"],
            shown=result["shown"],
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
    """Comma-separated hook names, in the old names that `probe` reads."""
    return _old(hooks if isinstance(hooks, str) else ",".join(hooks))


def changes(hooks, folder):
    """Lines for `--hook`, from lines or from a dictionary of changes by hook. Arrays are written to files in `folder`."""
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
    """Converts each name of a comma-separated list. Commas inside brackets are part of a name."""
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
        raise TypeError(f"{hook}: {found} is not a change; use swap(array), add(array) or a string: 'zero', 'scale:2', 'random_norm'; a loaded model also takes a function")
    if change.what == "scale":
        return f"scale:{change.value!r}"
    save(file, {"value": safetensors.float32(change.value, f"{hook}: {change.what}")})
    return f"{change.what}:{file}"


def ended(code, stderr):
    """Exit code or signal of a program, and its error if it printed one."""
    signals = {number.value: number.name for number in signal.Signals}
    how = f"ended with code {code}" if code >= 0 else f"was ended by the signal {signals.get(-code, -code)}"
    starts = [at.start() for at in re.finditer(ERROR, stderr, re.M)]
    return f"the program {how}" + (f": {stderr[starts[-1]:].strip()}" if starts else "")


def warn(stderr):
    """Issues the warnings in a program's standard error as Python warnings, at the user's line that called this package."""
    frame, stacklevel = sys._getframe(), 1
    while frame.f_back and Path(frame.f_code.co_filename).parent == Path(__file__).parent:
        frame, stacklevel = frame.f_back, stacklevel + 1
    for line in dict.fromkeys(re.findall(r"^warning: (.*)$", stderr, re.M)):
        warnings.warn(line, stacklevel=stacklevel)


def answer_of(text, *keys):
    """Parses a JSON answer that has one of the keys."""
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or not any(key in answer for key in keys):
        raise RuntimeError(f"not an answer of the program `probe`: {text.strip()[:200]!r}")
    return answer


def program(named):
    """Command prefix of `probe`: the given path, the installed program or the checkout's build."""
    for given in filter(None, (named, os.environ.get("SWITCHYARD_PROBE"))):
        if not Path(given).is_file():
            raise FileNotFoundError(f"{given}: no such program")
        return [str(given)]
    targets = [Path(folder) for folder in filter(None, [os.environ.get("CARGO_TARGET_DIR")])]
    targets += [checkout / "target" for checkout in _checkouts()]
    # A notebook's PATH may lack its environment: the wheel's program is next to its Python.
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
