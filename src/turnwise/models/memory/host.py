"""Memory of this machine that is not in use."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def available_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int | None:
    """Return the bytes that can be allocated without swapping, within the limit of a container. None if unknown."""
    found = [_of_machine(meminfo), _of_container(cgroup)]
    return min((each for each in found if each is not None), default=None)


def _of_machine(meminfo: Path) -> int | None:
    try:
        return 1024 * _read_table(meminfo)["MemAvailable:"]
    except (OSError, KeyError, ValueError):
        return None


def _of_container(cgroup: Path) -> int | None:
    """Return what is left of the limit of a control group (version 2), file caches counted as free."""
    try:
        limit, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        return max(0, limit - used + _read_table(cgroup / "memory.stat")["inactive_file"])
    except (OSError, KeyError, ValueError):  # "max": no limit
        return None


def _read_table(path: Path) -> dict[str, int]:
    """Read lines that begin with a name and a number."""
    rows = (line.split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
