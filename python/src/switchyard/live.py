"""Loads a model once for many calls: each `Model` owns a `probe session` process."""

import contextlib
import datetime
import decimal
import inspect
import json
import operator
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
    """A lens applied to a text: the most probable next tokens at each layer and position."""

    #: The text's tokens.
    tokens: List[str]
    #: `[layer][position]`: tokens with their probabilities, the most probable first.
    layers: List[List[List[Tuple[str, float]]]]
    #: N of `blocks.N` whose output each entry of `layers` reads (`layer` in row files is one more); a fitted lens may lack layers.
    read: List[int]

    def top(self, layer, position=-1):
        """The most probable token of a layer at a position, with its probability."""
        if layer not in self.read and not -len(self.read) <= layer < 0:
            raise IndexError(f"no layer {layer}: this lens reads {', '.join(f'blocks.{there}' for there in self.read)} (or -1, the last)")
        if not -len(self.tokens) <= position < len(self.tokens):
            raise IndexError(f"no position {position}: the text has {len(self.tokens)} tokens")
        at = self.read.index(layer) if layer >= 0 else layer
        return tuple(self.layers[at][position][0])

    def frame(self, library=None):
        """A data frame, as `Rows.frame`. One row per layer, position and rank: `layer`, `position`, `token`, `rank`, `says`, `p`."""
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
    """Where a function change is called: hook, prompt and position."""

    #: Hook name: `blocks.1.hook_resid_post`.
    name: str
    #: Index of the prompt.
    row: int
    #: Position in its sequence, from 0, latent steps included.
    position: int
    #: `prompt`, `text[0]` or `latent[1,2]`.
    step: str


class Rows(list):
    """Rows of an experiment, as dictionaries. `effect.value`, `effect.low`, `effect.high` and `effect.n` belong to the column `effect`."""

    def frame(self, library=None):
        """The rows as a polars frame; as a pandas frame if polars is missing or `library="pandas"`."""
        return frame_of(self, library)


class Pairs(Rows):
    """Effects of single patches by component, layer, head and place, as shares of the difference between the two runs."""

    #: Tokens of each pair's clean prompt.
    tokens = ()

    def heatmap(self, component="resid", mode=None, form=None):
        """A `HeatMap` of layers by places. For heads, a cell is the largest effect of the layer's heads."""
        mode = mode or (self[0]["mode"] if self else "any mode")
        rows = [row for row in self if row["component"] == component and row["mode"] == mode and form in (None, row["form"])]
        # One form: cells of another are of other pairs.
        rows = [row for row in rows if row["form"] == rows[0]["form"]]
        if not rows:
            there = sorted({(row["component"], row["mode"], row["form"]) for row in self})
            raise ValueError(f"no patches of {component}, {mode}, {form or 'any form'}; there are {there}")
        places = list(dict.fromkeys((row["place"], row.get("back")) for row in rows))
        places.sort(key=_reading_order)
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
        """The token at a position, `*` if the pairs differ, empty for other places."""
        number = re.fullmatch(r"position\[(\d+)\]", place)
        there = {row[int(number[1])] for row in self.tokens if int(number[1]) < len(row)} if number else set()
        return there.pop() if len(there) == 1 else "*" if there else ""


def _reading_order(place):
    """Sort key of a place: its order in the text."""
    name, back = place
    number = re.search(r"\[(\d+)\]$", name)
    outside = ("prompt", "source", "earlier", "text")
    part = outside.index(name) if name in outside else 4 if back is not None else 5 if name == "readout" else 6
    within = {"swi": 0, "swi_end": 10**9}.get(name, int(number.group(1)) if number else 0)
    return part, -(back or 0), within, name


class Interventions(Rows):
    """One row per mode. `known`: known-value patches; `skipped`: modes that could not be run, with their reasons."""

    def __init__(self, answer):
        super().__init__({**row, "verdict": verdict} for row, verdict in zip(answer["rows"], answer["verdicts"]))
        self.known = Rows(answer["known"])
        self.skipped = answer["skipped"]


