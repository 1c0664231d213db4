"""Heat maps of layers by places: an HTML table in a notebook, a PNG or an SVG file."""

import html
from dataclasses import dataclass
from typing import List

import numpy as np


def stream_name(passed):
    """Name of the residual stream after `passed` layers: `embedding`, then `blocks.0`, …"""
    return f"blocks.{passed - 1}" if passed else "embedding"


def _short(value):
    """Two decimals, without a sign before zero."""
    text = f"{value:.2f}"
    return "0.00" if text == "-0.00" else text


def _visible(token):
    """A token with control characters escaped (`\\n`): labels are one line, and XML has no control characters."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in token)


@dataclass(eq=False)
class HeatMap:
    """Layers by places. Notebooks show it as a coloured table."""

    #: `[layers, places]`; NaN where nothing was patched.
    values: np.ndarray
    #: Names of the layers: `embedding`, `blocks.0`, …
    layers: List[str]
    places: List[str]
    title: str
    #: Token at each place, empty if unknown.
    tokens: List[str]

    def _labels(self):
        return [f"{place} {_visible(token)}".strip() for place, token in zip(self.places, self.tokens)]

    def __repr__(self):
        # At most 12 places: those with the largest values, in the order of the sequence.
        largest = np.abs(np.nan_to_num(self.values)).max(axis=0, initial=0.0)
        order = np.argsort(-largest, kind="stable")
        places, hidden = sorted(order[:12]), order[12:]
        labels = self._labels()
        shown = [labels[place] for place in places]
        wide, left = [max(5, len(label)) for label in shown], max([5, *map(len, self.layers)])
        lines = [self.title, "layer".ljust(left) + "".join(f"  {label:>{size}}" for label, size in zip(shown, wide))]
        for layer, row in reversed(list(zip(self.layers, self.values))):
            cells = ("" if np.isnan(value) else _short(value) for value in row[places])
            lines.append(layer.ljust(left) + "".join(f"  {cell:>{size}}" for cell, size in zip(cells, wide)))
        if len(hidden):
            lines.append(f"({len(hidden)} more places, with values of at most {largest[hidden].max():.2f})")
        return "\n".join(lines)

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
        """Writes a PNG with matplotlib (`pip install matplotlib`), first layer at the bottom. `save_svg` needs no package."""
        try:
            from matplotlib.figure import Figure
        except ImportError as error:
            raise ImportError("save_png needs matplotlib: pip install matplotlib (save_svg needs no package)") from error

        rows, columns = self.values.shape
        figure = Figure(figsize=(2.5 + 0.6 * columns, 1.8 + 0.4 * rows), layout="constrained")
        axes = figure.subplots()
        most = max(1.0, float(np.nanmax(np.abs(self.values), initial=0.0)))
        image = axes.imshow(self.values, origin="lower", aspect="auto", cmap="PuOr", vmin=-most, vmax=most)
        # A `$` in a token begins no formula.
        axes.set_xticks(range(columns), self._labels(), rotation=45, ha="right", parse_math=False)
        axes.set_yticks(range(rows), self.layers)
        axes.set_title(self.title, parse_math=False)
        for (row, column), value in np.ndenumerate(self.values):
            if not np.isnan(value):
                colour = "white" if abs(value) > 0.6 * most else "black"
                axes.text(column, row, _short(value), ha="center", va="center", color=colour, fontsize=8)
        figure.colorbar(image, label="share of the difference")
        figure.savefig(path, dpi=150)

    def save_svg(self, path):
        """Writes an SVG file, first layer at the bottom."""
        wide, high, top, labels = 46, 24, 34, self._labels()
        rows, columns = self.values.shape
        # A label ends below its column and begins 45 degrees lower to the left.
        reach = (4.5 * len(label) - (column + 0.5) * wide for column, label in enumerate(labels))
        left = round(max([12 + 7 * max(map(len, self.layers), default=0), *reach]))
        bottom = top + rows * high
        parts = [f'<text x="{left}" y="18" font-size="13">{html.escape(self.title)}</text>']
        for (row, column), value in np.ndenumerate(self.values):
            x, y = left + column * wide, bottom - (row + 1) * high
            if not np.isnan(value):
                colour = "#2563eb" if value > 0 else "#ea580c"
                parts.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{colour}" fill-opacity="{min(abs(value), 1.0):.2f}"/>')
                parts.append(f'<text x="{x + wide / 2}" y="{y + 16}" text-anchor="middle">{_short(value)}</text>')
        for row, layer in enumerate(self.layers):
            parts.append(f'<text x="{left - 6}" y="{bottom - row * high - 8}" text-anchor="end">{html.escape(layer)}</text>')
        for column, label in enumerate(labels):
            x, y = left + (column + 0.5) * wide, bottom + 12
            parts.append(f'<text transform="translate({x} {y}) rotate(-45)" text-anchor="end">{html.escape(label)}</text>')
        width = left + max(columns * wide, 8 * len(self.title)) + 12
        height = bottom + 20 + 6 * max(map(len, labels), default=0)
        head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">'
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join([head, *parts, "</svg>"]) + "\n")
