"""Files of `probe activations` and `probe generate --record` as a dictionary of arrays."""

import json
from collections.abc import Mapping

import numpy as np

from . import safetensors
from .names import new_name, old_name


class Activations(Mapping):
    """Float32 arrays `[rows, positions, …]` (scores and pattern `[rows, heads, positions, keys]`) by hook name.

    Keys are the file's names; old and new names of TransformerLens are found, and `cache["resid_post", 2]` as there.
    Rows are padded on the right with zeros.
    """

    def __init__(self, tensors, metadata):
        self._tensors = tensors
        told = {key: json.loads(metadata[key]) for key in ("ids", "lengths", "positions", "steps") if key in metadata}
        self.model = metadata.get("model")
        #: Token ids of each row.
        self.ids = told.get("ids")
        #: Tokens of each row.
        self.lengths = told.get("lengths")
        #: By hook name: the positions that the position axis holds.
        self.positions = told.get("positions", {})
        #: Of each row, what each position is: `prompt`, `text[0]`, `latent[1,2]`. Text counts from 0, latents from 1.
        self.steps = told.get("steps")

    def _name(self, key):
        if isinstance(key, tuple):
            short, layer = key
            found = [f"blocks.{layer}.{part}hook_{short}" for part in ("", "attn.", "mlp.")]
            key = next((name for name in found if name in self._tensors), found[0])
        name = key if key in self._tensors else old_name(key)
        if name not in self._tensors:
            raise KeyError(f"{key}: not in the file, which has {', '.join(self._tensors) or 'nothing'}")
        return name

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

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)

    def at(self, key, step, row=0):
        """The value at one step of a row (`latent[1,2]`, `text[3]`), or at a true position if `step` is a number."""
        name = self._name(key)
        if not isinstance(step, str):
            position = step
        elif step in self.steps[row]:
            position = self.steps[row].index(step)
        else:
            raise KeyError(f"row {row} has no step {step}; it has {', '.join(dict.fromkeys(self.steps[row]))}")
        if position not in self.positions[name]:
            raise KeyError(f"{name}: position {position} was not recorded")
        index = self.positions[name].index(position)
        array = self._tensors[name][row]
        is_attention = name.partition("@")[0].endswith(("hook_attn_scores", "hook_pattern"))
        return array[:, index] if is_attention else array[index]

    def with_new_names(self):
        """A plain dictionary under the names of TransformerLens 3 and later."""
        return {new_name(name): array for name, array in self._tensors.items()}


def activations(path):
    """Reads a safetensors file of activations."""
    return Activations(*safetensors.read(path))


def save(path, tensors):
    """Writes arrays by hook name, for `--hook HOOK=add:FILE` and `swap:FILE`: each of the size of one place."""
    safetensors.write(path, {old_name(name): array for name, array in tensors.items()})
