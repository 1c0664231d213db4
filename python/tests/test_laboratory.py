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
    def test_the_weights_equal_the_file(self):
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

    def test_one_question_is_no_list_of_letters(self):
        data, weights = laboratory.page_data(RUN, problems=QUESTION, phases="sft")
        self.assertEqual((data["runs"][0]["problems"], list(weights)), ([QUESTION], ["sft"]))
        with self.assertRaisesRegex(TypeError, "problems are questions, found {'question'"):
            laboratory.page_data(RUN, problems=[{"question": QUESTION}])

    def test_missing_files_are_named(self):
        for wrong, message in (
            (dict(run=RUN), "problems="),
            (dict(run=RUN, problems=[QUESTION], phases=["ppo"]), "ppo"),
            (dict(run=ROOT / "python", problems=[QUESTION]), "checkpoint"),
            (dict(run=RUN, rows=ROOT / "python"), "positions-sft.parquet"),
        ):
            with self.assertRaises(ValueError) as caught:
                laboratory.page_data(**wrong)
            self.assertIn(message, str(caught.exception))

    @unittest.skipUnless(shutil.which("node"), "no Node.js")
    def test_the_script_is_a_module_that_decodes(self):
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

    def test_the_widget_has_the_data(self):
        try:
            import anywidget  # noqa: F401
        except ImportError:
            self.skipTest("no anywidget")
        widget = laboratory.view(RUN, problems=[QUESTION], phases=["sft"])
        self.assertEqual(list(widget.weights), ["sft"])
        self.assertIn("class Lab", str(widget._esm))


class Notebooks(unittest.TestCase):
    """Runs every cell of the examples, if their packages are installed."""

    def run_cells(self, name):
        notebook = json.loads((ROOT / "python" / "examples" / f"{name}.ipynb").read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for cell in cells:
            self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None), "outputs are stripped")
        names, output = {}, io.StringIO()
        with contextlib.redirect_stdout(output):
            for cell in cells:
                exec("".join(cell["source"]), names)  # noqa: S102: our own notebook
        return names, output.getvalue()

    @unittest.skipUnless(has("polars", "anywidget"), "polars or anywidget is not there")
    def test_a_first_look(self):
        names, output = self.run_cells("first_look")
        self.assertEqual(len(names["laboratory"].data["runs"][0]["problems"]), 24)
        self.assertIn("latent steps of each block: [5, 5]", output)

    @unittest.skipUnless(has("polars"), "polars is not there")
    def test_known_values(self):
        names, output = self.run_cells("known_values")
        self.assertGreaterEqual(names["hits"], 6, output)

    @unittest.skipUnless(has("polars"), "polars is not there")
    def test_an_own_method(self):
        names, output = self.run_cells("own_method")
        self.assertEqual(names["kept"][64], 8, output)

    def test_a_live_session(self):
        names, output = self.run_cells("live_session")
        self.assertEqual(names["lens"].tokens[0], "<bos>")
        self.assertAlmostEqual(names["heat"].values[0].max(), 1.0, places=2)
        modes = {row["mode"]: row for row in names["done"]}
        self.assertLess(modes["zero"]["accuracy.value"], modes["normal"]["accuracy.value"])
        self.assertGreater(names["known"]["hit_rate.low"], names["known"]["chance.value"], output)
        self.assertEqual(len(names["start"]), 4)
        self.assertGreater(len(set(names["texts"])), 1)


if __name__ == "__main__":
    unittest.main()
