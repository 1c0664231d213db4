"""One loaded model, many calls: `probe session` in a process of its own, which ends with the object."""

import json
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import List, Tuple

from .activations import Activations, activations
from .running import Run, changes, flags_of, names_of, program
from .traces import Trace


@dataclass
class Lens:
    """The logit lens of a text: what the output of each layer would say as the next token."""

    #: The text's tokens.
    tokens: List[str]
    #: `[layer][position]`: tokens with their probabilities, the most probable first.
    layers: List[List[List[Tuple[str, float]]]]

    def top(self, layer, position=-1):
        """The most probable token of a layer at a position, with its probability."""
        return tuple(self.layers[layer][position][0])

    def frame(self):
        """One row a layer, position and rank: `layer`, `position`, `token`, `rank`, `says`, `p` (a list of dictionaries)."""
        return [
            {"layer": layer, "position": position, "token": self.tokens[position], "rank": rank, "says": says, "p": p}
            for layer, positions in enumerate(self.layers)
            for position, readings in enumerate(positions)
            for rank, (says, p) in enumerate(readings)
        ]

    def __repr__(self):
        width = max([5, *(len(repr(token)) for token in self.tokens)])
        lines = ["token".ljust(width) + "".join(f"  {layer:>10}" for layer in range(len(self.layers)))]
        for position, token in enumerate(self.tokens):
            cells = (positions[position][0][0] for positions in self.layers)
            lines.append(repr(token).ljust(width) + "".join(f"  {cell!r:>10.10}" for cell in cells))
        return "\n".join(lines)


def load(model, adapter=None, probe=None, **flags):
    """Loads a folder, file or hub id that `probe` takes, and keeps it: `with sy.load(MODEL) as m: m.generate(…)`.

    Other flags as `probe session --help` names them: `phase="sft"`, `device="cuda"`, `dtype="f32"`, `threads=2`.
    """
    return Model(model, adapter=adapter, probe=probe, **flags)


class Model:
    """A loaded model. Raises `RuntimeError` with the program's own words."""

    def __init__(self, model, adapter=None, probe=None, **flags):
        words = [*program(probe), "session", "--model", str(model), *flags_of({"adapter": adapter, **flags})]
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            encoding="utf-8",
            # Ctrl-C in a notebook is for the notebook; the process ends when its input does.
            start_new_session=True,
        )
        self._one = threading.Lock()
        try:
            #: What the model is: `layers`, `width`, `heads`, `vocabulary`, `switches`, `hooks`.
            self.about = self._ask({"do": "about"})
        except BaseException:
            self.close()
            raise

    def generate(self, prompts, hooks=None, record=None, **settings):
        """Continues a prompt (text or token ids), or a list of them in one batch: a `Run`, or a list.

        `hooks` as in `run`. `record`: hooks to record, of all rows together. Settings: `max_new_tokens`, `temperature`,
        `seed`, `top_k`, `top_p`, `k_min`, `k_cap`, `ignore_eos`.
        """
        one = _is_one(prompts)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "recording.safetensors"
            ask = {"do": "generate", "prompts": _prompts(prompts), "hooks": changes(hooks, folder), "settings": settings}
            if record is not None:
                ask.update(record=names_of(record), out=str(out))
            told = self._ask(ask)
            kept = activations(out) if record is not None else None
        runs = [
            Run(
                tokens=row["tokens"],
                text=row["text"],
                trace=Trace(row["trace"]["problem"], row["trace"]["prompt"], row["trace"]["positions"]),
                hooks=told["hooks"],
                activations=kept,
            )
            for row in told["rows"]
        ]
        return runs[0] if one else runs

    def cache(self, prompts, names, hooks=None, logits=False) -> Activations:
        """The activations of known texts at hooks: `cache(prompts, "blocks.*.hook_resid_post@pos[-1]")`."""
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "cache.safetensors"
            ask = {"do": "cache", "prompts": _prompts(prompts), "names": names_of(names), "logits": bool(logits)}
            self._ask({**ask, "hooks": changes(hooks, folder), "out": str(out)})
            return activations(out)

    def lens(self, prompt, top=5, hooks=None) -> Lens:
        """The logit lens of a text, nothing generated and nothing put around it."""
        with tempfile.TemporaryDirectory() as folder:
            told = self._ask({"do": "lens", "prompt": prompt, "top": top, "hooks": changes(hooks, folder)})
        return Lens(told["tokens"], told["layers"])

    def close(self):
        """Ends the process."""
        if self._process.poll() is None:
            self._process.stdin.close()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_process", None) is not None and not self._errors.closed:
            self.close()

    def _ask(self, ask):
        with self._one:
            try:
                self._process.stdin.write(json.dumps(ask) + "\n")
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            except (BrokenPipeError, ValueError):
                line = ""
            except KeyboardInterrupt:
                # The answer may still come: the next request must not read it as its own.
                self._process.kill()
                raise
        if not line:
            raise RuntimeError(self._said() or "the session has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]

    def _said(self):
        if self._errors.closed:
            return ""
        self._process.wait(timeout=10)
        self._errors.seek(0)
        return self._errors.read().strip()


def _is_one(prompts):
    return isinstance(prompts, str) or (len(prompts) > 0 and not isinstance(prompts[0], (str, list, tuple)))


def _prompts(prompts):
    many = [prompts] if _is_one(prompts) else prompts
    return [prompt if isinstance(prompt, str) else [int(token) for token in prompt] for prompt in many]
