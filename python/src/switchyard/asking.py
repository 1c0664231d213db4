"""Converts arguments for `probe`: NumPy arrays and numbers to Python's. Errors name the argument that `probe` cannot read."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np


def own(value):
    """Arrays, series and their scalars as Python lists and numbers. Other values are returned unchanged."""
    if np.ma.is_masked(value):
        raise TypeError("an array with masked values: fill or drop them first")
    if isinstance(value, np.floating):
        return float(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    return value.to_list() if hasattr(value, "to_list") else value


def plain(value, name):
    """A value that JSON can store. Errors call the argument `name`."""
    value = own(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number, found {value}")
    if isinstance(value, Mapping):
        return {str(key): plain(part, key) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(part, name) for part in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise ValueError(f"{name}: {value[:60]!r} has half of a surrogate pair, which is no character")
    if value is None or isinstance(value, (str, int, float)):
        return value
    raise TypeError(f"{name} must be a number, a text or a list of them, found {value!r}")


def several(given):
    """None, one value or several, as a list."""
    given = own(given)
    return [] if given is None else [given] if isinstance(given, (str, int, float)) else list(given)


def prompt_of(prompt):
    """A prompt as text or a list of token ids."""
    prompt = own(prompt)
    if isinstance(prompt, str):
        return prompt
    if not _is_list(prompt):
        raise TypeError(f"a prompt is text or a list of token ids, found {prompt!r}")
    ids = [own(token) for token in prompt]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int):
            raise TypeError(f"a token id is a whole number, found {token!r}")
        if not 0 <= token < 2**32:
            raise ValueError(f"a token id is between 0 and 4294967295, found {token}")
    return ids


def prompts_of(prompts):
    """A list of prompts, and whether the argument was a single prompt."""
    prompts = own(prompts)
    many = _is_list(prompts) and (len(prompts) == 0 or isinstance(own(prompts[0]), Sequence))
    return [prompt_of(prompt) for prompt in (prompts if many else [prompts])], not many


def _is_list(value):
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray))
