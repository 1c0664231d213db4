"""Requests sent to a program, errors before sending, and errors when a program ends. A script replaces `probe`."""

import contextlib
import json
import os
import signal
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import numpy as np

import switchyard as sy
from switchyard import running
from switchyard.running import changes, ended, flags_of

HOOK = "blocks.1.hook_resid_post@pos[0]"
# Answers `lens` with the request; some prompts trigger a fault.
SCRIPT = """#!%s
import json, os, sys, time
print("model: loaded; one request per line", file=sys.stderr, flush=True)
if sys.argv[1] != "session":
    sys.exit("error: not today")
for line in sys.stdin:
    prompt = json.loads(line).get("prompt")
    if prompt == "slow":
        time.sleep(0.4)
    elif prompt == "noise":
        print("a stray line", flush=True)
    elif prompt == "abort":
        os.abort()
    elif prompt == "half":
        print('{"ok": ', end="", flush=True)
        sys.exit("error: earlier\\nerror: the disk is full\\n\\n  tip: empty it")
    print(json.dumps({"ok": {"tokens": [line], "layers": []}}), flush=True)
"""


class TooLong(Exception):
    pass


@contextlib.contextmanager
def interrupted(error):
    """Raises an error after a tenth of a second."""

    def handler(*_):
        raise error

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@unittest.skipUnless(os.name == "posix", "scripts are programs on Unix")
class Asking(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.script = Path(folder.name) / "probe"
        self.script.write_text(SCRIPT % sys.executable, encoding="utf-8")
        self.script.chmod(0o755)

    def load(self):
        model = sy.load("model", probe=self.script)
        self.addCleanup(model.close)
        return model

    def sent(self, model, *given, **settings):
        return json.loads(model.lens(*given, **settings).tokens[0])

    def test_ids_are_whole_numbers(self):
        model = self.load()
        for ids in (np.array([3, 5]), [np.int64(3), np.uint8(5)], range(3, 6, 2), (3, 5)):
            self.assertEqual(self.sent(model, ids, top=np.int64(2)), {"do": "lens", "prompt": [3, 5], "top": 2, "hooks": []})
        calls = (model.lens, model.generate, lambda ids: model.cache(ids, "hook_embed"), lambda ids: model.probe(ids, ["a"]))
        for call in (*calls, lambda ids: sy.run("model", ids, probe=self.script)):
            for ids in ([1.0, 2], [True, 2], np.array([1.5]), np.array([True]), [2, "1"], [3, None]):
                with self.assertRaisesRegex(TypeError, "a token id is a whole number, found"):
                    call(ids)
            with self.assertRaisesRegex(ValueError, "between 0 and 4294967295, found -1"):
                call(np.array([1, -1]))
            for nothing in (None, b"ab", 5, {"a": 1}):
                with self.assertRaisesRegex(TypeError, "a prompt is text or a list of token ids"):
                    call(nothing)
        self.assertEqual(self.sent(model, "still here")["prompt"], "still here")

    def test_numbers_that_are_not_finite_are_errors_by_name(self):
        model = self.load()
        for bad in (float("nan"), np.float32("inf"), np.array(-np.inf)):
            found = f"must be a finite number, found {float(bad)}"
            for name, ask in (
                ("temperature", lambda: model.generate("a", temperature=bad)),
                ("top", lambda: model.lens("a", top=bad)),
                ("n", lambda: model.intervene([], n=bad)),
                ("seed", lambda: model.probe(["a"], ["b"], seed=bad)),
                ("labels", lambda: model.probe(["a"], [bad])),
                ("groups", lambda: model.probe(["a"], ["b"], groups=np.array([1, float(bad)]))),
                ("answer", lambda: model.intervene([{"question": "a", "answer": bad}])),
                ("scale", lambda: sy.scale(bad)),
                ("top_p", lambda: sy.run("model", "a", probe=self.script, top_p=bad)),
                ("threads", lambda: sy.load("model", probe=self.script, threads=bad)),
            ):
                with self.assertRaisesRegex(ValueError, "-?(nan|inf)$") as caught:
                    ask()
                self.assertEqual(str(caught.exception), f"{name} {found}")
            with self.assertRaisesRegex(ValueError, r"hook_resid_post@pos\[0\]: swap must be of finite numbers, found -?(nan|inf)"):
                model.generate("a", hooks={HOOK: sy.swap([1.0, float(bad)])})
        with self.assertRaisesRegex(TypeError, "seed must be a number, a text or a list of them, found <object"):
            model.generate("a", seed=object())

    def test_the_error_for_a_bare_array_names_swap(self):
        model = self.load()
        for bare, found in ((np.zeros(64), "a bare ndarray"), ([1.0, 2.0], "a bare list"), (2.0, "2.0")):
            for ask in (model.generate, model.lens, lambda *given, **hooks: sy.run("model", *given, probe=self.script, **hooks)):
                with self.assertRaisesRegex(TypeError, rf"pos\[0\]: {found} is not a change; use swap\(array\)"):
                    ask("a", hooks={HOOK: bare})
        for bare in (np.zeros(3), [("hook_embed", "zero")], sy.scale(2)):
            with self.assertRaisesRegex(TypeError, "hooks must be lines HOOK=CHANGE or a dictionary of changes by hook, found a"):
                changes(bare, "")
        lines = ["blocks.2.attn.hook_z[head=0,3]@latent[*,2]=scale:0.5", "hook_embed=random_norm"]
        self.assertEqual(changes(lines, ""), lines)
        self.assertEqual(changes(lines[0], ""), lines[:1])
        self.assertEqual(changes({"blocks.2.hook_out": "rotate:30"}, ""), ["blocks.2.hook_resid_post=rotate:30"])

    def test_arrays_beyond_float32_are_errors(self):
        masked = np.ma.masked_array([1.0, 99.0], mask=[False, True])
        with tempfile.TemporaryDirectory() as folder:
            for make in (sy.swap, sy.add, lambda array: sy.save(Path(folder) / "x", {"hook_embed": array})):
                for array, found in ((masked, "masks 1 values"), ([1j], "complex"), ([None], "object"), (["1"], "of real numbers")):
                    with self.assertRaisesRegex(TypeError, found):
                        make(array)
                make(np.ma.masked_array([1.0, 2.0], mask=False))
            with self.assertRaisesRegex(ValueError, "found 1e\\+39"):
                sy.save(Path(folder) / "x", {"hook_embed": [1.0, 1e39]})
        with self.assertRaisesRegex(ValueError, "1e\\+39"):
            sy.scale(1e39)
        model = self.load()
        with self.assertRaisesRegex(TypeError, "masked"):
            model.probe(["a", "b"], np.ma.masked_array([0, 1], mask=[True, False]))
        with self.assertRaisesRegex(ValueError, r"labels\[1\] is missing"):
            model.probe(["a", "b"], ["x", None])

    def test_the_program_of_the_enclosing_checkout_is_found(self):
        here, around = os.getcwd(), Path(self.script).parent / "checkout"
        (around / "python/src/switchyard").mkdir(parents=True)
        (around / "target/debug").mkdir(parents=True)
        (around / "docs").mkdir()
        self.script.rename(around / "target/debug/probe")
        elsewhere = unittest.mock.patch.object(running, "__file__", str(around / "docs/a/b/c/running.py"))
        with unittest.mock.patch.dict(os.environ, PATH="/usr/bin:/bin"), elsewhere:
            for name in ("SWITCHYARD_PROBE", "CARGO_TARGET_DIR"):
                os.environ.pop(name, None)
            try:
                os.chdir(around / "docs")
                found = running.program(None)
            finally:
                os.chdir(here)
        self.assertEqual(found, [str((around / "target/debug/probe").resolve())])

    def test_flags_are_plain(self):
        flags = {"k_min": np.int64(0), "ignore_eos": np.bool_(True), "chat": False, "top_p": np.float64(0.5), "adapter": Path("a")}
        self.assertEqual(flags_of({**flags, "seed": None}), ["--k-min=0", "--ignore-eos", "--top-p=0.5", "--adapter=a"])

    def test_the_error_of_a_program_that_ends(self):
        half = "ended with code 1: error: the disk is full\n.*tip"
        for prompt, message in (("abort", "was ended by the signal SIGABRT$"), ("half", half)):
            with self.load() as model:
                for text in (prompt, "again"):
                    with self.assertRaisesRegex(RuntimeError, rf"(?s)^the program {message}"):
                        model.lens(text)
                self.assertTrue(model.about)
            model.close()
        with self.assertRaisesRegex(RuntimeError, "^the program ended with code 1: error: not today$"):
            sy.run("model", "a", probe=self.script)
        self.assertEqual(ended(127, "x: loaded; one request per line\n"), "the program ended with code 127")
        for error in ("probe: error while loading shared libraries: libcuda.so.1", "thread 'main' panicked at a.rs:1:\noh"):
            self.assertEqual(ended(127, f"so far, no error\n{error}\n"), f"the program ended with code 127: {error}")
        self.assertEqual(ended(-63, ""), "the program was ended by the signal 63")

    def test_an_interrupted_request_ends_the_session(self):
        for error in (KeyboardInterrupt, TooLong, TimeoutError, ValueError):
            with self.load() as model:
                with interrupted(error), self.assertRaises(error):
                    model.lens("slow")
                with self.assertRaisesRegex(RuntimeError, "ended because a request was interrupted: load the model again"):
                    model.lens("the next")

    def test_an_invalid_answer_is_shown(self):
        with self.load() as model:
            with self.assertRaisesRegex(RuntimeError, "not an answer of the program `probe`: 'a stray line'"):
                model.lens("noise")
            with self.assertRaisesRegex(RuntimeError, "ended because it sent an invalid answer"):
                model.lens("the next")
        for program in ("/bin/echo", "/bin/true"):
            for call in (sy.load, lambda *given, **more: sy.run(*given, "a", **more)):
                with self.subTest(program), self.assertRaisesRegex(RuntimeError, "not an answer of|ended with code 0"):
                    call("model", probe=program)


class Equal(unittest.TestCase):
    def test_recordings_are_compared_by_their_arrays(self):
        one, same, other = (sy.Activations({"hook_embed": np.full((1, 2), by)}, {}) for by in (1, 1, 2))
        self.assertEqual(one, same)
        self.assertNotEqual(one, other)
        self.assertNotEqual(sy.swap([1, 2]), sy.swap([1, 2]))


if __name__ == "__main__":
    unittest.main()
