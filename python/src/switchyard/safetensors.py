"""The safetensors format: a length, a JSON header, bytes. Needs only NumPy."""

import json
import struct

import numpy as np

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "?"}


def read(path):
    """Tensors by name (BF16 as float32), and the file's metadata (strings by name)."""
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 8 or struct.unpack("<Q", data[:8])[0] > len(data) - 8:
        raise ValueError(f"{path}: not a safetensors file")
    start = 8 + struct.unpack("<Q", data[:8])[0]
    try:
        header = json.loads(data[8:start])
    except ValueError as error:
        raise ValueError(f"{path}: not a safetensors file") from error
    metadata = header.pop("__metadata__", {})
    return {name: _array(path, name, entry, data, start) for name, entry in header.items()}, metadata


def _array(path, name, entry, data, start):
    kind = entry["dtype"]
    begin, end = (start + offset for offset in entry["data_offsets"])
    if kind == "BF16":
        # BF16 is the upper half of a float32.
        bits = np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16
        return bits.view("<f4").reshape(entry["shape"])
    if kind not in _TYPES:
        raise ValueError(f"{path}: `{name}` is of type {kind}, known are {', '.join(_TYPES)}, BF16")
    # Copy: views of the file's bytes are read-only.
    return np.frombuffer(data[begin:end], _TYPES[kind]).reshape(entry["shape"]).copy()


def real(value, name):
    """An array of real numbers. Raises `TypeError`, which names `name`, for masked, complex and other arrays."""
    masked = _masked(value)
    if masked:
        raise TypeError(f"{name}: the array masks {masked} values, which would be written unmasked; fill them")
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected an array of real numbers, found one of type {array.dtype}")
    return array


def _masked(value):
    """Number of masked values in an array or a list of arrays."""
    if isinstance(value, (list, tuple)):
        return sum(map(_masked, value))
    return int(np.ma.count_masked(value)) if isinstance(value, np.ma.MaskedArray) else 0


def float32(value, name):
    """An array of finite numbers as float32. Raises `ValueError` for NaN, infinity and overflow."""
    array = real(value, name)
    with np.errstate(over="ignore"):
        narrow = array.astype("<f4")
    bad = ~np.isfinite(narrow)
    if bad.any():
        raise ValueError(f"{name} must be of finite numbers, found {array[bad][0]} ({narrow[bad][0]} as float32)")
    return narrow


def write(path, tensors, metadata=None):
    """Writes arrays by name as float32, with metadata (strings by name). Raises the errors of `float32`."""
    header, parts, offset = ({"__metadata__": metadata} if metadata else {}), [], 0
    for name, array in tensors.items():
        array = np.ascontiguousarray(float32(array, name))
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        parts.append(array.tobytes())
        offset += array.nbytes
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head + b"".join(parts))
