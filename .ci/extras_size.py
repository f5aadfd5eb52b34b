"""What each extra adds to the base installation in this environment: packages and size on disk.

    .venv/bin/python .ci/extras_size.py

Sizes are those of the installed files without bytecode.
"""

import sys
import tomllib
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MB = 1e6


def closure(requirements: Iterable[str]) -> dict[str, Distribution]:
    """Return the installed packages that the requirements need, with their own."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    left = [(Requirement(text), "") for text in requirements]
    while left:
        requirement, extra = left.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        package = None if name == "turnwise" else distribution(name)
        if package is not None:
            found[name] = package
        for wanted in {"", *requirement.extras}:
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            own = PROJECT["optional-dependencies"].get(wanted, [])
            needs = own if package is None else package.requires or []
            left += [(Requirement(text), wanted) for text in needs]
    return found


def size_mb(package: Distribution) -> float:
    files = [Path(str(file.locate())) for file in package.files or () if file.suffix != ".pyc"]
    return sum(file.stat().st_size for file in files if file.is_file()) / MB


def main() -> None:
    base = closure(PROJECT["dependencies"])
    sys.stdout.write(f"{'extra':<16}{'packages':>10}{'MB':>8}\n")
    sys.stdout.write(f"{'(base)':<16}{len(base):>10}{sum(map(size_mb, base.values())):>8.0f}\n")
    for extra in PROJECT["optional-dependencies"]:
        try:
            added = {name: package for name, package in closure([f"turnwise[{extra}]"]).items() if name not in base}
        except PackageNotFoundError as error:
            sys.stdout.write(f"{extra:<16}  {error}\n")
            continue
        size = sum(map(size_mb, added.values()))
        sys.stdout.write(f"{extra:<16}{len(added):>10}{size:>8.1f}\n")


if __name__ == "__main__":
    main()
