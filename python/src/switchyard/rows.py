"""Rows of experiments as data frames, and their manifest."""

import json
from pathlib import Path


def rows(path, library=None):
    """Reads a `.parquet` or `.csv` file of rows as a polars frame; as a pandas frame if polars is missing or `library="pandas"`."""
    path = Path(path)
    if path.suffix not in (".parquet", ".csv"):
        raise ValueError(f"{path}: rows are .parquet or .csv files")
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in path.parent.glob("*.parquet"))) or "no rows"
        raise FileNotFoundError(f"{path}: no such file; {path.parent} has {there}")
    if library not in (None, "polars", "pandas"):
        raise ValueError(f"library={library!r}: polars or pandas")
    frames = _library(library)
    return frames.read_parquet(path) if path.suffix == ".parquet" else frames.read_csv(path, **_every(frames))


def frame_of(records, library=None):
    """A data frame of records (dictionaries by column)."""
    if library not in (None, "polars", "pandas"):
        raise ValueError(f"library={library!r}: polars or pandas")
    frames = _library(library)
    return frames.DataFrame(list(records), **_every(frames))


def _every(frames):
    """By default polars infers columns and types from the first 100 records."""
    return {"infer_schema_length": None} if frames.__name__ == "polars" else {}


def _library(named):
    for library in (named,) if named else ("polars", "pandas"):
        try:
            return __import__(library)
        except ImportError:
            continue
    missing = named or "polars"
    raise ImportError(f"rows need {missing}: pip install {missing} (pandas reads Parquet with pyarrow)")


def manifest(folder):
    """`manifest.json` of a folder of rows: command, commit, settings, seed and columns, by the name of the rows."""
    with open(Path(folder) / "manifest.json", encoding="utf-8") as file:
        return json.load(file)


def columns(folder, name):
    """Unit and description of each column. `p.value`, `p.low`, `p.high`, `p.n` belong to the column `p`: an estimate, its
    95 % interval and its sample size."""
    entries = manifest(folder)
    if name not in entries:
        raise KeyError(f"{folder}: no rows `{name}`; it has {', '.join(entries)}")
    return entries[name]["columns"]
