"""The Python code of README and docs/how-to/python.md runs as written."""

import contextlib
import importlib.util
import io
import os
import re
import unittest

from test_running import BUILT, ROOT


@unittest.skipUnless(BUILT, "`probe` is not built")
@unittest.skipUnless(any(map(importlib.util.find_spec, ("polars", "pandas"))), "no library of data frames")
class Pages(unittest.TestCase):
    def test_their_code_runs(self):
        before = os.getcwd()
        self.addCleanup(os.chdir, before)
        os.chdir(ROOT)
        for page in ("README.md", "docs/how-to/python.md"):
            blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
            self.assertTrue(blocks, page)
            names = {}
            for number, block in enumerate(blocks, 1):
                with self.subTest(page=page, block=number), contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(block, f"{page}, block {number}", "exec"), names)


if __name__ == "__main__":
    unittest.main()
