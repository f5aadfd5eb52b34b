"""bm25s must not import jax, which would reserve most of the GPU memory."""

import subprocess
import sys
from pathlib import Path

TRY = """
import sys
from turnwise.tools.search.lexical import LexicalIndex
LexicalIndex.build(["oak", "elm"])
assert "bm25s" in sys.modules and "jax" not in sys.modules
import jax
"""


def test_jax_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "lax.py").write_text("raise SystemExit('jax was asked')")
    (tmp_path / "jax" / "__init__.py").write_text("print('here')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{TRY}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "here\n", "")
