"""Layers by places, shown as colours: by a notebook as a table, and as a PNG file."""

import html
from dataclasses import dataclass
from typing import List

import numpy as np


def stream_name(passed):
    """The residual stream after this many layers, as tables name it: `embedding`, then `blocks.0`, …"""
    return f"blocks.{passed - 1}" if passed else "embedding"


def _short(value):
    """Two decimals, without a sign before zero."""
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


@dataclass(eq=False)
class HeatMap:
    """Layer by place. Shown by a notebook as a table of colours."""

    #: `[layers, places]`; NaN where nothing was patched.
    values: np.ndarray
    #: Names of the layers: `embedding`, `blocks.0`, …
    layers: List[str]
    places: List[str]
    title: str
    #: What is read at each place, if it is known.
    tokens: List[str]

    def _labels(self):
        return [f"{place} {token}".strip() for place, token in zip(self.places, self.tokens)]

    def _repr_html_(self):
        def cell(value):
            if np.isnan(value):
                return "<td></td>"
            colour = "37, 99, 235" if value > 0 else "234, 88, 12"
            return f'<td style="background: rgba({colour}, {min(abs(value), 1.0):.2f})">{_short(value)}</td>'

        head = "".join(f"<th>{html.escape(label)}</th>" for label in self._labels())
        body = "".join(
            f"<tr><th>{html.escape(layer)}</th>{''.join(cell(value) for value in row)}</tr>"
            for layer, row in reversed(list(zip(self.layers, self.values)))
        )
        return f"<table><caption>{html.escape(self.title)}</caption><tr><th>layer</th>{head}</tr>{body}</table>"

    def save_png(self, path):
        """Draws it with matplotlib (`pip install matplotlib`), the first layer below."""
        from matplotlib.figure import Figure

        rows, columns = self.values.shape
        figure = Figure(figsize=(2.5 + 0.6 * columns, 1.8 + 0.4 * rows), layout="constrained")
        axes = figure.subplots()
        most = max(1.0, float(np.nanmax(np.abs(self.values), initial=0.0)))
        image = axes.imshow(self.values, origin="lower", aspect="auto", cmap="PuOr_r", vmin=-most, vmax=most)
        axes.set_xticks(range(columns), self._labels(), rotation=45, ha="right")
        axes.set_yticks(range(rows), self.layers)
        axes.set_title(self.title)
        for (row, column), value in np.ndenumerate(self.values):
            if not np.isnan(value):
                colour = "white" if abs(value) > 0.6 * most else "black"
                axes.text(column, row, _short(value), ha="center", va="center", color=colour, fontsize=8)
        figure.colorbar(image, label="share of the difference")
        figure.savefig(path, dpi=150)
