"""Memory that is available, from the files of the kernel."""

from pathlib import Path

from turnwise.models.memory.host import available_memory


def test_available_memory_is_the_smaller_of_machine_and_container(tmp_path: Path) -> None:
    meminfo, cgroup = tmp_path / "meminfo", tmp_path / "cgroup"
    assert available_memory(meminfo, cgroup) is None
    meminfo.write_text("MemTotal:       24000 kB\nMemFree:         1000 kB\nMemAvailable:    9000 kB\n")
    assert available_memory(meminfo, cgroup) == 9000 * 1024
    cgroup.mkdir()
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("5000000\n")
    (cgroup / "memory.stat").write_text("anon 4000000\ninactive_file 300000\n")
    assert available_memory(meminfo, cgroup) == 9000 * 1024
    (cgroup / "memory.max").write_text("6000000\n")
    assert available_memory(meminfo, cgroup) == 1_300_000
    (cgroup / "memory.current").write_text("8000000\n")
    assert available_memory(meminfo, cgroup) == 0


def test_this_machine_has_memory() -> None:
    assert available_memory() is None or available_memory() > 0  # type: ignore[operator]
