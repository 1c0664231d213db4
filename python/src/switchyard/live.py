"""One loaded model, many calls: `probe session` in a process of its own, which ends with the object."""

import contextlib
import datetime
import decimal
import inspect
import json
import os
import re
import subprocess
import tempfile
import threading
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import List, Tuple

import numpy as np

from . import safetensors
from .activations import Activations, activations
from .asking import plain, prompt_of, prompts_of, several
from .heatmap import HeatMap, stream_name
from .rows import frame_of
from .running import Run, answer_of, changes, ended, flags_of, names_of, program, swap, warn
from .traces import Trace


@dataclass
class Lens:
    """A text through a lens: what the output of each layer would say as the next token."""

    #: The text's tokens.
    tokens: List[str]
    #: `[layer][position]`: tokens with their probabilities, the most probable first.
    layers: List[List[List[Tuple[str, float]]]]
    #: The model's layer of each entry of `layers`: a fitted lens may lack some.
    read: List[int]

    def top(self, layer, position=-1):
        """The most probable token of a layer at a position, with its probability."""
        if layer not in self.read and not -len(self.read) <= layer < 0:
            raise IndexError(f"no layer {layer}: this lens reads {', '.join(f'blocks.{there}' for there in self.read)} (or -1, the last)")
        at = self.read.index(layer) if layer >= 0 else layer
        return tuple(self.layers[at][position][0])

    def frame(self, library=None):
        """A data frame, as `Rows.frame`: one row a layer, position and rank with `layer`, `position`, `token`, `rank`, `says`, `p`."""
        rows = [
            {"layer": layer, "position": position, "token": self.tokens[position], "rank": rank, "says": says, "p": p}
            for layer, positions in zip(self.read, self.layers)
            for position, readings in enumerate(positions)
            for rank, (says, p) in enumerate(readings)
        ]
        return frame_of(rows, library)

    def __repr__(self):
        width = max([5, *(len(repr(token)) for token in self.tokens)])
        cells = [[" ".join(repr(says) for says, _ in readings) for readings in positions] for positions in self.layers]
        heads = [f"blocks.{layer}" for layer in self.read]
        wide = [max(map(len, [head, *column])) for head, column in zip(heads, cells)]
        lines = ["token".ljust(width) + "".join(f"  {head:>{size}}" for head, size in zip(heads, wide))]
        for position, token in enumerate(self.tokens):
            row = "".join(f"  {column[position]:>{size}}" for column, size in zip(cells, wide))
            lines.append(repr(token).ljust(width) + row)
        return "\n".join(lines)


@dataclass(frozen=True)
class Hook:
    """Where a function as a change is called."""

    #: The hook: `blocks.1.hook_resid_post`.
    name: str
    #: Index of the prompt.
    row: int
    #: Position in its sequence, from 0, latent steps included.
    position: int
    #: `prompt`, `text[0]` or `latent[1,2]`.
    step: str


class Rows(list):
    """Rows of an experiment, a dictionary each: `effect.value`, `effect.low`, `effect.high` and `effect.n` are the column `effect`."""

    def frame(self, library=None):
        """The same as a polars frame; as a pandas one without polars, or with `library="pandas"`."""
        return frame_of(self, library)


class Pairs(Rows):
    """What one patch moves, by component, layer, head and place: shares of the difference of the two runs."""

    #: Tokens of each pair's clean prompt.
    tokens = ()

    def heatmap(self, component="resid", mode=None, form=None):
        """Layer by place, as a `HeatMap`; of a layer's heads the one that moves most."""
        mode = mode or self[0]["mode"]
        rows = [row for row in self if row["component"] == component and row["mode"] == mode and form in (None, row["form"])]
        if not rows:
            there = sorted({(row["component"], row["mode"], row["form"]) for row in self})
            raise ValueError(f"no patches of {component}, {mode}, {form or 'any form'}; there are {there}")
        places = list(dict.fromkeys((row["place"], row.get("back")) for row in rows))
        places.sort(key=_met)
        layers = sorted({row["layer"] for row in rows})
        values = np.full((len(layers), len(places)), np.nan)
        for row in rows:
            at = layers.index(row["layer"]), places.index((row["place"], row.get("back")))
            effect = row["effect.value"]
            if np.isnan(values[at]) or abs(effect) > abs(values[at]):
                values[at] = effect
        names = [place if not back else f"{place}, {back} back" for place, back in places]
        layers = [stream_name(layer) if component == "resid" else f"blocks.{layer}" for layer in layers]
        return HeatMap(values, layers, names, f"{component}, {mode}", [self._token(place) for place, _ in places])

    def _token(self, place):
        """The token at a position: of all pairs, or `*` where they differ. Empty for other places."""
        number = re.fullmatch(r"position\[(\d+)\]", place)
        there = {row[int(number[1])] for row in self.tokens if int(number[1]) < len(row)} if number else set()
        return there.pop() if len(there) == 1 else "*" if there else ""


