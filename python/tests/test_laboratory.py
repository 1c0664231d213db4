"""The laboratory as a widget."""

import base64
import contextlib
import gzip
import importlib.util
import io
import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np

from switchyard import laboratory, safetensors

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "fixtures" / "micro"
QUESTION = "a = 5 ; h = a + 4 ; ? h :"


def has(*modules):
    return all(importlib.util.find_spec(module) for module in modules)


class Laboratory(unittest.TestCase):
    def test_the_weights_are_those_of_the_file(self):
        data, weights = laboratory.page_data(RUN, problems=["<bos> " + QUESTION], phases=["sft"])
        (run,) = data["runs"]
        self.assertEqual((run["problems"], run["modulus"], len(run["models"])), ([QUESTION], 7, 1))
        planes = np.frombuffer(gzip.decompress(base64.b64decode(weights["sft"])), "u1").reshape(4, -1)
        floats = np.ascontiguousarray(planes.T).view("<f4").ravel()
        tensors, _ = safetensors.read(RUN / "sft" / "checkpoint" / "model.safetensors")
        at = 0
        for name, shape in run["models"][0]["index"]:
            size = int(np.prod(shape))
            np.testing.assert_array_equal(floats[at : at + size].reshape(shape), tensors[name])
            at += size
        self.assertEqual(at, floats.size)

    def test_what_is_missing_is_named(self):
        for wrong, said in (
            (dict(run=RUN), "problems="),
            (dict(run=RUN, problems=[QUESTION], phases=["ppo"]), "ppo"),
            (dict(run=ROOT / "python", problems=[QUESTION]), "checkpoint"),
            (dict(run=RUN, rows=ROOT / "python"), "positions-sft.parquet"),
        ):
            with self.assertRaises(ValueError) as caught:
                laboratory.page_data(**wrong)
            self.assertIn(said, str(caught.exception))

    @unittest.skipUnless(shutil.which("node"), "no Node.js")
    def test_the_script_is_a_module_that_answers(self):
        data, weights = laboratory.page_data(RUN, problems=[QUESTION], phases=["sft"])
        ask = f"""
        const run = {json.dumps(data["runs"][0])}, planes = fromPlanes(await inflate({weights["sft"]!r}));
        const words = new Words(run.tokenizer), {{ config, index, reasoning, stop }} = run.models[0];
        const subject = {{ words, reasoning, stop, model: new Decoder(config, tensorsOf(index, planes)) }};
        const {{ positions }} = decode(subject, words.encode(run.prefix + run.problems[0]));
        console.log(answerOf(words, positions), answerIf(chain(run.problems[0], run.modulus)));
        """
        with tempfile.TemporaryDirectory() as folder:
            module = Path(folder) / "widget.mjs"
            module.write_text(laboratory.script() + ask, encoding="utf-8")
            done = subprocess.run(["node", os.fspath(module)], capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout.split(), done.stderr), (["2", "2"], ""))

    def test_the_widget_is_one_where_anywidget_is_there(self):
        try:
            import anywidget  # noqa: F401
        except ImportError:
            self.skipTest("no anywidget")
        widget = laboratory.view(RUN, problems=[QUESTION], phases=["sft"])
        self.assertEqual(list(widget.weights), ["sft"])
        self.assertIn("class Lab", str(widget._esm))


class Notebooks(unittest.TestCase):
    """Every cell of the examples, where what they need is there."""

    def run_cells(self, name):
        notebook = json.loads((ROOT / "python" / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for cell in cells:
            self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None), "outputs are stripped")
        names, said = {}, io.StringIO()
        with contextlib.redirect_stdout(said):
            for cell in cells:
                exec("".join(cell["source"]), names)  # noqa: S102: our own notebook
        return names, said.getvalue()

    @unittest.skipUnless(has("polars", "anywidget"), "polars or anywidget is not there")
    def test_a_first_look(self):
        names, said = self.run_cells("first_look")
        self.assertEqual(len(names["laboratory"].data["runs"][0]["problems"]), 24)
        self.assertIn("latent steps of each block: [5, 5]", said)

    @unittest.skipUnless(has("polars"), "polars is not there")
    def test_known_values(self):
        names, said = self.run_cells("known_values")
        self.assertGreaterEqual(names["hits"], 6, said)

    @unittest.skipUnless(has("polars"), "polars is not there")
    def test_a_method_of_ones_own(self):
        names, said = self.run_cells("own_method")
        self.assertEqual(names["kept"][64], 8, said)

    def test_a_live_session(self):
        names, said = self.run_cells("live_session")
        self.assertEqual(names["lens"].tokens[0], "<bos>")
        self.assertAlmostEqual(names["heat"].values[0].max(), 1.0, places=2)
        modes = {row["mode"]: row for row in names["done"]}
        self.assertLess(modes["zero"]["accuracy.value"], modes["normal"]["accuracy.value"])
        self.assertGreater(names["known"]["hit_rate.low"], names["known"]["chance.value"], said)
        self.assertEqual(len(names["start"]), 4)
        self.assertGreater(len(set(names["texts"])), 1)


if __name__ == "__main__":
    unittest.main()
