"""Reads the committed files."""

import json
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import numpy as np

import switchyard as sy
from switchyard import safetensors

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "reports" / "micro"


def has(*modules):
    try:
        for module in modules:
            __import__(module)
    except ImportError:
        return False
    return True


class Names(unittest.TestCase):
    def test_every_hook_has_its_old_and_new_name(self):
        for old, new in (
            ("blocks.0.hook_resid_pre", "blocks.0.hook_in"),
            ("blocks.11.hook_resid_mid", "blocks.11.ln2.hook_in"),
            ("blocks.-1.hook_resid_post@latent[1,2]", "blocks.-1.hook_out@latent[1,2]"),
            ("blocks.*.attn.hook_z", "blocks.*.attn.o.hook_in"),
            ("blocks.2.mlp.hook_pre_linear", "blocks.2.mlp.in.hook_out"),
            ("hook_embed", "embed.hook_out"),
        ):
            self.assertEqual((sy.new_name(old), sy.old_name(new)), (new, old))
            self.assertEqual((sy.new_name(new), sy.old_name(old)), (new, old))
        for same in ("blocks.0.attn.hook_pattern", "latent.hook_injected", "ln_final.hook_scale", "hook_in"):
            self.assertEqual((sy.new_name(same), sy.old_name(same)), (same, same))


