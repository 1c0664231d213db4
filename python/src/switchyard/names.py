"""Hook names of TransformerLens: the old ones, which files use, and those of version 3 and later.

A selection of positions at the end of a name (`@latent[1,2]`) does not change.
"""

import re

# (old, new), without `blocks.{layer}.`.
_PAIRS = (
    ("hook_resid_pre", "hook_in"),
    ("hook_resid_mid", "ln2.hook_in"),
    ("hook_resid_post", "hook_out"),
    ("hook_attn_out", "attn.hook_out"),
    ("hook_mlp_out", "mlp.hook_out"),
    ("attn.hook_q", "attn.q.hook_out"),
    ("attn.hook_k", "attn.k.hook_out"),
    ("attn.hook_v", "attn.v.hook_out"),
    ("attn.hook_z", "attn.o.hook_in"),
    ("mlp.hook_pre", "mlp.gate.hook_out"),
    ("mlp.hook_pre_linear", "mlp.in.hook_out"),
    ("mlp.hook_post", "mlp.out.hook_in"),
    ("hook_embed", "embed.hook_out"),
)
_TO_NEW = dict(_PAIRS)
_TO_OLD = {new: old for old, new in _PAIRS}
_BLOCK = re.compile(r"(blocks\.[^.]+\.)?(.*)")


def _renamed(name, table):
    name, at, selection = name.partition("@")
    block, rest = _BLOCK.fullmatch(name).groups()
    # `hook_embed` is the table's only name outside the blocks.
    if (block is None) == (rest in ("hook_embed", "embed.hook_out")):
        rest = table.get(rest, rest)
    return (block or "") + rest + at + selection


def old_name(name):
    """The name that files and programs use: `blocks.0.hook_out` → `blocks.0.hook_resid_post`."""
    return _renamed(name, _TO_OLD)


def new_name(name):
    """The name in TransformerLens 3 and later. A hook that was not renamed is returned unchanged."""
    return _renamed(name, _TO_NEW)
