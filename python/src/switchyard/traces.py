"""Traces: decoded sequences, position by position."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List

from .rows import rows

LATENT = "latent"


@dataclass
class Trace:
    """One decoded sequence. `prompt` is text if the rows have it, else token ids. Each position has `kind` (text, swi,
    latent, swi_end_sampled, swi_end_forced) and, where they apply, `logprob` and `entropy` (nats), `p_swi`, `p_exit`."""

    problem: int
    prompt: Any
    positions: List[Dict[str, Any]]

    @property
    def latents(self):
        """The latent steps, in order."""
        return [position for position in self.positions if position["kind"] == LATENT]

    @property
    def blocks(self):
        """The latent steps of each block."""
        blocks, inside = [], False
        for position in self.positions:
            is_latent = position["kind"] == LATENT
            if is_latent and not inside:
                blocks.append([])
            if is_latent:
                blocks[-1].append(position)
            inside = is_latent
        return blocks


def traces(folder, checkpoint):
    """Reads the traces of a checkpoint (`positions-<checkpoint>.parquet`). `lens` of a latent step: the most probable next
    tokens with their probabilities."""
    frame = rows(Path(folder) / f"positions-{checkpoint}.parquet")
    records = frame.to_dicts() if hasattr(frame, "to_dicts") else frame.to_dict("records")
    shared = ("checkpoint", "dataset", "n", "seed", "problem", "prompt")
    found = {}
    for record in records:
        trace = found.setdefault(record["problem"], Trace(record["problem"], record["prompt"], []))
        # pandas marks missing values as NaN, which rows do not have otherwise.
        position = {key: None if value != value else value for key, value in record.items() if key not in shared}
        if isinstance(position.get("lens"), str):
            position["lens"] = [tuple(pair) for pair in json.loads(position["lens"])]
        trace.positions.append(position)
    for trace in found.values():
        trace.positions.sort(key=lambda position: position["index"])
    return [found[problem] for problem in sorted(found)]