def _met(place):
    """Places in the order in which a reader meets them."""
    name, back = place
    number = re.search(r"\[(\d+)\]$", name)
    outside = ("prompt", "source", "earlier", "text")
    part = outside.index(name) if name in outside else 4 if back is not None else 5 if name == "readout" else 6
    within = {"swi": 0, "swi_end": 10**9}.get(name, int(number.group(1)) if number else 0)
    return part, -(back or 0), within, name


class Interventions(Rows):
    """One row a mode; `known`: exchanges of known values; `skipped`: modes that could not be run, with their reasons."""

    def __init__(self, told):
        super().__init__({**row, "verdict": verdict} for row, verdict in zip(told["rows"], told["verdicts"]))
        self.known = Rows(told["known"])
        self.skipped = told["skipped"]


def load(model, adapter=None, probe=None, **flags):
    """Loads a folder, file or hub id that `probe` takes, and keeps it: `with sy.load(MODEL) as m: m.generate(…)`.

    Other flags as `probe session --help` names them: `phase="sft"`, `device="cuda"`, `dtype="f32"`, `threads=2`.
    """
    return Model(model, adapter=adapter, probe=probe, **flags)


class Model:
    """A loaded model. Raises `RuntimeError` with the program's own words, and once it has ended with how that came.

    It belongs to the process that loaded it: a forked child that uses it gets a `RuntimeError`.
    """

    def __init__(self, model, adapter=None, probe=None, **flags):
        words = [*program(probe), "session", "--model", str(model), *flags_of({"adapter": adapter, **flags})]
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C in a notebook is for the notebook; the process ends when its input does.
            start_new_session=True,
        )
        self._one = threading.Lock()
        self._owner = os.getpid()
        #: Bytes of the program's standard error that were looked at.
        self._read = 0
        _MODELS.add(self)
        #: The thread in which a function computes a change.
        self._calling = None
        #: Why this side ended the process, whose last answers may still lie in the pipe.
        self._reason = None
        try:
            #: What the model is: `layers`, `width`, `heads`, `vocabulary`, `switches`, `hooks`.
            self.about = self._ask({"do": "about"})
        except BaseException:
            self.close()
            raise

    def generate(self, prompts, hooks=None, record=None, **settings):
        """Continues a prompt (text or token ids), or a list of them in one batch: a `Run`, or a list.

        `hooks` as in `run`; a change may also be a function of the value at the hook, `function(value)` or `function(value, hook)` with a
        `Hook`. It is called once for each position of each prompt, in the order in which the model computes them, with the value of this
        run (all earlier changes included), `[1, …]`, and returns the new value. It costs no further run, only its own calls. `record`: hooks to record; each run has its own `activations`. Settings:
        `max_new_tokens`, `temperature`, `seed`, `top_k`, `top_p`, `k_min`, `k_cap`, `ignore_eos`.
        """
        prompts, one = prompts_of(prompts)
        settings = plain(settings, "settings")
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "recording.safetensors"
            hooks, functions = _changes(hooks, folder)
            ask = {"do": "generate", "prompts": prompts, "hooks": hooks, "settings": settings}
            if record is not None:
                ask.update(record=names_of(record), out=str(out))
            told = self._ask(ask, functions)
            kept = activations(out) if record is not None else None
        runs = [
            Run(
                tokens=row["tokens"],
                text=row["text"],
                trace=Trace(row["trace"]["problem"], row["trace"]["prompt"], row["trace"]["positions"]),
                hooks=told["hooks"],
                activations=kept and kept.row(number),
            )
            for number, row in enumerate(told["rows"])
        ]
        return runs[0] if one else runs

    def cache(self, prompts, names, hooks=None, logits=False) -> Activations:
        """The activations of known texts at hooks: `cache(prompts, "blocks.*.hook_resid_post@pos[-1]")`.

        `logits`: `True` for those of every position, `"last"` for those of the last of each prompt, `[rows, 1, vocabulary]`.
        """
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "cache.safetensors"
            ask = {"do": "cache", "prompts": prompts_of(prompts)[0], "names": names_of(names)}
            ask["logits"] = logits if isinstance(logits, str) else "all" if logits else "none"
            hooks, functions = _changes(hooks, folder)
            self._ask({**ask, "hooks": hooks, "out": str(out)}, functions)
            return activations(out)

    def lens(self, prompt, top=5, hooks=None, kind="logit", lens=None, fit=None, save=None, skip=16) -> Lens:
        """A text through a lens, nothing generated and nothing put around it.

        `kind="jacobian"`: the lens of a file (`lens="lens.pt"`), or one fitted now on texts (`fit`), without the first `skip` positions of
        each, and saved to a file (`save`). A fit costs a backward pass per text and 32 dimensions of the state.
        """
        with tempfile.TemporaryDirectory() as folder:
            files = {name: str(Path(file).absolute()) for name, file in (("lens", lens), ("save", save)) if file is not None}
            chosen = {**files, **({} if kind == "logit" else {"kind": kind})}
            if fit is not None:
                if any("\n" in text for text in several(fit)):
                    raise ValueError("fit: a text has a line break: give one line per text")
                texts = Path(folder) / "texts.txt"
                texts.write_text("\n".join(several(fit)), encoding="utf-8")
                chosen.update(fit=str(texts), skip=skip)
            hooks, functions = _changes(hooks, folder)
            ask = {"do": "lens", "prompt": prompt_of(prompt), "top": top, "hooks": hooks}
            told = self._ask({**ask, "lens": chosen} if chosen else ask, functions)
        return Lens(told["tokens"], told["layers"], told.get("read", list(range(len(told["layers"])))))

    def pairs(self, pairs, components=None, modes=None, places=None, layers=None) -> Pairs:
        """Activation patching between prompts of your own: `model.pairs("pairs.jsonl").heatmap()`.

        A pair is `{"clean": …, "corrupt": …, "answer": " Mary", "wrong": " John"}`: a file with one a line, or a list of them.
        `components`: of `head`, `mlp`, `resid`; `modes`: of `denoise`, `noise`, `mean`; `places`: `number` or `name`;
        `layers`: numbers from 0, by default all.
        """
        with tempfile.TemporaryDirectory() as folder:
            ask = {"do": "pairs", "file": _file(pairs, folder), "components": several(components), "modes": several(modes)}
            told = self._ask({**ask, "places": places, "layers": several(layers)})
        rows = Pairs(told["rows"])
        rows.tokens = told["tokens"]
        return rows

    def patch(self, clean, corrupt, metric, names="blocks.*.hook_resid_post", positions=None) -> HeatMap:
        """Activation patching with a metric of your own: `metric(logits)` is a number for `[positions, vocabulary]`.

        Each cell is a run of the corrupt prompt with the clean run's value at one hook and position: 0 where the metric stays, 1 where
        it becomes the clean run's. It costs a forward per cell, whose logits pass through a file.
        """
        runs = [self.cache(prompt, names, logits=True) for prompt in (clean, corrupt)]
        first, last = (run.lengths[0] for run in runs)
        if first != last:
            raise ValueError(f"the prompts have {first} and {last} tokens: a patch needs equal lengths")
        before, after = (float(metric(run["logits"][0])) for run in reversed(runs))
        if before == after:
            raise ValueError(f"the metric is {before} for both prompts: there is no difference to restore")
        points = [name for name in runs[0] if name != "logits"]
        positions = range(first) if positions is None else list(positions)
        for position in positions:
            if not -first <= position < first:
                raise IndexError(f"position {position} of a prompt of {first} tokens")
        positions = [position % first for position in positions]
        values = np.full((len(points), len(positions)), np.nan)
        for row, point in enumerate(points):
            for column, position in enumerate(positions):
                hook = f"{point}@pos[{position}]"
                patched = self.cache(corrupt, hook, {hook: swap(runs[0].at(point, position))}, logits=True)
                values[row, column] = (float(metric(patched["logits"][0])) - before) / (after - before)
        tokens = self.lens(clean, top=1).tokens
        steps = runs[0].steps[0]
        there = [steps[position] if steps[position].startswith("latent") else f"pos[{position}]" for position in positions]
        return HeatMap(values, points, there, _name(metric, "metric"), [tokens[position] for position in positions])

    def intervene(
        self, problems, modes=None, steps=None, draws=None, n=None, field=None, like=None, seed=0, hooks=None, metric=None, settings=None
    ) -> Rows:
        """What replaced latent inputs do to answers, as `intervene` does it; rows stay in memory.

        `hooks`: what replaced values at hook points do, as `intervene --hook`: `["blocks.2.attn.hook_z@latent[*,2]=mean"]`, or points
        alone with `modes`.

        `problems`: a file that `probe --data` takes, or a list of `{"question": …, "answer": …}`; a question asked twice counts once, with a
        warning. A checkpoint of a run is asked and decoded by the run's recipe, another by `like` (a preset or recipe). `modes`: `["zero", "resample"]`, by
        default those of the program; `n`: the first so many problems; `field`: your own keys, `{"question": "frage"}`.

        `hooks` with functions as changes (as `generate` takes them), or a `metric(run, problem)` that returns a number (a problem has
        `question`, `answer`, `prompt`; without a metric: 1 if the answer is right), give one row a hook, with the mean difference to the
        unchanged runs: its interval is that of `intervene`, of a metric that is not right or wrong a paired bootstrap. `settings` are those of
        `generate`. It costs a run per problem and one per problem and hook, in one batch; a problem that never reaches the hook counts as
        unchanged.
        """
        functions = isinstance(hooks, Mapping) and any(callable(change) for change in hooks.values())
        if functions or metric is not None or settings is not None:
            if not isinstance(hooks, Mapping) or not hooks or any(given is not None for given in (modes, steps, draws)):
                raise ValueError("a function as a change or metric needs hooks={HOOK: CHANGE}, and takes no modes, steps or draws")
            with tempfile.TemporaryDirectory() as folder:
                ask = {"do": "problems", "file": _file(problems, folder), "problems": plain(n, "n"), "like": like}
                ask["field"] = [f"{key}={yours}" for key, yours in (field or {}).items()]
                return self._sweep(ask, hooks, metric, settings or {}, seed)
        with tempfile.TemporaryDirectory() as folder:
            ask = {"do": "intervene", "file": _file(problems, folder), "modes": several(modes), "hooks": changes(hooks, folder)}
            ask.update(steps=[str(step) for step in several(steps)], problems=plain(n, "n"))
            field = [f"{key}={yours}" for key, yours in (field or {}).items()]
            told = self._ask({**ask, "draws": draws, "field": field, "like": like, "seed": seed})
        return Interventions(told)

    def _sweep(self, ask, hooks, metric, settings, seed):
        """One row a hook: a metric of changed runs less that of unchanged ones."""
        if settings.get("temperature"):
            raise ValueError("settings: temperature: changed and unchanged runs would draw different tokens; decode greedily")
        problems = self._ask(ask)["rows"]

        def measured(runs):
            if metric is not None:
                return np.array([float(metric(run, problem)) for run, problem in zip(runs, problems)])
            graded = self._ask({**ask, "texts": [run.text for run in runs]})["rows"]
            return np.array([float(problem["correct"]) for problem in graded])

        normal = self.generate([problem["prompt"] for problem in problems], **settings)
        before, rows = measured(normal), Rows()
        for hook, change in hooks.items():
            runs, reached = self._changed([problem["prompt"] for problem in problems], normal, {hook: change}, settings)
            after = measured(runs)
            row = {"hook": names_of(hook), "change": _name(change, "function"), "reached": reached}
            compared = self._ask({"do": "compare", "before": before, "after": after, "seed": seed})
            for name, mean in (("normal", before.mean()), ("changed", after.mean()), ("difference", (after - before).mean())):
                # One problem has a mean and no interval.
                estimate = compared[name] or {"value": float(mean), "low": None, "high": None, "n": len(problems)}
                row.update({f"{name}.{key}": estimate[key] for key in ("value", "low", "high", "n")})
            rows.append(row)
        return rows

    def _changed(self, prompts, normal, hooks, settings):
        """The changed run of each prompt (the normal one where it never reaches the hook), and how many reach it."""
        try:
            runs = self.generate(prompts, hooks=hooks, **settings)
            return runs, sum(fired > 0 for fired in runs[0].hooks[0].get("rows", [1]))
        except _NeverFires as error:
            if len(prompts) == 1:
                raise
            missed = error
        # A prompt that is too short for the hook: each by itself.
        runs = list(normal)
        for number, prompt in enumerate(prompts):
            with contextlib.suppress(_NeverFires):
                runs[number] = self._changed([prompt], normal, hooks, settings)[0][0]
        reached = sum(run is not unchanged for run, unchanged in zip(runs, normal))
        if not reached:
            raise missed
        return runs, reached

    def problems(self, n=None) -> List[dict]:
        """The held-out problems of the model's run, the first `n`: `id`, `question`, `answer`, `solution`, and the known values of `steps`."""
        rows = self._ask({"do": "problems", "problems": plain(n, "n")})["rows"]
        return [{key: row[key] for key in ("id", "question", "answer", "solution", "steps")} for row in rows]

    def probe(self, prompts, labels, names="blocks.*.hook_resid_post", position=-1, groups=None, seed=0) -> Rows:
        """How well a linear probe reads `labels` (one a prompt) at one position of each prompt, at every hook of `names`.

        Split by prompt, or by `groups` (one number a prompt: those of one group are never on both sides), with labels shuffled
        beside it. One row a hook: `balanced_accuracy`, `selectivity`, `majority`.
        """
        labels = [plain(label, "labels") for label in labels]
        if None in labels:
            raise ValueError(f"labels[{labels.index(None)}] is missing: leave its prompt out")
        labels = [str(label) for label in labels]
        ask = {"do": "probe", "prompts": prompts_of(prompts)[0], "labels": labels, "names": names_of(names)}
        return Rows(self._ask({**ask, "position": position, "groups": groups, "seed": seed})["rows"])

    def close(self):
        """Ends the process; nothing is wrong where it has ended already. Only the process that loaded the model can."""
        if os.getpid() != self._owner:
            return
        # What a dead process did not read cannot be written.
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_process", None) is not None and not self._errors.closed:
            self.close()

    def __reduce__(self):
        raise TypeError("a loaded model cannot be pickled or copied: load it in each process with sy.load")

    def _call(self, functions, call):
        """The new value of a function at one position, as a list."""
        hook, function = functions[call["function"]]
        place = Hook(call["hook"], call["row"], call["position"], call["step"])
        hook = f"{hook} ({place.name}, {place.step} at {place.position})"
        value = np.array(call["values"], "<f4").reshape(1, *call["shape"])
        self._calling = threading.get_ident()
        try:
            new = function(value, hook=place) if _takes_hook(function) else function(value)
        finally:
            self._calling = None
        if new is None:
            raise TypeError(f"{hook}: the function returned None: return the new value (or the argument unchanged)")
        new = safetensors.float32(new, f"{hook}: the function's value")
        if new.shape != value.shape:
            raise ValueError(f"{hook}: the function returned shape {new.shape} for {value.shape}")
        return new.ravel().tolist()

    def _ask(self, ask, functions=()):
        if os.getpid() != self._owner:
            raise RuntimeError(f"the model was loaded in another process ({self._owner}): load it in each process with sy.load")
        if self._calling == threading.get_ident():
            raise RuntimeError("a function as a change is called within a run of this model: use another model in it")
        line, failed = json.dumps(plain(ask, "a request")) + "\n", None
        with self._one:
            if self._errors.closed or self._reason:
                raise RuntimeError(self._ended())
            while True:
                line = self._send(line)
                try:
                    answer = answer_of(line, "ok", "error", "call")
                except RuntimeError:
                    # Which of its lines answer what is not known.
                    self._kill("it gave no answer of `probe`")
                    raise
                if "call" not in answer:
                    break
                try:
                    reply = {"values": self._call(functions, answer["call"])}
                except Exception as error:
                    reply, failed = {"error": str(error)}, error
                except BaseException:
                    self._kill("a request was interrupted")
                    raise
                line = json.dumps(reply) + "\n"
        if failed is not None:
            raise failed
        # Of the caller's line: `_ask` and the method that called it are between.
        warn(self._said(), stacklevel=4)
        if "error" in answer:
            error = re.sub(r"\bcall:(\d+)", lambda call: _name(functions[int(call[1])][1], "function"), answer["error"])
            raise (_NeverFires if "never fire" in error else RuntimeError)(error)
        return answer["ok"]

    def _send(self, line):
        """Writes a line and reads the next one of the program."""
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        except BaseException:
            # The answer may still come: the next request must not read it as its own.
            self._kill("a request was interrupted")
            raise
        if not line.endswith("\n"):
            raise RuntimeError(self._ended())
        return line

    def _said(self):
        """What the program wrote to standard error since the last call. The file's position is the program's too: it stays."""
        if not hasattr(os, "pread"):
            return ""
        end = os.fstat(self._errors.fileno()).st_size
        said = os.pread(self._errors.fileno(), end - self._read, self._read)
        self._read = end
        return said.decode("utf-8", "replace")

    def _disown(self):
        """In a forked child: what it holds of the pipes leads nowhere, so that it neither mixes into them nor keeps them open."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(ValueError, OSError):
                os.dup2(nowhere, pipe.fileno())
        os.close(nowhere)

    def _kill(self, reason):
        self._reason = reason
        self._process.kill()

    def _wait(self):
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ended(self):
        self._wait()
        if self._errors.closed:
            return "the session is closed: load the model again"
        if self._reason:
            return f"the program was ended because {self._reason}: load the model again"
        self._errors.seek(0)
        return ended(self._process.returncode, self._errors.read())


class _NeverFires(RuntimeError):
    """A change that no position reaches."""


def _changes(hooks, folder):
    """Changes as lines, and the functions among them with their hooks: line `HOOK=call:N` is function N."""
    functions = []
    if isinstance(hooks, Mapping):
        functions = [(hook, change) for hook, change in hooks.items() if callable(change)]
        numbers = {hook: f"call:{number}" for number, (hook, _) in enumerate(functions)}
        hooks = {hook: numbers.get(hook, change) for hook, change in hooks.items()}
    return changes(hooks, folder), functions


def _takes_hook(function):
    """Whether a function has a parameter `hook`, as in TransformerLens."""
    try:
        return "hook" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        # A function of C without a signature.
        return False


def _name(given, unnamed):
    """What a table calls a function or change."""
    name = getattr(given, "__name__", None) or getattr(given, "what", given if isinstance(given, str) else unnamed)
    return unnamed if name == "<lambda>" else name


#: Loaded models of this process.
_MODELS = weakref.WeakSet()


def _disown_all():
    for model in list(_MODELS):
        model._disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)


def _file(given, folder):
    """A file by its path; a data frame, a table or a list of records as JSON lines."""
    if isinstance(given, (str, Path)):
        return str(Path(given).absolute())
    file = Path(folder) / "given.jsonl"
    lines = (json.dumps(plain({key: _cell(cell) for key, cell in record.items()}, "a record")) + "\n" for record in _records(given))
    file.write_text("".join(lines), encoding="utf-8")
    return str(file)


def _cell(cell):
    """A cell of a frame that JSON has no type for as its text."""
    return str(cell) if isinstance(cell, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)) else cell


def _records(given):
    if hasattr(given, "collect") and hasattr(given, "collect_schema"):
        given = given.collect()
    if hasattr(given, "to_dicts"):
        return given.to_dicts()
    if hasattr(given, "to_pylist"):
        return given.to_pylist()
    if hasattr(given, "columns") and hasattr(given, "to_dict"):
        # pandas has no other mark than these for what is missing.
        there = given.notna()
        rows = zip(given.to_dict("records"), there.itertuples(index=False, name=None))
        return [{key: cell for (key, cell), is_there in zip(row.items(), marks) if is_there} for row, marks in rows]
    wanted = "expected a file, a data frame or a list of records (dictionaries)"
    if isinstance(given, Mapping) or not hasattr(given, "__iter__"):
        raise TypeError(f"{wanted}, found one {type(given).__name__}")
    records = list(given)
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise TypeError(f"{wanted}; record {number} is a {type(record).__name__}: {record!r:.60}")
    return records