def load(model, adapter=None, probe=None, **flags):
    """Loads a model (folder, file or hub id) for many calls: `with sy.load(MODEL) as m: m.generate(…)`.

    Other flags are those of `probe session --help`: `phase="sft"`, `device="cuda"`, `dtype="f32"`, `threads=2`.
    """
    return Model(model, adapter=adapter, probe=probe, **flags)


class Model:
    """A loaded model. Calls raise `RuntimeError` with the program's error, or with its exit status once it has ended.

    Only the process that loaded it can use it: a forked child gets a `RuntimeError`.
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
            # Ctrl-C in a notebook must not reach the program, which exits when its standard input closes.
            start_new_session=True,
        )
        self._one = threading.Lock()
        self._owner = os.getpid()
        #: Bytes of the program's standard error read so far.
        self._read = 0
        _MODELS.add(self)
        #: Thread that is running a function change, else None.
        self._calling = None
        #: Why this side killed the process; its last answers may still be in the pipe.
        self._reason = None
        try:
            #: Properties of the model: `layers`, `width`, `heads`, `vocabulary`, `switches`, `hooks`.
            self.about = self._ask({"do": "about"})
        except BaseException:
            self.close()
            raise

    def generate(self, prompts, hooks=None, record=None, **settings):
        """Continues a prompt (text or token ids), or a list of them in one batch. Returns a `Run`, or a list.

        `hooks` as in `run`; a change may also be a function of the value at the hook, `function(value)` or `function(value, hook)` with a
        `Hook`. It is called once for each position of each prompt, in forward order, with the value `[1, …]` after all earlier changes,
        and returns the new value. It needs no second forward. `record`: hooks to record; each run has its own `activations`. Settings:
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
            answer = self._ask(ask, functions)
            recorded = activations(out) if record is not None else None
        runs = [
            Run(
                tokens=row["tokens"],
                text=row["text"],
                shown=row["shown"],
                trace=Trace(row["trace"]["problem"], row["trace"]["prompt"], row["trace"]["positions"]),
                hooks=answer["hooks"],
                activations=recorded and recorded.row(number),
            )
            for number, row in enumerate(answer["rows"])
        ]
        return runs[0] if one else runs

    def cache(self, prompts, names, hooks=None, logits=False) -> Activations:
        """Activations of given texts at hooks: `cache(prompts, "blocks.*.hook_resid_post@pos[-1]")`.

        `logits`: `True` for every position, `"last"` for the last position of each prompt, `[rows, 1, vocabulary]`.
        """
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "cache.safetensors"
            ask = {"do": "cache", "prompts": prompts_of(prompts)[0], "names": names_of(names)}
            ask["logits"] = logits if isinstance(logits, str) else "all" if logits else "none"
            hooks, functions = _changes(hooks, folder)
            self._ask({**ask, "hooks": hooks, "out": str(out)}, functions)
            return activations(out)

    def lens(self, prompt, top=5, hooks=None, kind="logit", lens=None, fit=None, save=None, skip=16) -> Lens:
        """Applies a lens to a text, without generation and without a template.

        `kind="jacobian"`: a lens from a file (`lens="lens.pt"`), or one fitted on texts (`fit`) without the first `skip` positions of
        each and saved to a file (`save`). A fit costs one backward pass per text and 32 dimensions of the state.
        """
        with tempfile.TemporaryDirectory() as folder:
            files = {name: str(Path(file).absolute()) for name, file in (("lens", lens), ("save", save)) if file is not None}
            chosen = {**files, **({} if kind == "logit" else {"kind": kind})}
            if fit is not None:
                lines = plain(several(fit), "fit")
                if any("\n" in line for line in lines):
                    raise ValueError("fit: a text has a line break: give one line per text")
                texts = Path(folder) / "texts.txt"
                texts.write_text("\n".join(lines), encoding="utf-8")
                chosen.update(fit=str(texts), skip=skip)
            hooks, functions = _changes(hooks, folder)
            ask = {"do": "lens", "prompt": prompt_of(prompt), "top": top, "hooks": hooks}
            answer = self._ask({**ask, "lens": chosen} if chosen else ask, functions)
        return Lens(answer["tokens"], answer["layers"], answer.get("read", list(range(len(answer["layers"])))))

    def pairs(self, pairs, components=None, modes=None, places=None, layers=None) -> Pairs:
        """Activation patching between pairs of prompts: `model.pairs("pairs.jsonl").heatmap()`.

        A pair is `{"clean": …, "corrupt": …, "answer": " Mary", "wrong": " John"}`: `pairs` is a list of them or a JSONL file.
        `components`: any of `head`, `mlp`, `resid`; `modes`: any of `denoise`, `noise`, `mean`; `places`: `number` or `name`;
        `layers`: numbers from 0, by default all.
        """
        with tempfile.TemporaryDirectory() as folder:
            ask = {"do": "pairs", "file": _file(pairs, folder), "components": several(components), "modes": several(modes)}
            answer = self._ask({**ask, "places": places, "layers": several(layers)})
        rows = Pairs(answer["rows"])
        rows.tokens = answer["tokens"]
        return rows

    def patch(self, clean, corrupt, metric, names="blocks.*.hook_resid_post", positions=None) -> HeatMap:
        """Activation patching with your own metric: `metric(logits)` returns a number for logits `[positions, vocabulary]`.

        Each cell is a forward of the corrupt prompt with the clean value at one hook and position: 0 if the metric does not change, 1
        if it equals the clean one. Costs one forward per cell; logits pass through a file.
        """
        if "@" in names_of(names):
            raise ValueError(f"names {names_of(names)!r}: give hooks without `@…`, and `positions`")
        runs = [self.cache(prompt, names, logits=True) for prompt in (clean, corrupt)]
        first, last = (run.lengths[0] for run in runs)
        if first != last:
            raise ValueError(f"the prompts have {first} and {last} tokens: a patch needs equal lengths")
        before, after = (float(metric(run["logits"][0])) for run in reversed(runs))
        if not np.isfinite(after - before):
            raise ValueError(f"the metric is {after} and {before} for the prompts: it must be a finite number")
        if before == after:
            raise ValueError(f"the metric is {before} for both prompts: there is no difference to restore")
        points = [name for name in runs[0] if name != "logits"]
        positions = range(first) if positions is None else [operator.index(position) for position in several(positions)]
        for position in positions:
            if not -first <= position < first:
                raise IndexError(f"position {position} of a prompt of {first} tokens")
        positions = [position % first for position in positions]
        values = np.full((len(points), len(positions)), np.nan)
        for row, point in enumerate(points):
            for column, position in enumerate(positions):
                if position not in runs[0].positions[point]:
                    # Hooks of the latent inputs have no value at text.
                    continue
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
        """Effect of replaced latent inputs on answers, as in the program `intervene`; rows stay in memory.

        `hooks`: changes at hook points, as in `intervene --hook`: `["blocks.2.attn.hook_z@latent[*,2]=mean"]`; or hook points alone,
        with `modes`.

        `problems`: a file for `probe --data`, or a list of `{"question": …, "answer": …}`; repeated questions count once, with a warning.
        Prompts and decoding follow the recipe of the checkpoint's run; for other checkpoints, `like` (a preset or recipe).
        `modes`: `["zero", "resample"]`, by default those of the program; `n`: number of problems; `field`: your own keys,
        `{"question": "frage"}`.

        Function changes in `hooks` (as in `generate`), or a `metric(run, problem)` that returns a number (a problem has `question`,
        `answer`, `prompt`; by default: 1 if the answer is right), give one row per hook: the mean difference from the unchanged runs,
        with the interval of `intervene`, or a paired bootstrap if the metric is not binary. `settings` are those of `generate`. Costs
        one generation per problem and one per problem and hook, in one batch; a problem that never reaches the hook counts as unchanged.
        """
        functions = isinstance(hooks, Mapping) and any(callable(change) for change in hooks.values())
        if functions or metric is not None or settings is not None:
            if not isinstance(hooks, Mapping) or not hooks or any(given is not None for given in (modes, steps, draws)):
                raise ValueError("a function change or metric needs hooks={HOOK: CHANGE}, and takes no modes, steps or draws")
            with tempfile.TemporaryDirectory() as folder:
                ask = {"do": "problems", "file": _file(problems, folder), "problems": plain(n, "n"), "like": like}
                ask["field"] = [f"{key}={yours}" for key, yours in (field or {}).items()]
                return self._sweep(ask, hooks, metric, settings or {}, seed)
        with tempfile.TemporaryDirectory() as folder:
            ask = {"do": "intervene", "file": _file(problems, folder), "modes": several(modes), "hooks": changes(hooks, folder)}
            ask.update(steps=[str(step) for step in several(steps)], problems=plain(n, "n"))
            field = [f"{key}={yours}" for key, yours in (field or {}).items()]
            answer = self._ask({**ask, "draws": draws, "field": field, "like": like, "seed": seed})
        return Interventions(answer)

    def _sweep(self, ask, hooks, metric, settings, seed):
        """One row per hook: the metric of the changed runs minus that of the unchanged runs."""
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
                # A single problem has no interval.
                estimate = compared[name] or {"value": float(mean), "low": None, "high": None, "n": len(problems)}
                row.update({f"{name}.{key}": estimate[key] for key in ("value", "low", "high", "n")})
            rows.append(row)
        return rows

    def _changed(self, prompts, normal, hooks, settings):
        """The changed run of each prompt (the normal run if it never reaches the hook), and the number that reach it."""
        try:
            runs = self.generate(prompts, hooks=hooks, **settings)
            return runs, sum(fired > 0 for fired in runs[0].hooks[0].get("rows", [1]))
        except _NeverFires as error:
            if len(prompts) == 1:
                raise
            missed = error
        # Some prompt never reaches the hook: run each prompt alone.
        runs = list(normal)
        for number, prompt in enumerate(prompts):
            with contextlib.suppress(_NeverFires):
                runs[number] = self._changed([prompt], normal, hooks, settings)[0][0]
        reached = sum(run is not unchanged for run, unchanged in zip(runs, normal))
        if not reached:
            raise missed
        return runs, reached

    def problems(self, n=None) -> List[dict]:
        """The first `n` held-out problems of the model's run: `id`, `question`, `answer`, `solution`, known values in `steps`, and the
        token ids of the `prompt`."""
        rows = self._ask({"do": "problems", "problems": plain(n, "n")})["rows"]
        return [{key: row[key] for key in ("id", "question", "answer", "solution", "steps", "prompt")} for row in rows]

    def probe(self, prompts, labels, names="blocks.*.hook_resid_post", position=-1, groups=None, seed=0) -> Rows:
        """Accuracy of a linear probe for `labels` (one per prompt) at one position of each prompt, for every hook of `names`.

        The split is by prompt, or by `groups` (one number per prompt; a group is never on both sides). Shuffled labels are the
        control. One row per hook: `accuracy`, `control`, `selectivity`, `majority`, and the same for balanced accuracy.

        `position` counts latent steps too: `model.cache(prompt, "hook_embed").steps[0].index("latent[1,4]")`. `names` without `@…`.
        """
        labels = [plain(label, "labels") for label in labels]
        if None in labels:
            raise ValueError(f"labels[{labels.index(None)}] is missing: leave its prompt out")
        labels = [str(label) for label in labels]
        ask = {"do": "probe", "prompts": prompts_of(prompts)[0], "labels": labels, "names": names_of(names)}
        return Rows(self._ask({**ask, "position": position, "groups": groups, "seed": seed})["rows"])

    def close(self):
        """Ends the process if it still runs. Does nothing in a forked child."""
        if os.getpid() != self._owner:
            return
        # Flushing to a dead process fails.
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
        """Calls a function change at one position. Returns the new value as a list."""
        if call["function"] >= len(functions):
            raise ValueError("`call:N` is written for functions: give hooks={HOOK: function}")
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
            raise RuntimeError("a function change cannot call the model that is running it: use another model in it")
        line, failed = json.dumps(plain(ask, "a request")) + "\n", None
        with self._one:
            if self._errors.closed or self._reason:
                raise RuntimeError(self._ended())
            while True:
                line = self._send(line)
                try:
                    answer = answer_of(line, "ok", "error", "call")
                except RuntimeError:
                    # Later lines can no longer be matched to requests.
                    self._kill("it sent an invalid answer")
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
        warn(self._new_stderr())
        if failed is not None:
            raise failed
        if "error" in answer:
            names = {f"call:{number}": _name(function, "function") for number, (_, function) in enumerate(functions)}
            error = re.sub(r"\bcall:\d+", lambda call: names.get(call[0], call[0]), answer["error"])
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
        except ValueError:
            # Another thread closed the model.
            if self._process.stdin.closed:
                raise RuntimeError(self._ended()) from None
            self._kill("a request was interrupted")
            raise
        except BaseException:
            # The answer may still come: the next request must not read it as its own.
            self._kill("a request was interrupted")
            raise
        if not line.endswith("\n"):
            raise RuntimeError(self._ended())
        return line

    def _new_stderr(self):
        """Standard error since the last call. `pread`, because the program shares the file position."""
        if not hasattr(os, "pread"):
            return ""
        try:
            end = os.fstat(self._errors.fileno()).st_size
            new = os.pread(self._errors.fileno(), end - self._read, self._read)
        except ValueError:
            # Another thread closed the model.
            return ""
        self._read = end
        return new.decode("utf-8", "replace")

    def _disown(self):
        """Redirects a forked child's pipes to /dev/null, so that it neither writes to them nor holds them open."""
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
        if self._process.stdin.closed:
            return "the session is closed: load the model again"
        if self._reason:
            return f"the program was ended because {self._reason}: load the model again"
        self._errors.seek(0)
        return ended(self._process.returncode, self._errors.read())


