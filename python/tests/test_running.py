"""Calls of the program `probe`. Needs its build."""

import os
import shutil
import unittest
from pathlib import Path

import numpy as np

import switchyard as sy

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "fixtures" / "micro" / "sft" / "checkpoint"
PROMPT = "<bos> a = 5 ; h = a + 4 ; c = h - a ; ? c :"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "debug" / "probe"
BUILT = os.environ.get("SWITCHYARD_PROBE") or shutil.which("probe") or TARGET.is_file()


@unittest.skipUnless(BUILT, "`probe` is not built")
class Running(unittest.TestCase):
    def test_a_run_has_text_trace_and_activations_under_both_names(self):
        run = sy.run(MODEL, PROMPT, record=["blocks.*.hook_out", "blocks.0.attn.hook_pattern", "latent.hook_injected"])
        self.assertTrue(run.text and run.trace.latents)
        cache = run.activations
        self.assertEqual(len(cache), 6)
        old, new = cache["blocks.1.hook_resid_post"], cache["blocks.1.hook_out"]
        self.assertIs(old, new)
        self.assertIs(cache["resid_post", 1], old)
        self.assertIs(cache["pattern", 0], cache["blocks.0.attn.hook_pattern"])
        self.assertIn("blocks.1.hook_out", cache.with_new_names())
        self.assertNotIn("blocks.1.hook_in", cache)
        # `steps` gives the position of latent step 1 of block 1.
        position = cache.steps[0].index("latent[1,1]")
        value = cache.at("latent.hook_injected", "latent[1,1]")
        np.testing.assert_array_equal(value, cache.at("latent.hook_injected", position))
        self.assertEqual(cache.at("blocks.0.attn.hook_pattern", 3).ndim, 2)
        self.assertEqual(len(cache.ids[0]), cache.lengths[0])
        self.assertEqual(len(run.trace.latents), sum(step.startswith("latent") for step in cache.steps[0]))
        with self.assertRaisesRegex(KeyError, "latent"):
            cache.at("latent.hook_injected", "latent[99,1]")
        with self.assertRaisesRegex(KeyError, "not in the file"):
            cache["blocks.9.hook_out"]

    def test_hooks_change_the_recorded_value(self):
        hook = "latent.hook_injected@latent[1,1]"
        normal = sy.run(MODEL, PROMPT, record="latent.hook_injected")
        own = normal.activations.at("latent.hook_injected", "latent[1,1]")
        swapped = sy.run(MODEL, PROMPT, hooks={hook: sy.swap(own)})
        self.assertEqual(swapped.trace, normal.trace)
        self.assertEqual((swapped.hooks[0]["fired"], swapped.hooks[0]["mean_change"]), (1, 0.0))
        by = np.linspace(-1, 1, own.size)
        added = sy.run(MODEL, PROMPT, hooks={hook: sy.add(by)}, record=hook)
        np.testing.assert_allclose(added.activations[hook][0, 0], own + by.astype("f4"), rtol=1e-6)
        zero = sy.run(MODEL, PROMPT, hooks={hook: "zero"}, record=hook)
        self.assertFalse(zero.activations[hook].any())
        halved = sy.run(MODEL, PROMPT, hooks={hook: sy.scale(0.5)}, record=hook)
        np.testing.assert_array_equal(halved.activations[hook][0, 0], own / 2)

    def test_flags_and_ids_reach_the_program(self):
        short = sy.run(MODEL, [3, 5, 8], max_new_tokens=3, ignore_eos=True)
        self.assertEqual(len(short.tokens), 3)
        self.assertIsNone(short.activations)
        again = sy.run(MODEL, [3, 5, 8], max_new_tokens=3, ignore_eos=True)
        self.assertEqual(short, again)

    def test_none_and_zero_differ(self):
        with self.assertRaisesRegex(RuntimeError, "code 2: error: .*k_cap"):
            sy.run(MODEL, PROMPT, k_cap=0)
        self.assertTrue(sy.run(MODEL, "-1", max_new_tokens=np.int64(2), temperature=None, ignore_eos=np.bool_(True)).tokens)

    def test_errors_come_from_the_program(self):
        with self.assertRaisesRegex(RuntimeError, "did you mean `blocks.0.hook_resid_post`"):
            sy.run(MODEL, PROMPT, hooks={"blocks.0.hook_resid_pots": "zero"})
        with self.assertRaisesRegex(RuntimeError, "did you mean `zero`"):
            sy.run(MODEL, PROMPT, hooks={"hook_embed": "zer"})
        with self.assertRaisesRegex(RuntimeError, "`mean` needs values of other problems"):
            sy.run(MODEL, PROMPT, hooks={"hook_embed": "mean"})
        for change in ("random_norm", "rotate:30", "scale:2"):
            done = sy.run(MODEL, PROMPT, hooks=[f"blocks.2.hook_resid_post@latent[*,2]={change}"])
            self.assertGreater(done.hooks[0]["mean_change"], 0.0, change)
        with self.assertRaisesRegex(FileNotFoundError, "/no/such/probe"):
            sy.run(MODEL, PROMPT, probe="/no/such/probe")


if __name__ == "__main__":
    unittest.main()