class Tensors(unittest.TestCase):
    def test_written_tensors_read_back(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "some.safetensors"
            tensors = {"a": np.arange(6.0).reshape(2, 3), "b": np.float32([1.5])}
            safetensors.write(file, tensors)
            read, metadata = safetensors.read(file)
            self.assertEqual(metadata, {})
            found = {name: array.tolist() for name, array in read.items()}
            self.assertEqual(found, {"a": [[0, 1, 2], [3, 4, 5]], "b": [1.5]})

    def test_arrays_are_writable_copies(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "some.safetensors"
            sy.save(file, {"hook_embed": np.ones((2, 3)), "blocks.0.hook_out": np.ones(2)})
            cache = sy.activations(file)
            cache["embed"][:] -= cache["embed"].mean()
            self.assertEqual((cache["hook_embed"].sum(), cache["resid_post", 0].sum()), (0, 2))
            with self.assertRaisesRegex(KeyError, "how many layers"):
                cache["resid_post", -1]
            for read in (lambda: cache.row(0), lambda: cache.at("embed", 0)):
                with self.assertRaisesRegex(ValueError, "writes tensors only"):
                    read()

    def test_masked_values_inside_a_list_are_errors(self):
        masked = np.ma.masked_array([1.0, 99.0], mask=[False, True])
        for change in (sy.swap, sy.add):
            for value in (masked, [masked, masked], (np.ones(2), [masked])):
                with self.assertRaisesRegex(TypeError, "masks [12] value"):
                    change(value)
        self.assertEqual(sy.swap([np.ma.masked_array([1.0], mask=[False])]).value.tolist(), [[1.0]])

    def test_weights_equal_those_of_the_safetensors_package(self):
        file = ROOT / "fixtures" / "micro" / "sft" / "checkpoint" / "model.safetensors"
        read, _ = safetensors.read(file)
        self.assertIn("model.embed_tokens.weight", read)
        if not has("safetensors.numpy"):
            self.skipTest("the package safetensors is not there")
        from safetensors.numpy import load_file

        for name, array in load_file(file).items():
            np.testing.assert_array_equal(read[name], array)

    def test_a_damaged_file_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "bad.safetensors"
            for content in (b"", b"12345678", b"\xff" * 64, (4).to_bytes(8, "little") + b"nope"):
                file.write_bytes(content)
                with self.assertRaisesRegex(ValueError, "bad.safetensors: not a safetensors file"):
                    safetensors.read(file)


@unittest.skipUnless(has("polars") or has("pandas", "pyarrow"), "neither polars nor pandas is there")
class Rows(unittest.TestCase):
    def test_parquet_and_csv_are_the_same_rows(self):
        parquet = sy.rows(REPORTS / "switch_window-sft.parquet")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.csv"
            parquet.write_csv(file) if has("polars") else parquet.to_csv(file, index=False)
            csv = sy.rows(file)
        self.assertEqual(list(parquet.columns), list(csv.columns))
        self.assertEqual(parquet["offset"].to_list() if has("polars") else list(parquet["offset"]), list(range(-8, 9)))
        np.testing.assert_allclose(np.asarray(parquet["p_swi.value"]), np.asarray(csv["p_swi.value"]), rtol=1e-12)

    def test_both_libraries_read_the_same(self):
        libraries = [library for library in ("polars", "pandas") if has(library)]
        frames = [sy.rows(REPORTS / "teacher_forced-sft.parquet", library) for library in libraries]
        for frame in frames[1:]:
            np.testing.assert_array_equal(np.asarray(frames[0]["p_swi.value"]), np.asarray(frame["p_swi.value"]))

    def test_every_column_has_a_unit_and_a_description(self):
        columns = sy.columns(REPORTS, "teacher_forced-sft")
        frame = sy.rows(REPORTS / "teacher_forced-sft.parquet")
        for name in frame.columns:
            entry = columns[name.split(".")[0]]
            self.assertTrue(entry["unit"] and entry["about"], name)

    def test_a_frame_has_late_columns_and_fractions(self):
        records = [{"layer": i, "effect": 0} for i in range(101)] + [{"layer": 101, "effect": 0.75, "note": "late"}]
        for library in [library for library in ("polars", "pandas") if has(library)]:
            frame = sy.Rows(records).frame(library)
            last = {name: list(frame[name])[-1] for name in frame.columns}
            self.assertEqual(last, {"layer": 101, "effect": 0.75, "note": "late"})

    def test_a_csv_keeps_a_late_fraction(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.csv"
            file.write_text("effect\n" + "1\n" * 200 + "0.75\n", encoding="utf-8")
            for library in [library for library in ("polars", "pandas") if has(library)]:
                self.assertEqual(list(sy.rows(file, library)["effect"])[-1], 0.75)

    def test_versions_agree(self):
        manifest = (ROOT / "Cargo.toml").read_text(encoding="utf-8")
        self.assertIn(f'\nversion = "{sy.__version__}"\n', manifest)
        for file in ("python/pyproject.toml", "python/wheel/pyproject.toml"):
            project = (ROOT / file).read_text(encoding="utf-8")
            self.assertIn(f'\nversion = "{sy.__version__}"\n', project)
            # pyarrow reads Parquet string views from version 15.
            self.assertIn('"pyarrow>=15"', project)
        self.assertTrue((ROOT / "python/src/switchyard/py.typed").is_file())

    def test_advice_never_installs_from_the_index(self):
        for source in (ROOT / "python/src/switchyard").glob("*.py"):
            text = source.read_text(encoding="utf-8")
            self.assertNotRegex(text, r"pip install '?switchyard(\[|'|`| )", source.name)

    def test_missing_rows_are_named(self):
        with self.assertRaisesRegex(FileNotFoundError, "teacher_forced-sft"):
            sy.rows(REPORTS / "no_such.parquet")
        with self.assertRaisesRegex(KeyError, "teacher_forced-sft"):
            sy.columns(REPORTS, "no_such")
        with self.assertRaisesRegex(ValueError, "polars or pandas"):
            sy.rows(REPORTS / "teacher_forced-sft.parquet", "numpy")

    def test_traces_have_their_latent_steps(self):
        traces = sy.traces(REPORTS, "sft")
        with_latents = [trace for trace in traces if trace.latents]
        self.assertGreater(len(with_latents), 3)
        for trace in with_latents:
            self.assertEqual(sum(map(len, trace.blocks)), len(trace.latents))
            self.assertEqual([p["index"] for p in trace.positions], list(range(len(trace.positions))))
            for latent in trace.latents:
                token, probability = latent["lens"][0]
                self.assertTrue(token and 0 < probability <= 1)
        self.assertIn("<bos>", traces[0].prompt)

    @unittest.skipUnless(has("polars", "pandas", "pyarrow"), "polars or pandas is not there")
    def test_traces_do_not_depend_on_the_library(self):
        with unittest.mock.patch.dict(sys.modules, polars=None):
            by_pandas = sy.traces(REPORTS, "sft")
        self.assertEqual(by_pandas, sy.traces(REPORTS, "sft"))

    @unittest.skipUnless(has("polars", "matplotlib"), "polars or matplotlib is not there")
    def test_the_notebook_draws_its_figures(self):
        import matplotlib

        matplotlib.use("Agg")
        notebook = json.loads((ROOT / "python" / "examples" / "figures.ipynb").read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        for cell in cells:
            self.assertEqual((cell["outputs"], cell["execution_count"]), ([], None), "outputs are stripped")
        names = {}
        for cell in cells:
            exec("".join(cell["source"]), names)  # noqa: S102: our own notebook
        self.assertEqual([len(names["window"].axes[0].lines), len(names["interventions"].axes[0].patches)], [2, 6])


if __name__ == "__main__":
    unittest.main()