class _NeverFires(RuntimeError):
    """No position reaches a change's hook."""


def _changes(hooks, folder):
    """Lines for `--hook`, and the (hook, function) pairs: `HOOK=call:N` calls function N."""
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
        # A C function without a signature.
        return False


def _name(given, unnamed):
    """Name of a function or change in a table."""
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
    """Path of a problem file. Writes a data frame, table or list of records to `folder` as JSONL."""
    if isinstance(given, (str, Path)):
        return str(Path(given).absolute())
    file = Path(folder) / "given.jsonl"
    lines = (json.dumps(plain({key: _cell(cell) for key, cell in record.items()}, "a record")) + "\n" for record in _records(given))
    file.write_text("".join(lines), encoding="utf-8")
    return str(file)


def _cell(cell):
    """A cell of a frame; types that JSON lacks as text."""
    return str(cell) if isinstance(cell, (datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID)) else cell


def _records(given):
    if hasattr(given, "collect") and hasattr(given, "collect_schema"):
        given = given.collect()
    if hasattr(given, "to_dicts"):
        return given.to_dicts()
    if hasattr(given, "to_pylist"):
        return given.to_pylist()
    if hasattr(given, "columns") and hasattr(given, "to_dict"):
        # pandas marks missing values in several ways; `notna` finds all.
        if not given.columns.is_unique:
            raise ValueError(f"the data frame has several columns {given.columns[given.columns.duplicated()][0]!r}: rename or drop them")
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
