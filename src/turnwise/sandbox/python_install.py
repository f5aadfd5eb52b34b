"""What a session may read: the C libraries, the standard library, and named packages. Nothing else of the machine.

Whole folders are roots; `site-packages` below them is hidden, since a turnwise that is installed there brings graders
and answers. The wanted packages, with what they require, are let in one by one.
"""

# Paths are the kernel's here: plain strings beside descriptors.
# ruff: noqa: PTH100, PTH110, PTH112, PTH113, PTH114, PTH115, PTH118, PTH119, PTH120, PTH208

import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from turnwise.core.errors import UserError

LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
LOADER_FILES = ("/etc/ld.so.cache",)
DEVICES = ("/dev/null", "/dev/full", "/dev/urandom", "/dev/random")
"""Not /dev/zero: a shared mapping of it is memory that nobody counts."""
SITE_FOLDERS = ("site-packages", "dist-packages")
DEFAULT_PACKAGES = ("numpy", "sympy")


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonInstall:
    """Paths as they are on the host; inside they are the same."""

    roots: tuple[str, ...]
    """Folders and files, readable with all that is below them, but for `hidden`."""
    hidden: tuple[str, ...]
    """Folders below roots that stay closed."""
    packages: tuple[str, ...]
    """Entries of site-packages that are readable again."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links that lead to the interpreter: where, what they say."""
    search_path: tuple[str, ...]
    """sys.path inside."""
    preload: tuple[str, ...]
    """Modules that the zygote imports once."""


@functools.cache
def find_python_install(packages: tuple[str, ...] = DEFAULT_PACKAGES) -> PythonInstall:
    """`packages`: names of distributions; those that are not installed are left out."""
    if "turnwise" in packages:
        raise UserError(
            "sandbox: turnwise itself cannot be let in, it holds graders and answers; take it from packages"
        )
    standard = os.path.dirname(os.__file__)
    links, executable = _links_to(python_executable())
    entries, sites = _installed(packages)
    links += [(path, os.readlink(path)) for path in LIBRARY_FOLDERS if os.path.islink(path)]
    folders = [path for path in LIBRARY_FOLDERS if not os.path.islink(path)]
    own = [standard, executable, os.path.join(sys.prefix, "pyvenv.cfg")]
    roots = _outermost([path for path in (*folders, *LOADER_FILES, *own) if os.path.exists(path)])
    return PythonInstall(
        roots=roots,
        hidden=tuple(_site_folders(roots)),
        packages=entries,
        links=tuple(links),
        search_path=(standard, os.path.join(standard, "lib-dynload"), *sites),
        preload=tuple(name for name in packages if any(os.path.basename(entry) == name for entry in entries)),
    )


def python_executable() -> str:
    """The Python that runs this, without the `..` of a relative call."""
    return os.path.abspath(sys.executable)


def paths_without(root: str, closed: Sequence[str]) -> Iterator[str]:
    """`root`, or the largest parts of it that hold no closed folder. For jails that can only allow."""
    if root in closed:
        return
    if not any(folder.startswith(f"{root}/") for folder in closed):
        yield root
        return
    for name in sorted(os.listdir(root)):
        yield from paths_without(f"{root}/{name}", closed)


def loaded_libraries(roots: Sequence[str]) -> list[str]:
    """Shared libraries that this process has loaded from outside the roots: some stand outside all usual folders."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line and ".so" in line}
    inside = tuple(f"{os.path.realpath(root)}/" for root in roots)
    files = (path for path in paths if path.startswith("/") and os.path.isfile(path))
    return sorted(path for path in files if not os.path.realpath(path).startswith(inside))


def _outermost(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if not any(path.startswith(f"{other}/") for other in paths))


def _site_folders(roots: Sequence[str]) -> Iterator[str]:
    for root in roots:
        for pattern in (*SITE_FOLDERS, *(f"python*/{name}" for name in SITE_FOLDERS)):
            if os.path.isdir(root):
                yield from (str(path) for path in sorted(Path(root).glob(pattern)))


def _links_to(path: str) -> tuple[list[tuple[str, str]], str]:
    links = []
    while os.path.islink(path):
        links.append((path, os.readlink(path)))
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    return links, path


def _installed(packages: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The entries of the packages and of all that they require, and the folders in which these stand."""
    entries: dict[str, None] = {}
    sites: dict[str, None] = {}
    waiting, seen = list(packages), {"turnwise"}
    while waiting:
        name = waiting.pop(0)
        if name in seen:
            continue
        seen.add(name)
        try:
            found = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        site = str(found.locate_file("")).rstrip("/")
        tops = sorted({file.parts[0] for file in found.files or ()} - {"..", "__pycache__"})
        entries |= {f"{site}/{top}": None for top in tops if os.path.exists(f"{site}/{top}")}
        sites[site] = None
        waiting += _requirements(found)
    return tuple(entries), tuple(sites)


def _requirements(found: importlib.metadata.Distribution) -> list[str]:
    lines = [line for line in found.requires or () if "extra ==" not in line]
    matches = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines)
    return [match.group() for match in matches if match]
