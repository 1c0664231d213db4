"""A loaded model that is asked many times. Needs the build of `probe`."""

import unittest

import numpy as np

import switchyard as sy
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

    def test_it_says_what_a_process_of_its_own_says(self):
        hooks = {"latent.hook_injected@latent[1,1]": sy.scale(0.5)}
        once, live = sy.run(MODEL, PROMPT, hooks=hooks), self.model.generate(PROMPT, hooks=hooks)
        self.assertEqual((live.text, live.tokens, live.trace), (once.text, once.tokens, once.trace))
        self.assertEqual(live.hooks, once.hooks)
        # A change is of one request only.
        self.assertEqual(self.model.generate(PROMPT).text, sy.run(MODEL, PROMPT).text)

    def test_a_batch_is_its_rows(self):
        both = self.model.generate([PROMPT, OTHER], record="latent.hook_injected")
        alone = [self.model.generate(PROMPT, record="latent.hook_injected"), self.model.generate(OTHER)]
        self.assertEqual([run.text for run in both], [run.text for run in alone])
        self.assertEqual(len(both[0].activations.ids), 2)
        one, first = (run.activations.at("latent.hook_injected", "latent[1,1]") for run in (both[0], alone[0]))
        np.testing.assert_allclose(one, first, atol=1e-5)

    def test_the_lens_ends_in_what_the_model_says(self):
        lens = self.model.lens(OTHER, top=3)
        cache = self.model.cache(OTHER, "blocks.*.hook_resid_post", logits=True)
        logits = cache["logits"][0].astype("f8")
        p = np.exp(logits - logits.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        self.assertEqual((len(lens.layers), len(lens.tokens)), (self.model.about["layers"], p.shape[0]))
        for position, readings in enumerate(lens.layers[-1]):
            best = np.sort(p[position])[::-1][:3]
            np.testing.assert_allclose([value for _, value in readings], best, atol=1e-5)
        self.assertEqual(len(lens.frame()), len(lens.layers) * len(lens.tokens) * 3)
        self.assertIn("token", repr(lens))

    def test_a_cache_of_texts_has_their_rows(self):
        cache = self.model.cache([PROMPT, OTHER], ["blocks.1.hook_out@pos[2]"])
        name = "blocks.1.hook_resid_post@pos[2]"
        self.assertEqual(cache[name].shape[:2], (2, 1))

    def test_an_error_is_the_programs_and_ends_nothing(self):
        with self.assertRaisesRegex(RuntimeError, "did you mean"):
            self.model.generate(PROMPT, hooks={"blocks.0.hook_resid_pots": "zero"})
        with self.assertRaisesRegex(RuntimeError, "outside the embedding"):
            self.model.generate([1, 99999])
        with self.assertRaisesRegex(RuntimeError, "never fire"):
            self.model.lens(PROMPT, hooks={"hook_embed@pos[99]": "zero"})
        self.assertTrue(self.model.generate(PROMPT).text)

    def test_nothing_is_left_running(self):
        with sy.load(MODEL) as model:
            process = model._process
            model.generate(PROMPT)
        self.assertEqual(process.returncode, 0)
        with self.assertRaisesRegex(RuntimeError, "no such|not exist|cannot|neither"):
            sy.load("/no/such/model")


if __name__ == "__main__":
    unittest.main()
