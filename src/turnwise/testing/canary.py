"""A secret of this process, and a program that looks for it: what code in a sandbox must not find."""

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAM = """
import os
print(dict(os.environ))
for path in ("/proc/self/environ", "/proc/1/environ", "/proc/{pid}/environ", "{file}"):
    try:
        print(open(path, "rb").read().decode(errors="replace"))
    except OSError as error:
        print(error)
"""


@contextmanager
def canary() -> Iterator[tuple[str, str]]:
    """Put a secret into a variable and a file of this process; yield it with a program that looks for both."""
    secret = f"canary-{random.SystemRandom().getrandbits(64):x}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "secret.txt"
        file.write_text(secret, encoding="utf-8")
        os.environ["TURNWISE_CANARY"] = secret
        try:
            yield secret, PROGRAM.format(pid=os.getpid(), file=str(file))
        finally:
            del os.environ["TURNWISE_CANARY"]
