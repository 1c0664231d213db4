"""Reads what Switchyard writes (rows, activations, traces) and runs its program `probe`."""

from .activations import Activations, activations, save
from .heatmap import HeatMap
from .laboratory import view
from .live import Hook, Interventions, Lens, Model, Pairs, Rows, load
from .names import new_name, old_name
from .rows import columns, manifest, rows
from .running import Run, add, run, scale, swap
from .traces import Trace, traces

__version__ = "0.2.0"

__all__ = [
    "Activations",
    "HeatMap",
    "Hook",
    "Interventions",
    "Lens",
    "Model",
    "Pairs",
    "Rows",
    "Run",
    "Trace",
    "activations",
    "add",
    "columns",
    "load",
    "manifest",
    "new_name",
    "old_name",
    "rows",
    "run",
    "save",
    "scale",
    "swap",
    "traces",
    "view",
]
