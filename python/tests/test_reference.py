"""`docs/reference/python.md`: the public names with their signatures and the first paragraph of their docstrings.

After a change: `SWITCHYARD_WRITE_DOCS=1 python -m unittest discover -s python/tests -p test_reference.py` rewrites it.
"""

import dataclasses
import inspect
import os
import unittest
from pathlib import Path

import switchyard as sy

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "python.md"


def entry(name, item, level):
    """A heading with the signature, and the first paragraph of the docstring."""
    signature = ""
    if inspect.isfunction(item) or dataclasses.is_dataclass(item):
        given = inspect.signature(item)
        parameters = [one.replace(annotation=one.empty) for one in given.parameters.values() if one.name != "self"]
        signature = str(given.replace(parameters=parameters, return_annotation=given.empty))
    text = (inspect.getdoc(item) or "").split("\n\n")[0].replace("\n", " ")
    return f"{'#' * level} `{name}{signature}`\n\n{text}\n"


def page():
    parts = ["<!-- SWITCHYARD_WRITE_DOCS=1 writes this page. -->\n\n# Python package\n\n`import switchyard as sy`. [How to use it](../how-to/python.md).\n"]
    for name in sy.__all__:
        item = getattr(sy, name)
        parts.append(entry(name, item, 2))
        if inspect.isclass(item):
            members = ((key, member) for key, member in vars(item).items() if not key.startswith("_"))
            found = [(key, member) for key, member in members if isinstance(member, property) or inspect.isfunction(member)]
            parts += [entry(f"{name}.{key}", member, 3) for key, member in found]
    return "\n".join(parts)


class Reference(unittest.TestCase):
    def test_the_page_matches_the_docstrings(self):
        if os.environ.get("SWITCHYARD_WRITE_DOCS"):
            PAGE.write_text(page(), encoding="utf-8")
        self.assertEqual(PAGE.read_text(encoding="utf-8"), page(), "SWITCHYARD_WRITE_DOCS=1 rewrites it")


if __name__ == "__main__":
    unittest.main()
