"""Files a session may read: the C libraries, the standard library and selected packages.

Whole folders are roots. `site-packages` below them is hidden, since an installed turnwise contains graders and answers;
the selected packages and their requirements are made readable one by one.
"""

# Paths here are plain strings, as system calls take them.
# ruff: noqa: PTH100, PTH110, PTH112, PTH113, PTH114, PTH115, PTH118, PTH120, PTH208

import functools
import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from turnwise.core.errors import UserError

LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib", "/usr/lib64")
LOADER_FILES = ("/etc/ld.so.cache",)
PROGRAM_FOLDERS = ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/libexec", "/usr/share", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/full", "/dev/urandom", "/dev/random")
"""Without /dev/zero: shared mappings of it are memory that is not counted."""
PROC = "/proc"
SOCKETS = "/run/turnwise"
"""Folder of `AgentAccess.sockets` in a session."""
SITE_FOLDERS = ("site-packages", "dist-packages")
DEFAULT_PACKAGES = ("numpy", "sympy")


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentAccess:
    """Access of an agent's program beyond a shell: its files, a way to the model, loopback and /proc.

    Sessions with it have a network of their own, which reaches nothing outside, and a wider system call filter. Their
    answers are those of untrusted code: files that are graded must go into a session without it.
    """

    folders: tuple[str, ...]
    """Folders of this machine with the program, readable with everything below them."""
    sockets: str
    """Folder of this machine with Unix sockets, at `SOCKETS`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PythonInstall:
    """Paths of this Python, the same on the host and inside a session."""

    roots: tuple[str, ...]
    """Folders and files, readable with everything below them except `hidden`."""
    hidden: tuple[str, ...]
    """Folders below roots that stay unreadable."""
    packages: tuple[str, ...]
    """Entries of site-packages that are readable."""
    links: tuple[tuple[str, str], ...]
    """Symbolic links that lead to the interpreter: (path, target)."""
    search_path: tuple[str, ...]
    """sys.path of a session."""
    preload: tuple[str, ...]
    """Import names of the packages that the zygote imports once, for all sessions."""
    own_root: bool = False
    """Sessions have this machine's programs and a writable root of their own."""
    agent: "AgentAccess | None" = None
    """Access of an agent's program that sessions can run; None: they run none."""


@functools.cache
def find_python_install(
    packages: tuple[str, ...] = DEFAULT_PACKAGES, *, own_root: bool = False, agent: AgentAccess | None = None
) -> PythonInstall:
    """Locate the files of this Python, and with `own_root` the programs of this machine.

    `packages`: distribution names; those not installed are skipped.
    """
    if "turnwise" in packages:
        raise UserError(
            "turnwise cannot be readable in the sandbox: it contains graders and answers. Remove it from packages."
        )
    standard = os.path.dirname(os.__file__)
    links, executable = _links_to(python_executable())
    entries, sites = _installed(packages)
    outside = (*LIBRARY_FOLDERS, *(PROGRAM_FOLDERS if own_root else ()))
    links += [(path, os.readlink(path)) for path in outside if os.path.islink(path)]
    folders = [path for path in outside if not os.path.islink(path)]
    interpreter = [standard, executable, os.path.join(sys.prefix, "pyvenv.cfg")]
    roots = _outermost([path for path in (*folders, *LOADER_FILES, *interpreter) if os.path.exists(path)])
    return PythonInstall(
        roots=roots,
        hidden=tuple(_site_folders(roots)),
        packages=entries,
        links=tuple(links),
        search_path=(standard, os.path.join(standard, "lib-dynload"), *sites),
        preload=() if own_root else tuple(_import_names(packages)),
        own_root=own_root,
        agent=None if agent is None else replace(agent, folders=_outside(agent.folders, roots)),
    )


def python_executable() -> str:
    """Return the absolute path of the running Python, without `..`."""
    return os.path.abspath(sys.executable)


def paths_without(root: str, hidden: Sequence[str]) -> Iterator[str]:
    """Yield `root`, or its largest parts that contain no hidden folder. For jails that can only allow."""
    if root in hidden:
        return
    if not any(folder.startswith(f"{root}/") for folder in hidden):
        yield root
        return
    for name in sorted(os.listdir(root)):
        yield from paths_without(f"{root}/{name}", hidden)


def loaded_libraries(roots: Sequence[str]) -> list[str]:
    """Return the shared libraries that this process has loaded from outside the roots."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if "/" in line and ".so" in line}
    inside = tuple(f"{os.path.realpath(root)}/" for root in roots)
    files = (path for path in paths if path.startswith("/") and os.path.isfile(path))
    return sorted(path for path in files if not os.path.realpath(path).startswith(inside))


def _outermost(paths: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if not any(path.startswith(f"{other}/") for other in paths))


def _outside(paths: Sequence[str], roots: Sequence[str]) -> tuple[str, ...]:
    return tuple(path for path in paths if not any(path == root or path.startswith(f"{root}/") for root in roots))


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
    """Return the site-packages entries of the packages and their requirements, and the site folders."""
    entries: dict[str, None] = {}
    sites: dict[str, None] = {}
    queue, visited = list(packages), {"turnwise"}
    while queue:
        name = queue.pop(0)
        if name in visited:
            continue
        visited.add(name)
        if (distribution := _find_distribution(name)) is not None:
            site, tops = _contents(distribution)
            entries |= {f"{site}/{top}": None for top in tops}
            sites[site] = None
            queue += _requirements(distribution)
    return tuple(entries), tuple(sites)


def _import_names(packages: Sequence[str]) -> Iterator[str]:
    """Yield the names of the installed packages' folders: pillow is imported as PIL."""
    for name in packages:
        if (distribution := _find_distribution(name)) is not None:
            site, tops = _contents(distribution)
            yield from (top for top in tops if os.path.exists(f"{site}/{top}/__init__.py"))


def _find_distribution(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _contents(distribution: importlib.metadata.Distribution) -> tuple[str, list[str]]:
    """Return the site folder of a distribution and its files and folders there."""
    site = str(distribution.locate_file("")).rstrip("/")
    tops = sorted({file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"})
    return site, [top for top in tops if os.path.exists(f"{site}/{top}")]


def _requirements(distribution: importlib.metadata.Distribution) -> list[str]:
    lines = [line for line in distribution.requires or () if "extra ==" not in line]
    matches = (re.match(r"[A-Za-z0-9._-]+", line) for line in lines)
    return [match.group() for match in matches if match]
