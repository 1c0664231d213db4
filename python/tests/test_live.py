"""Many calls of one loaded model. Needs the build of `probe`."""

import datetime
import decimal
import os
import pickle
import re
import tempfile
import threading
import unittest
import warnings
import xml.etree.ElementTree
from pathlib import Path

import numpy as np

import switchyard as sy
from test_reading import has
from test_running import BUILT, MODEL, PROMPT

OTHER = "<bos> b = 2 ; d = b * 3 ; ? d :"


@unittest.skipUnless(BUILT, "`probe` is not built")
class Live(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = sy.load(MODEL)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()

    def test_a_session_answers_as_a_separate_process(self):
        hooks = {"latent.hook_injected@latent[1,1]": sy.scale(0.5)}
        once, live = sy.run(MODEL, PROMPT, hooks=hooks), self.model.generate(PROMPT, hooks=hooks)
        self.assertEqual((live.text, live.shown, live.tokens, live.trace), (once.text, once.shown, once.tokens, once.trace))
        self.assertIn("⟨swi 5⟩[", live.shown)
        self.assertEqual(live.hooks, once.hooks)
        # A change applies to one request only.
        self.assertEqual(self.model.generate(PROMPT).text, sy.run(MODEL, PROMPT).text)

    def test_a_batch_equals_separate_calls(self):
        both = self.model.generate([PROMPT, OTHER], record="latent.hook_injected")
        alone = [self.model.generate(PROMPT, record="latent.hook_injected"), self.model.generate(OTHER)]
        self.assertEqual([run.text for run in both], [run.text for run in alone])
        # Each run has its row, without the positions of longer rows.
        for run in both:
            self.assertEqual(len(run.activations.ids), 1)
            steps = run.activations.at("latent.hook_injected", "latent[*,*]")
            places = [(block + 1, step + 1) for block, inside in enumerate(run.trace.blocks) for step in range(len(inside))]
            self.assertEqual(list(steps), places)
            self.assertEqual(run.activations["latent.hook_injected"].shape[1], len(places))
            for (block, step), value in steps.items():
                np.testing.assert_array_equal(value, run.activations.at("latent.hook_injected", f"latent[{block},{step}]"))
        later = both[0].activations.at("latent.hook_injected", "latent[1,2..]")
        self.assertTrue(later and all(block == 1 and step > 1 for block, step in later))
        for unknown in ("text[*]", "latnt[*,*]"):
            with self.assertRaisesRegex(KeyError, "is not a pattern of latent steps"):
                both[0].activations.at("latent.hook_injected", unknown)
        cache = self.model.cache([PROMPT, OTHER], "hook_embed")
        with self.assertRaisesRegex(ValueError, "there are 2 rows"):
            cache.at("hook_embed", 0)
        np.testing.assert_array_equal(cache.row(-1)["embed"], cache.row(1)["embed"])
        for read in (lambda: cache.row(2), lambda: cache.at("embed", 0, -3)):
            with self.assertRaisesRegex(IndexError, "there are 2$"):
                read()
        self.assertNotIn(0, cache)
        # All text of a row, and attention without the keys of longer rows.
        names = ["hook_embed@text", "blocks.0.attn.hook_pattern", "blocks.0.attn.hook_pattern@text"]
        runs = self.model.generate([PROMPT, problem := self.model.problems(2)[1]["prompt"]], record=names)
        for run, prompt in zip(runs, (PROMPT, problem)):
            # The last token is sampled but not fed.
            fed = len(run.activations.steps[0]) - 1
            text = sum(step.startswith("text") for step in run.activations.steps[0]) - 1
            shapes = [run.activations[name].shape for name in names]
            self.assertEqual(shapes, [(1, text, 64), (1, 4, fed, fed), (1, 4, text, fed)])
            single = self.model.generate(prompt, record=names).activations
            for name in names:
                np.testing.assert_allclose(run.activations[name], single[name], atol=1e-5)
        one, first = (run.activations.at("latent.hook_injected", "latent[1,1]") for run in (both[0], alone[0]))
        np.testing.assert_allclose(one, first, atol=1e-5)

    def test_warnings_are_pythons_and_errors_name_the_setting(self):
        for call in (self.model.generate, self.model.lens, lambda prompt: sy.run(MODEL, prompt)):
            with self.assertWarnsRegex(UserWarning, "without a token in this model") as caught:
                call("<bos> a=5 ; ? a :")
            self.assertEqual(Path(caught.filename).name, Path(__file__).name)
        # Of this call, not of the next, also if it fails; once per call, at the user's line.
        with self.assertWarnsRegex(UserWarning, "without a token"), self.assertRaises(ZeroDivisionError):
            self.model.generate("<bos> a=5", hooks={"hook_embed": lambda values: 1 / 0})
        twice = [{"question": "a = 5 ; h = a + 4 ; ? h :", "answer": "2"}] * 2
        for ask in (
            lambda: self.model.intervene(twice, hooks={"hook_embed": lambda values: values}),
            lambda: self.model.patch("<bos> a=5 ; ? a : 1", "<bos> a=5 ; ? a : 2", lambda logits: logits[-1, 5], "hook_embed", [1]),
            lambda: sy.load(MODEL).generate("<bos> a=5"),
        ):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("default")
                ask()
            self.assertTrue(caught)
            self.assertEqual({Path(warning.filename).name for warning in caught}, {Path(__file__).name})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.model.generate(PROMPT)
        for setting, value in (("max_new_tokens", 3.0), ("temperature", "hot"), ("ignore_eos", 1)):
            with self.assertRaisesRegex(RuntimeError, f"^{setting}: "):
                self.model.generate(PROMPT, **{"k_min": 1, setting: value})
        with self.assertRaisesRegex(RuntimeError, "^max_new_tokens: found integer `-1`, expected a whole number from 0$"):
            self.model.generate(PROMPT, max_new_tokens=-1)
        with self.assertRaisesRegex(RuntimeError, "^top: "):
            self.model.lens(PROMPT, top=1.5)

    def test_repeated_prompts_count_once(self):
        prompts = [f"<bos> a = {i % 7} ; h = a + {i // 7} ; ? h :" for i in range(14)]
        labels = ["even" if i % 2 else "odd" for i in range(14)]
        hook = "blocks.0.hook_resid_post"
        with self.assertWarnsRegex(UserWarning, "14 of 28 prompts are copies"):
            twice = self.model.probe(prompts * 2, labels * 2, hook)
        self.assertEqual(twice[0]["accuracy.n"], 14)
        rare = ["rare" if i in (3, 8) else "often" for i in range(14)]
        with self.assertRaisesRegex(RuntimeError, '"rare" has 2 different prompts'):
            self.model.probe(prompts, rare, hook)

    def test_a_forked_child_gets_an_error(self):
        if not hasattr(os, "fork"):
            self.skipTest("no fork here")
        before, (read, write) = self.model.generate(PROMPT).text, os.pipe()
        child = os.fork()
        if child == 0:
            reply = b"answered"
            try:
                self.model.generate(PROMPT)
            except RuntimeError as error:
                reply = str(error).encode()
            self.model.close()
            os.write(write, reply)
            os._exit(0)
        os.waitpid(child, 0)
        self.assertIn(b"loaded in another process", os.read(read, 1000))
        self.assertEqual(self.model.generate(PROMPT).text, before)
        with self.assertRaisesRegex(TypeError, "load it in each process"):
            pickle.dumps(self.model)

    @unittest.skipUnless(has("polars"), "polars is not there")
    def test_data_frames_are_records(self):
        import polars

        pairs = [
            {"clean": f"<bos> a = {a} ; ? a : #", "corrupt": f"<bos> a = {b} ; ? a : #", "answer": str(a), "wrong": str(b)}
            for a, b in ((1, 2), (3, 4))
        ]
        self.assertEqual(self.model.pairs(polars.DataFrame(pairs)), self.model.pairs(pairs))
        for given, found in (({"clean": "a"}, "found one dict"), (["a"], "record 0 is a str")):
            with self.assertRaisesRegex(TypeError, found):
                self.model.pairs(given)
        with self.assertRaisesRegex(ValueError, "no patches of resid"):
            sy.Pairs().heatmap()
        # Dates and missing values in unused columns.
        problems = [{"question": f"a = {a} ; h = a + 4 ; ? h :", "answer": str((a + 4) % 7)} for a in (1, 2)]
        rows = self.model.intervene(problems, modes=["zero"])
        more = {"when": datetime.date(2026, 11, 29), "cost": decimal.Decimal("1.5")}
        self.assertEqual(self.model.intervene(polars.DataFrame([{**p, **more} for p in problems]), modes=["zero"]), rows)
        if has("pandas"):
            import pandas

            frame = pandas.DataFrame([{**problems[0], "note": "x"}, {**problems[1], "subject": None, "score": 0.5}])
            self.assertEqual(self.model.intervene(frame, modes=["zero"]), rows)
            with self.assertRaisesRegex(ValueError, "several columns 'answer'"):
                self.model.intervene(pandas.DataFrame([["a = 1 ; ? a :", None, "1"]], columns=["question", "answer", "answer"]))

    def test_the_last_layer_of_the_lens_is_the_model(self):
        lens = self.model.lens(OTHER, top=3)
        cache = self.model.cache(OTHER, "blocks.*.hook_resid_post", logits=True)
        logits = cache["logits"][0].astype("f8")
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        self.assertEqual((len(lens.layers), len(lens.tokens)), (self.model.about["layers"], p.shape[0]))
        for position, readings in enumerate(lens.layers[-1]):
            best = np.sort(p[position])[::-1][:3]
            np.testing.assert_allclose([value for _, value in readings], best, atol=1e-5)
        if has("polars"):
            self.assertEqual(lens.frame().shape, (len(lens.layers) * len(lens.tokens) * 3, 6))
        self.assertIn("blocks.0", repr(lens).splitlines()[0])
        self.assertIn(" ".join(repr(says) for says, _ in lens.layers[0][0]), repr(lens))
        with self.assertRaisesRegex(IndexError, "no layer 14: this lens reads blocks.0"):
            lens.top(14)

    def test_kinds_of_lens(self):
        texts = [PROMPT, OTHER]
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "lens.pt"
            fitted = self.model.lens(OTHER, kind="jacobian", fit=texts, skip=2, save=file)
            loaded = self.model.lens(OTHER, kind="jacobian", lens=file)
            with self.assertRaisesRegex(RuntimeError, "--save: .*a folder, not a file"):
                self.model.lens(OTHER, kind="jacobian", fit=texts, skip=2, save=folder)
        iterated = self.model.lens(OTHER, kind="jacobian", fit=iter(texts), skip=2)
        self.assertEqual(iterated, fitted)
        with self.assertWarnsRegex(UserWarning, "fitted on 2 of 3 texts: the others are too short"):
            self.model.lens(OTHER, kind="jacobian", fit=[*texts, "<bos> a"], skip=6)
        logit = self.model.lens(OTHER)
        # The last layer's states are final; the lens maps the others there. The file has half precision.
        self.assertEqual((fitted.read, fitted.layers[-1]), (logit.read, logit.layers[-1]))
        self.assertNotEqual(fitted.layers[0], logit.layers[0])
        self.assertAlmostEqual(fitted.top(0)[1], loaded.top(0)[1], places=2)
        with self.assertRaisesRegex(RuntimeError, "needs a lens"):
            self.model.lens(OTHER, kind="jacobian")
        with self.assertRaisesRegex(RuntimeError, "`tuned`, expected `logit` or `jacobian`"):
            self.model.lens(OTHER, kind="tuned")

    def test_a_cache_has_a_row_per_text(self):
        cache = self.model.cache([PROMPT, OTHER], ["blocks.1.hook_out@pos[2]"])
        name = "blocks.1.hook_resid_post@pos[2]"
        self.assertEqual(cache[name].shape[:2], (2, 1))
        whole = self.model.cache(PROMPT, "blocks.1.hook_resid_post")["blocks.1.hook_resid_post"]
        last = self.model.cache(PROMPT, "blocks.1.hook_resid_post@pos[-1]")["blocks.1.hook_resid_post@pos[-1]"]
        np.testing.assert_array_equal(last[0, 0], whole[0, -1])
        # Prompts of several lengths: the last position of each, together with hooks at all positions.
        texts = ["<bos> a", PROMPT, OTHER]
        names = ["blocks.1.hook_resid_post@pos[-1]", "blocks.*.attn.hook_pattern@pos[-2]", "hook_embed"]
        several = self.model.cache(texts, names, logits=True)
        self.assertEqual(several["blocks.1.hook_resid_post@pos[-1]"].shape[:2], (3, 1))
        for row, text in enumerate(texts):
            alone = self.model.cache(text, ["blocks.1.hook_resid_post", "blocks.0.attn.hook_pattern"])
            at, last = several.lengths[row] - 1, several["blocks.1.hook_resid_post@pos[-1]"]
            np.testing.assert_allclose(last[row, 0], alone["blocks.1.hook_resid_post"][0, -1], atol=1e-5)
            np.testing.assert_array_equal(several.at("blocks.1.hook_resid_post@pos[-1]", at, row), last[row, 0])
            pattern = several["blocks.0.attn.hook_pattern@pos[-2]"][row, :, 0, : at + 1]
            np.testing.assert_allclose(pattern, alone["blocks.0.attn.hook_pattern"][0, :, -2], atol=1e-5)
        self.assertEqual(several["hook_embed"].shape[1], max(several.lengths))
        self.assertEqual(several["logits"].shape[:2], (3, max(several.lengths)))
        ends = self.model.cache(texts, "hook_embed@pos[-1]", logits="last")
        self.assertEqual(ends["logits"].shape[:2], (3, 1))
        for row, length in enumerate(several.lengths):
            np.testing.assert_allclose(ends["logits"][row, 0], several["logits"][row, length - 1], atol=1e-4)
            np.testing.assert_array_equal(ends.at("logits", length - 1, row), ends["logits"][row, 0])
        with self.assertRaisesRegex(RuntimeError, "^logits: .*`first`"):
            self.model.cache(texts, "hook_embed", logits="first")
        with self.assertRaisesRegex(RuntimeError, "row 0"):
            self.model.cache(texts, "hook_embed@pos[-3]")
        # A change that would leave a row as it is.
        for place, found in (("pos[-3]", "before the first of 2"), ("pos[2]", "never fire")):
            with self.assertRaisesRegex(RuntimeError, rf"prompts\[0\]: .*{found}"):
                self.model.cache(texts, "hook_embed", {f"hook_embed@{place}": "zero"})
        # Layers from the end, and names without `hook_`, as in TransformerLens.
        self.assertEqual(several.layers, self.model.about["layers"])
        states = self.model.cache(PROMPT, ["blocks.*.hook_resid_post", "blocks.0.ln1.hook_scale", "hook_embed"])
        self.assertIs(states["resid_post", -1], states[f"blocks.{states.layers - 1}.hook_resid_post"])
        self.assertIs(states["embed"], states["hook_embed"])
        # A hook with one selection is found without it.
        placed = self.model.cache(texts, ["blocks.*.hook_resid_post@pos[-1]", "hook_embed@pos[0]", "hook_embed@pos[1]"])
        self.assertIs(placed["resid_post", -1], placed[f"blocks.{states.layers - 1}.hook_resid_post@pos[-1]"])
        self.assertNotIn("embed", placed)
        self.assertIs(states["scale", 0, "ln1"], states["blocks.0.ln1.hook_scale"])
        final = self.model.cache(PROMPT, "ln_final.hook_scale,hook_embed")
        self.assertIs(final["scale"], final["ln_final.hook_scale"])
        for missing in (("resid_post", -9), ("resid_pre", 0), "unembed"):
            self.assertNotIn(missing, states)

    def test_a_session_survives_errors(self):
        with self.assertRaisesRegex(RuntimeError, "did you mean"):
            self.model.generate(PROMPT, hooks={"blocks.0.hook_resid_pots": "zero"})
        with self.assertRaisesRegex(RuntimeError, "outside the embedding"):
            self.model.generate([1, 99999])
        for call in (self.model.generate, lambda prompts: self.model.cache(prompts, "hook_embed")):
            with self.assertRaisesRegex(RuntimeError, r"^prompts\[1\]: token id 99999"):
                call([[1], [1, 99999], [1]])
            with self.assertRaisesRegex(ValueError, "^prompts: .*surrogate"):
                call([PROMPT, "<bos> \ud83d"])
        with self.assertRaisesRegex(RuntimeError, "never fire"):
            self.model.lens(PROMPT, hooks={"hook_embed@pos[99]": "zero"})
        with self.assertRaisesRegex(IndexError, "no position 99"):
            self.model.lens(PROMPT).top(0, 99)
        # `call:0` without a function, and in the name of a file.
        with self.assertRaisesRegex(ValueError, "give hooks={HOOK: function}"):
            self.model.generate(PROMPT, hooks=["hook_embed@pos[0]=call:0"])
        with self.assertRaisesRegex(RuntimeError, "call:0.pt"):
            self.model.lens(PROMPT, kind="jacobian", lens="/no/call:0.pt")
        with self.assertRaisesRegex(ValueError, "finite number"):
            self.model.patch(PROMPT, PROMPT.replace("5", "6"), lambda logits: np.nan, "hook_embed", -1)
        self.assertTrue(self.model.generate(PROMPT).text)

    def test_pairs_are_a_heat_map(self):
        prompt = "<bos> a = {} ; ? a : #"
        pairs = [
            {"clean": prompt.format(a), "corrupt": prompt.format(b), "answer": str(a), "wrong": str(b)}
            for a, b in [(1, 2), (3, 4), (5, 6), (2, 5)]
        ]
        rows = self.model.pairs(pairs, components=["resid", "mlp"], modes=["denoise"])
        heat = rows.heatmap()
        self.assertEqual(heat.values.shape, (self.model.about["layers"] + 1, 9))
        self.assertEqual((heat.places[3], heat.layers[:2]), ("position[3]", ["embedding", "blocks.0"]))
        # The pairs differ at position 3 and agree elsewhere.
        self.assertEqual((heat.tokens[1], heat.tokens[3]), ("a", "*"))
        self.assertNotIn("-0.00", heat._repr_html_())
        self.assertIn("blocks.0", repr(heat))
        with tempfile.TemporaryDirectory() as folder:
            heat.save_svg(Path(folder) / "heat.svg")
            self.assertIn("blocks.0</text>", (Path(folder) / "heat.svg").read_text())
        if not has("matplotlib"):
            with self.assertRaisesRegex(ImportError, "pip install matplotlib"):
                heat.save_png("heat.png")
        if has("matplotlib"):
            with tempfile.TemporaryDirectory() as folder:
                heat.save_png(Path(folder) / "heat.png")
                self.assertEqual((Path(folder) / "heat.png").read_bytes()[:4], b"\x89PNG")
                # Positive values are blue, as in the other formats; a `$` begins no formula.
                signs = sy.HeatMap(np.array([[1.0, -1.0]]), ["blocks.0"], ["pos[0]", "pos[1]"], "$x_$", ["$$", "$x_$"])
                signs.save_png(Path(folder) / "signs.png")
                import matplotlib.image

                picture = matplotlib.image.imread(Path(folder) / "signs.png")
                blue, orange = (picture[picture.shape[0] // 4, round(picture.shape[1] * at)] for at in (0.25, 0.6))
                self.assertGreater(blue[2], blue[0])
                self.assertGreater(orange[0], orange[2])
        # The embedding where the prompts differ has the whole effect.
        self.assertAlmostEqual(heat.values[0, heat.places.index("position[3]")], 1.0, places=3)
        self.assertIn("<table>", heat._repr_html_())
        # A print has the largest of many places, wherever they are.
        values = np.zeros((1, 20))
        values[0, 19], values[0, 18] = 0.8, 0.1
        wide = repr(sy.HeatMap(values, ["blocks.0"], [f"pos[{n}]" for n in range(20)], "wide", [""] * 20))
        self.assertIn("0.80", wide)
        self.assertIn("(8 more places, with values of at most 0.00)", wide)
        # Titles and labels are inside the picture, and control characters are visible.
        small = sy.HeatMap(np.array([[0.5]]), ["blocks.0"], ["pos[0]"], "the name of a metric", ["\x0b\n" + "long" * 9])
        with tempfile.TemporaryDirectory() as folder:
            small.save_svg(Path(folder) / "small.svg")
            picture = xml.etree.ElementTree.parse(Path(folder) / "small.svg").getroot()
        title, label = picture[0], picture[-1]
        self.assertEqual((title.text, label.text), ("the name of a metric", r"pos[0] \x0b\n" + "long" * 9))
        self.assertGreater(int(picture.get("width")), int(title.get("x")) + 7 * len(title.text))
        self.assertGreater(float(re.search(r"translate\(([\d.]+)", label.get("transform"))[1]), 4.2 * len(label.text))
        self.assertEqual(len(rows.frame()), len(rows))
        with self.assertRaisesRegex(ValueError, "there are"):
            rows.heatmap("head")
        # Another form has other pairs: its larger effects are not of this map.
        both = sy.Pairs([*rows, *({**row, "form": "latents", "effect.value": 9.0} for row in rows)])
        np.testing.assert_array_equal(both.heatmap().values, heat.values)
        with self.assertRaisesRegex(RuntimeError, "given.jsonl:1"):
            self.model.pairs([{"clean": "<bos> a", "corrupt": "<bos> a = 1", "answer": "1", "wrong": "2"}])

    def test_changes_and_metrics_may_be_functions(self):
        hook = "latent.hook_injected@latent[1,2]"
        zeroed = self.model.generate(PROMPT, hooks={hook: lambda values: 0 * values})
        self.assertEqual(zeroed.trace, self.model.generate(PROMPT, hooks={hook: "zero"}).trace)
        halved = self.model.cache(OTHER, "blocks.1.hook_resid_post", {"blocks.*.hook_mlp_out": lambda values: values / 2})
        scaled = self.model.cache(OTHER, "blocks.1.hook_resid_post", {"blocks.0.hook_mlp_out": "scale:0.5"})
        self.assertFalse(np.array_equal(halved["resid_post", 1], scaled["resid_post", 1]))
        with self.assertRaisesRegex(ValueError, "returned shape"):
            self.model.generate(PROMPT, hooks={hook: lambda values: values[..., :1]})
        for wrong, message in ((lambda values: None, "return the new value"), (lambda values: self.model.lens(OTHER), "another model"), (lambda values: 1 / 0, "division")):
            with self.assertRaisesRegex((TypeError, RuntimeError, ZeroDivisionError), message):
                self.model.generate(PROMPT, hooks={hook: wrong})
        places = []

        def halving(values, hook, by=0.5):
            places.append((hook.name, hook.row, hook.step))
            return by * values

        later = "blocks.1.hook_resid_post@latent[1,2..3]"
        runs = [self.model.generate([PROMPT], hooks={later: change})[0] for change in (halving, "scale:0.5")]
        self.assertEqual(runs[0].trace, runs[1].trace)
        self.assertEqual(places, [("blocks.1.hook_resid_post", 0, f"latent[1,{step}]") for step in (2, 3)])
        with self.assertRaisesRegex(RuntimeError, "=halving"):
            self.model.generate([PROMPT], hooks={"blocks.1.hook_resid_post@latent[9,1]": halving})
        with self.assertRaisesRegex(RuntimeError, "axis counts keys"):
            self.model.generate(PROMPT, hooks={"blocks.0.attn.hook_pattern": lambda values: values})

        clean, corrupt = "<bos> a = 1 ; ? a : #", "<bos> a = 2 ; ? a : #"
        one, two = (self.model.cache(prompt, "hook_embed").ids[0][3] for prompt in (clean, corrupt))
        heat = self.model.patch(clean, corrupt, lambda logits: logits[-1, one] - logits[-1, two])
        self.assertEqual(heat.values.shape, (self.model.about["layers"], 9))
        self.assertEqual((heat.title, heat.places[3]), ("metric", "pos[3]"))
        # Positions before the difference restore nothing; the last state restores everything.
        np.testing.assert_allclose(heat.values[:, :3], 0.0, atol=1e-4)
        self.assertAlmostEqual(heat.values[-1, -1], 1.0, places=3)
        with self.assertRaisesRegex(ValueError, "no difference"):
            self.model.patch(clean, corrupt, lambda logits: 0.0)
        # Latent inputs have values at latent steps only.
        clean, corrupt = (f"<bos> a = {a} ; h = a + 4 ; ? h : h = <swi> <latent> <latent>" for a in (5, 3))
        heat = self.model.patch(clean, corrupt, lambda logits: logits[-1, 5], "blocks.1.hook_resid_post,latent.hook_injected")
        self.assertEqual([int(np.isfinite(row).sum()) for row in heat.values], [19, 2])
        self.assertTrue(np.isfinite(heat.values[:, -2:]).all())
        with self.assertRaisesRegex(ValueError, "without `@…`, and `positions`"):
            self.model.patch(clean, corrupt, lambda logits: logits[-1, 5], "hook_embed@pos[3]")
        with self.assertRaisesRegex(TypeError, "'float'"):
            self.model.patch(clean, corrupt, lambda logits: logits[-1, 5], "hook_embed", [1.5])

    def test_a_function_gets_the_value_of_the_changed_run(self):
        hooks = ["blocks.1.hook_resid_post@latent[*,*]", "blocks.0.hook_mlp_out", "blocks.1.attn.hook_z[head=0,3]@latent[*,2..]", "latent.hook_injected"]
        points, prompts = "blocks.*.hook_resid_post", [PROMPT, OTHER]

        def runs(change):
            return self.model.generate(prompts, hooks={hook: change for hook in hooks} if change else None, record=points)

        for native, function in (("scale:0.05", lambda values: 0.05 * values), (None, lambda values: values)):
            for one, other in zip(runs(native), runs(function)):
                self.assertEqual((one.tokens, len(one.trace.latents)), (other.tokens, len(other.trace.latents)))
                for name, array in one.activations.items():
                    np.testing.assert_allclose(array, other.activations[name], atol=1e-5)
        cached = [self.model.cache(prompts, points, {hooks[1]: change}, logits=True) for change in ("scale:0.05", lambda values: 0.05 * values)]
        np.testing.assert_allclose(cached[0]["logits"], cached[1]["logits"], atol=1e-5)
        # The changed run has blocks that the unchanged one lacks.
        more = {"blocks.2.hook_resid_post@latent[*,2..]": lambda values: 0.05 * values}
        problems = self.model.problems(20)
        questions = [f"<bos> {problem['question']}" for problem in problems]
        counts = [[len(run.trace.blocks) for run in self.model.generate(questions, hooks=change)] for change in (None, more)]
        self.assertTrue(any(after > before for before, after in zip(*counts)), counts)
        scaled = self.model.intervene(problems, hooks={hook: "scale:0.05" for hook in more}, like="micro")
        called = self.model.intervene(problems, hooks=more, like="micro")
        self.assertAlmostEqual(called[0]["changed.value"], scaled[1]["accuracy.value"])

    def test_a_run_has_recipe_and_problems(self):
        problems = self.model.problems(40)
        self.assertEqual((len(problems), set(problems[0])), (40, {"id", "question", "answer", "solution", "steps", "prompt"}))
        asked = self.model.cache(f"<bos> {problems[0]['question']}", "hook_embed").ids
        self.assertEqual(asked, [problems[0]["prompt"]])
        with sy.load(MODEL.parents[1], phase="sft") as model:
            for rows in (model.intervene(problems, modes=["zero"]), self.model.intervene(problems, modes=["zero"])):
                self.assertEqual(rows, self.model.intervene(problems, modes=["zero"], like="micro"))
                self.assertEqual(rows[0]["accuracy.n"], 40)
                self.assertGreater(rows[0]["accuracy.value"], 0.8)
        with self.assertWarnsRegex(UserWarning, "1 of 3 held-out problems repeat"):
            self.model.intervene(problems[:2] + problems[:1], modes=["zero"])

    def test_interventions_name_what_they_skip(self):
        problems = [
            {"question": f"a = {a} ; h = a + {b} ; ? h :", "answer": str((a + b) % 7)} for a in range(7) for b in (1, 2, 3)
        ]
        done = self.model.intervene(problems, modes=["zero", "known_value"], draws=1, like="micro")
        self.assertEqual([row["mode"] for row in done], ["normal", "zero"])
        self.assertLess(done[1]["accuracy.value"], done[0]["accuracy.value"])
        self.assertEqual(len(done.skipped), 1)
        self.assertIn("known_value", done.skipped[0])
        with self.assertRaisesRegex(RuntimeError, "did you mean"):
            self.model.intervene(problems, modes=["zeero"])
        hooks = ["blocks.2.hook_resid_post@latent[*,2]=mean", "blocks.1.attn.hook_z[head=0,3]@latent[*,2]=scale:0.5"]
        done = self.model.intervene(problems, hooks=hooks, like="micro")
        self.assertEqual([(row["mode"], row["hook"]) for row in done[1:]], [("mean", "blocks.2.hook_resid_post"), ("scale", "blocks.1.attn.hook_z")])

    def test_a_sweep_takes_functions(self):
        problems = [{"question": f"a = {a} ; h = a + 4 ; ? h :", "answer": str((a + 4) % 7)} for a in range(7)]
        hook = "blocks.2.hook_resid_post@latent[*,2]"

        def zeroed(values):
            return 0 * values

        rows = self.model.intervene(problems, hooks={hook: zeroed}, like="micro")
        done = self.model.intervene(problems, hooks={hook: "zero"}, like="micro")
        self.assertEqual((rows[0]["change"], rows[0]["difference.n"]), ("zeroed", 7))
        for name, native in (("normal", done[0]["accuracy.value"]), ("changed", done[1]["accuracy.value"])):
            self.assertAlmostEqual(rows[0][f"{name}.value"], native)
        for key in ("low", "high"):
            self.assertEqual(rows[0][f"difference.{key}"], done[1][f"accuracy_change.{key}"])
        self.assertEqual({type(value) for value in rows[0].values()}, {str, int, float})
        self.assertLessEqual(rows[0]["difference.low"], rows[0]["difference.value"])
        # A user's metric, and a change as a string.
        graded = []
        lengths = self.model.intervene(problems, n=3, hooks={hook: "zero"}, metric=lambda run, problem: graded.append(problem) or len(run.tokens))
        self.assertEqual((lengths[0]["change"], len(graded)), ("zero", 6))
        self.assertEqual(graded[0]["answer"], "4")
        with self.assertRaisesRegex(ValueError, "takes no modes"):
            self.model.intervene(problems, modes=["zero"], hooks={hook: zeroed})
        with self.assertRaisesRegex(RuntimeError, "never fire"):
            self.model.intervene(problems, hooks={"hook_embed@text[900]": zeroed}, like="micro")

    def test_a_probe_reads_only_the_probed_position(self):
        prompts = [f"<bos> {x} = {a} ; {y} = {x} + {b}" for x, y in ("ah", "bg", "cd") for a in range(7) for b in (1, 2)]
        labels = [prompt.split()[3] for prompt in prompts]
        rows = self.model.probe(prompts, labels, names="hook_embed,blocks.0.hook_resid_post", position=3)
        self.assertEqual([row["hook"] for row in rows], ["hook_embed", "blocks.0.hook_resid_post"])
        self.assertEqual(rows[0]["balanced_accuracy.value"], 1.0)
        shifted = self.model.probe(prompts, labels, names="hook_embed", position=-1)
        self.assertLess(shifted[0]["balanced_accuracy.value"], 0.6)
        with self.assertRaisesRegex(RuntimeError, "one for each"):
            self.model.probe(prompts, labels[1:])

    def test_ids_and_settings_may_be_arrays_and_numpy_scalars(self):
        ids = [1, 12, 5]
        alone = self.model.generate(ids, max_new_tokens=3, ignore_eos=True)
        settings = {"max_new_tokens": np.int64(3), "ignore_eos": np.bool_(True), "temperature": np.float32(0)}
        for array in (np.array(ids), np.array(ids, "u1"), [np.int64(token) for token in ids], tuple(ids)):
            self.assertEqual(self.model.generate(array, **settings), alone)
        for many in ([np.array(ids), ids], np.array([ids, ids]), (ids, tuple(ids))):
            self.assertEqual([run.tokens for run in self.model.generate(many, **settings)], [alone.tokens] * 2)
        self.assertEqual(sy.run(MODEL, np.array(ids), **settings).tokens, alone.tokens)
        self.assertEqual(self.model.lens(np.array(ids), top=np.int64(2)), self.model.lens(ids, top=2))
        cache = self.model.cache(np.array(ids), np.array(["hook_embed"]))
        self.assertEqual(cache, self.model.cache([ids], "hook_embed"))
        np.testing.assert_array_equal(cache.at("hook_embed", np.int64(1)), cache.at("hook_embed", 1))
        problems = [{"question": "a = 1 ; ? a :", "answer": np.str_("1")}]
        done = self.model.intervene(problems, modes=np.array(["zero"]), steps=np.array([1]), draws=np.int64(1), n=np.int64(1))
        self.assertEqual([row["mode"] for row in done], ["normal", "zero"])
        ids = [[1, first, token] for first in range(5, 11) for token in (12, 13)]
        labels = [row[2] for row in ids]
        rows = self.model.probe(np.array(ids), np.array(labels), "hook_embed", position=np.int64(2))
        self.assertEqual(rows, self.model.probe(ids, labels, "hook_embed", position=2))

    def test_a_killed_program_gives_its_signal_and_closes(self):
        with sy.load(MODEL) as model:
            model._process.kill()
            for _ in range(2):
                with self.assertRaisesRegex(RuntimeError, "^the program was ended by the signal SIGKILL$"):
                    model.generate(PROMPT)
            self.assertTrue(model.about["layers"])
        model.close()
        with self.assertRaisesRegex(RuntimeError, "closed"):
            model.lens(PROMPT)

    def test_a_call_in_another_thread_gets_an_error_when_the_model_is_closed(self):
        started, errors = threading.Event(), []

        def wait(values):
            started.set()
            # Until the program has ended.
            model._process.wait()
            return values

        def call():
            try:
                model.generate(PROMPT, hooks={"hook_embed@pos[0]": wait})
            except RuntimeError as error:
                errors.append(str(error))

        model = sy.load(MODEL)
        thread = threading.Thread(target=call)
        thread.start()
        started.wait()
        model.close()
        thread.join()
        self.assertEqual(errors, ["the session is closed: load the model again"])

    def test_closing_ends_the_process(self):
        with sy.load(MODEL) as model:
            process = model._process
            model.generate(PROMPT)
        self.assertEqual(process.returncode, 0)
        with self.assertRaisesRegex(RuntimeError, "no such|not exist|cannot|neither"):
            sy.load("/no/such/model")


if __name__ == "__main__":
    unittest.main()
