"""Files of `probe activations` and `probe generate --record` as a dictionary of arrays."""

import copy
import json
import re
from collections.abc import Mapping

import numpy as np

from . import safetensors
from .names import new_name, old_name


#: TransformerLens' short names that differ from the hook name.
_ALIASES = {
    "attn": "pattern",
    "attn_logits": "attn_scores",
    "key": "k",
    "query": "q",
    "value": "v",
    "mlp": "mlp_out",
    "mlp_pre": "pre",
    "mlp_mid": "mid",
    "mlp_post": "post",
}
#: Selected latent steps: block, first step, `..`, last step.
_PATTERN = r"latent\[(\*|\d+),(\*|\d+)(?:(\.\.)(\d*))?\]"
_PARTS = {"a": "attn", "attention": "attn", "m": "mlp", "b": "", "block": "", "blocks": ""}


class Activations(Mapping):
    """Float32 arrays `[rows, positions, …]` (scores and pattern `[rows, heads, positions, keys]`) by hook name.

    Keys are the file's hook names. Look-up also accepts TransformerLens' old, new and short names: `cache["resid_post", 2]`,
    `cache["resid_post", -1]` (the model's last layer), `cache["scale", 0, "ln1"]`, `cache["embed"]`. A hook with one recorded
    selection is found without the selection. The position axis has every position at which some row has a value (`positions`);
    a row is zero at the others.
    """

    def __init__(self, tensors, metadata):
        self._tensors = tensors
        header = {key: json.loads(metadata[key]) for key in ("ids", "lengths", "positions", "steps", "layers") if key in metadata}
        self.model = metadata.get("model")
        #: Layers of the model; `None` in files of older versions.
        self.layers = header.get("layers")
        #: Token ids of each row.
        self.ids = header.get("ids")
        #: Token count of each row.
        self.lengths = header.get("lengths")
        #: By hook name: positions along the position axis. `pos[-1]` of rows with different lengths: one list per row.
        self.positions = header.get("positions", {})
        #: Label of each position, per row: `prompt`, `text[0]`, `latent[1,2]`. Text counts from 0, latents from 1.
        self.steps = header.get("steps")

    def _name(self, key):
        if not isinstance(key, str) and not (isinstance(key, tuple) and len(key) in (2, 3)):
            raise KeyError(f"{key!r}: expected a hook name, or a short name, a layer and perhaps a part")
        names = self._long(*key) if isinstance(key, tuple) else [key, old_name(key), *self._long(key, None)]
        for name in names:
            if name in self._tensors:
                return name
        # `hook_embed` finds `hook_embed@pos[-1]` if that is the only selection.
        places = [there for there in self._tensors if there.partition("@")[0] in names]
        if len(places) == 1:
            return places[0]
        raise KeyError(f"{key!r}: not in the file, which has {', '.join(self._tensors) or 'nothing'}")

    def _long(self, short, layer, part=None):
        """Candidate hook names for a short TransformerLens name."""
        if layer is None:
            return [f"hook_{short}", f"ln_final.hook_{short}"]
        if layer < 0:
            if self.layers is None:
                raise KeyError(f"{(short, layer)!r}: the file does not record how many layers the model has; count from 0")
            layer += self.layers
        short = _ALIASES.get(short, short)
        parts = ("", "attn", "mlp") if part is None else (_PARTS.get(part, part),)
        return [f"blocks.{layer}.{inside and inside + '.'}hook_{short}" for inside in parts]

    def __getitem__(self, key):
        return self._tensors[self._name(key)]

    def __eq__(self, other):
        same = isinstance(other, Activations) and self.keys() == other.keys()
        return same and all(np.array_equal(array, other[name]) for name, array in self.items())

    def __contains__(self, key):
        try:
            self._name(key)
        except KeyError:
            return False
        return True

    def __repr__(self):
        return "\n".join(f"{name}  {list(array.shape)}" for name, array in self._tensors.items()) or "no activations"

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)

    def row(self, number):
        """One row, without the positions that only other rows have."""
        number = self._index(number)
        own = copy.copy(self)
        own.ids, own.lengths, own.steps = ([part[number]] for part in (self.ids, self.lengths, self.steps))
        own._tensors, own.positions = {}, {}
        for name, array in self._tensors.items():
            positions = self._positions(name, number)
            there = [at for at, position in enumerate(positions) if self._has(name, number, position)]
            own.positions[name] = [positions[at] for at in there]
            own._tensors[name] = array[number : number + 1].take(there, axis=2 if _is_attention(name) else 1)
            if _is_attention(name):
                own._tensors[name] = own._tensors[name][..., : self._fed(number)]
        return own

    def _index(self, row):
        """The index of a row, which may count from the end."""
        if self.steps is None:
            raise ValueError("no ids and steps of rows: `save` writes tensors only; `cache`, `generate` and `probe activations` have them")
        if not -len(self.steps) <= row < len(self.steps):
            raise IndexError(f"no row {row}: there are {len(self.steps)}")
        return row % len(self.steps)

    def _positions(self, name, row):
        positions = self.positions[name]
        # Positions counted from the end: one list per row.
        return positions[row] if positions and isinstance(positions[0], list) else positions

    def _fed(self, row):
        """Number of positions of a row that the model read: a generation's last token is sampled but not fed."""
        steps = self.steps[row]
        return len(steps) - steps[-1].startswith("text")

    def _has(self, name, row, position):
        """Whether this row, not only another row of its batch, has a value at a position."""
        steps = self.steps[row]
        if position >= self._fed(row):
            return False
        step, (point, _, selection) = steps[position], name.partition("@")
        if point.startswith("boundary.") and position + 1 < steps.count("prompt"):
            return False
        if point.startswith("latent.") or selection.startswith("latent"):
            return _latent(selection or "latent[*,*]", step) is not None
        if selection == "text":
            return step.startswith("text")
        return selection == step if selection.startswith(("text", "prompt")) else True

    def at(self, key, step, row=None):
        """The value at one step of a row (`latent[1,2]`, `text[3]`), or at a sequence position if `step` is a number.

        With a pattern (`latent[*,*]`, `latent[1,*]`, `latent[*,2..]`): a dictionary of the row's matching steps by (block, step).
        `row` is required if there are several.
        """
        name = self._name(key)
        if row is None and len(self.steps or []) > 1:
            raise ValueError(f"there are {len(self.steps)} rows: at({key!r}, {step!r}, row) names one")
        row = self._index(row or 0)
        if isinstance(step, str) and re.search(r"\*|\.\.", step):
            if not re.fullmatch(_PATTERN, step):
                raise KeyError(f"{step} is not a pattern of latent steps: write latent[*,*], latent[1,*] or latent[*,2..4]")
            found = ((_latent(step, there), position) for position, there in enumerate(self.steps[row]))
            recorded = self._positions(name, row)
            return {place: self.at(name, position, row) for place, position in found if place and position in recorded}
        if not isinstance(step, str):
            position = step
        elif step in self.steps[row]:
            position = self.steps[row].index(step)
        else:
            raise KeyError(f"row {row} has no step {step}; it has {', '.join(dict.fromkeys(self.steps[row]))}")
        positions = self._positions(name, row)
        if position not in positions:
            raise KeyError(f"{name}: position {position} was not recorded")
        index = positions.index(position)
        array = self._tensors[name][row]
        return array[:, index] if _is_attention(name) else array[index]

    def with_new_names(self):
        """A plain dictionary with the names of TransformerLens 3 and later as keys."""
        return {new_name(name): array for name, array in self._tensors.items()}


def _is_attention(name):
    return name.partition("@")[0].endswith(("hook_attn_scores", "hook_pattern"))


def _latent(selection, step):
    """(block, step) of a latent step if the selection (`latent[*,2..]`) matches it, else None."""
    wanted = re.fullmatch(_PATTERN, selection)
    found = re.fullmatch(r"latent\[(\d+),(\d+)\]", step)
    if wanted is None or found is None or wanted[1] not in ("*", found[1]):
        return None
    place = int(found[1]), int(found[2])
    admits = wanted[2] in ("*", found[2]) or (wanted[3] and int(wanted[2]) <= place[1] <= int(wanted[4] or place[1]))
    return place if admits else None


def activations(path):
    """Reads a safetensors file of activations."""
    return Activations(*safetensors.read(path))


def save(path, tensors):
    """Writes arrays by hook name, for `--hook HOOK=add:FILE` and `swap:FILE`. Each array has the size of the value at one position."""
    safetensors.write(path, {old_name(name): array for name, array in tensors.items()})
