"""Print all requirements of development without their upper bounds, for pip.

    python .ci/without_upper_bounds.py

It needs only Python, because it runs before anything is installed.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXTRA = re.compile(r"turnwise\[(?P<names>[^]]+)\]")
UPPER_BOUND = re.compile(r",?\s*<=?[\w.]+")


def requirements(project: dict[str, Any], extra: str = "test") -> Iterator[str]:
    """Yield the project's requirements and those of the extra without upper bounds."""
    yield from (without_upper_bound(requirement) for requirement in project["dependencies"])
    yield from _of_extra(project["optional-dependencies"], extra)


def _of_extra(extras: dict[str, list[str]], extra: str) -> Iterator[str]:
    for requirement in extras[extra]:
        if (own := EXTRA.fullmatch(requirement)) is None:
            yield without_upper_bound(requirement)
            continue
        for name in own["names"].split(","):
            yield from _of_extra(extras, name)


def without_upper_bound(requirement: str) -> str:
    specifier, semicolon, marker = requirement.partition(";")
    return UPPER_BOUND.sub("", specifier) + semicolon + marker


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sys.stdout.writelines(f"{requirement}\n" for requirement in requirements(project))
