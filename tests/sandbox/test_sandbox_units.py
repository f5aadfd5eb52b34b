"""Parts of the sandbox that start no session: filters, frames, scratch folders, the Python installation, /proc."""

import ctypes
import ctypes.util
import errno
import functools
import os
import signal
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.sandbox import scratch_folders, seccomp
from turnwise.sandbox.processes import descendants, is_stopped, process_usage, proportional_bytes
from turnwise.sandbox.protocol import FrameBuffer, FrameError, ZygoteConfig, encode
from turnwise.sandbox.python_install import find_python_install, paths_without
from turnwise.sandbox.seccomp import (
    ALLOW,
    ERRNO,
    FIRST_NEW_CALL,
    KILL,
    SyscallRule,
    agent_rules,
    compile_filter,
    landlock_rules,
    namespaces_rules,
)
from turnwise.sandbox.syscalls import AARCH64, MACHINES, X86_64, audit_arch, syscall_numbers
from turnwise.sandbox.types import SandboxLimits
from work_for_tests import wait_until

EPERM = ERRNO | errno.EPERM
ENOSYS = ERRNO | errno.ENOSYS


def decide(code: bytes, number: int, *arguments: int, arch: int | None = None) -> int:
    """Interpret a filter's BPF instructions as the kernel would; return the action."""
    words = [value & (2**64 - 1) for value in (*arguments, *[0] * (6 - len(arguments)))]
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, audit_arch() if arch is None else arch, 0, *words)
    instructions = list(struct.iter_unpack("HBBI", code))
    at = loaded = 0
    while True:
        operation, yes, no, operand = instructions[at]
        at += 1
        if operation == 0x20:
            (loaded,) = struct.unpack_from("=I", data, operand)
        elif operation == 0x54:
            loaded &= operand
        elif operation == 0x15:
            at += yes if loaded == operand else no
        elif operation == 0x35:
            at += yes if loaded >= operand else no
        else:
            assert operation == 0x06
            return int(operand)


cached_filter = functools.cache(compile_filter)


@pytest.fixture(scope="module", params=["namespaces", "landlock"])
def rules(request: pytest.FixtureRequest) -> tuple[SyscallRule, ...]:
    return seccomp.namespaces_rules() if request.param == "namespaces" else seccomp.landlock_rules(77)


@given(number=st.integers(0, 2**32 - 1), arguments=st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_filter_refuses_calls_without_a_rule(rules: tuple[SyscallRule, ...], number: int, arguments: list[int]) -> None:
    named = {syscall_numbers()[rule.name] for rule in rules if rule.name in syscall_numbers()}
    answer = decide(cached_filter(rules), number, *arguments)
    if number >= 0x40000000:
        assert answer == KILL
    elif number not in named:
        assert answer == (ENOSYS if number >= 424 else EPERM)


@given(arch=st.integers(0, 2**32 - 1), number=st.integers(0, 500))
def test_filter_kills_calls_of_other_architectures(rules: tuple[SyscallRule, ...], arch: int, number: int) -> None:
    if arch != audit_arch():
        assert decide(cached_filter(rules), number, arch=arch) == KILL


@given(flags=st.integers(0, 2**32 - 1))
def test_filter_clone_allows_no_namespaces_and_in_landlock_only_threads(flags: int) -> None:
    clone = syscall_numbers()["clone"]
    first = decide(compile_filter(seccomp.namespaces_rules()), clone, flags)
    assert first == (EPERM if flags & 0x7E020000 else ALLOW)
    second = decide(compile_filter(seccomp.landlock_rules(77)), clone, flags)
    assert second == (ALLOW if flags & 0x10100 == 0x10100 else EPERM)


def test_filter_decides_by_arguments(rules: tuple[SyscallRule, ...]) -> None:
    code, call = compile_filter(rules), syscall_numbers()
    allowed = [
        ("prctl", 15),
        ("fcntl", 0, 1030),
        ("ioctl", 0, 0x541B),
        ("socketpair", 1, 1 | 0o2000000),
        ("prlimit64", 0, 7),
    ]
    refused = [
        ("prctl", 1),
        ("prctl", 4),
        ("fcntl", 0, 8),
        ("fcntl", 0, 1031),
        ("ioctl", 0, 0x8902),
        ("socketpair", 1, 2),
    ]
    refused += [("socketpair", 2, 1), ("socketpair", 1, 5), ("prlimit64", 1, 7), ("prlimit64", 0, 4), ("clone3",)]
    assert [decide(code, call[name], *words) for name, *words in allowed] == [ALLOW] * len(allowed)
    assert ALLOW not in [decide(code, call[name], *words) for name, *words in refused]


@given(pid=st.integers(-(2**31), 2**31 - 1))
def test_landlock_filter_allows_signals_only_to_itself(pid: int) -> None:
    code = compile_filter(seccomp.landlock_rules(77))
    for name in ("kill", "tgkill"):
        assert decide(code, syscall_numbers()[name], pid, 9) == (ALLOW if pid == 77 else EPERM)
    assert decide(code, syscall_numbers()["tkill"], pid, 9) == EPERM


def test_landlock_filter_fakes_metadata_and_refuses_exec() -> None:
    code = compile_filter(seccomp.landlock_rules(77))
    assert decide(code, syscall_numbers()["fchmodat"]) == ERRNO
    assert decide(code, syscall_numbers()["execve"]) == EPERM
    assert decide(code, syscall_numbers()["truncate"]) == EPERM


X86_64_ONLY = """
    access alarm arch_prctl chmod creat dup2 epoll_create epoll_wait eventfd fork futimesat getdents getpgrp
    inotify_init link lstat mkdir mknod open pause pipe poll readlink rename rmdir select signalfd stat symlink time
    unlink utime utimes vfork
"""
"""Old calls that aarch64 lacks: it has only their successors."""


def test_syscall_tables_agree_across_architectures() -> None:
    assert X86_64.keys() >= AARCH64.keys()
    assert X86_64.keys() - AARCH64.keys() == set(X86_64_ONLY.split())
    new = [{name: number for name, number in table.items() if number >= FIRST_NEW_CALL} for table in (X86_64, AARCH64)]
    assert new[0] == new[1]
    assert len(set(X86_64.values())) == len(X86_64)
    assert len(set(AARCH64.values())) == len(AARCH64)
    assert {"seccomp", "unshare", "openat", "clone", "clone3", "execve", "kill", "prctl", "mmap"} <= AARCH64.keys()
    assert "memfd_create" not in X86_64


def test_only_programs_of_agents_may_open_sockets() -> None:
    opening = {"socket", "connect", "bind", "listen", "accept", "accept4", "setsockopt"}
    for rules in (namespaces_rules(), landlock_rules(1)):
        assert opening.isdisjoint(rule.name for rule in rules)
    names = [rule.name for rule in agent_rules()]
    assert opening <= set(names) and len(set(names)) == len(names)
    assert {"ptrace", "unshare", "mount", "setns", "bpf", "keyctl", "io_uring_setup"}.isdisjoint(names)


@pytest.mark.parametrize("machine", MACHINES)
def test_syscall_numbers_agree_with_libseccomp(machine: str) -> None:
    path = ctypes.util.find_library("seccomp")
    if path is None:
        pytest.skip("no libseccomp to compare with: apt-get install libseccomp2")
    library = ctypes.CDLL(path)
    arch, table = MACHINES[machine]
    known = {name: library.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(arch), name.encode()) for name in table}
    unknown = -1  # newer than that library
    assert {name: number for name, number in table.items() if known[name] not in (number, unknown)} == {}


def test_rules_name_only_known_calls() -> None:
    rules = (*seccomp.namespaces_rules(), *seccomp.landlock_rules(77))
    assert {rule.name for rule in rules} <= X86_64.keys()


@given(
    messages=st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.none()), max_size=4),
    size=st.integers(1, 9),
)
def test_frame_buffer_reassembles_frames_from_any_chunks(messages: list[dict[str, object]], size: int) -> None:
    stream = b"".join(encode(message) for message in messages)
    buffer = FrameBuffer(cap=10_000)
    found = []
    for start in range(0, len(stream), size):
        frame = buffer.feed(stream[start : start + size])
        while frame is not None:
            found.append(frame)
            frame = buffer.feed(b"")
    assert found == messages
    assert not buffer.bytes


@given(data=st.binary(max_size=200))
def test_frame_buffer_raises_only_frame_error(data: bytes) -> None:
    buffer = FrameBuffer(cap=100)
    try:
        frame = buffer.feed(data)
    except FrameError:
        return
    assert frame is None or isinstance(frame, dict)


def test_limits_reject_zero() -> None:
    with pytest.raises(UserError, match=r"memory_mb is 0\. Set a number above 0"):
        SandboxLimits(memory_mb=0)


def test_remove_tree_handles_links_and_any_depth(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    top = tmp_path / "top"
    top.mkdir()
    (top / "link").symlink_to(outside)
    (top / ".moved-0").mkdir()
    deep = os.open(top, os.O_RDONLY)
    for _ in range(150):
        os.mkdir("d" * 100, 0o700, dir_fd=deep)
        os.symlink(str(outside), "link2", dir_fd=deep)
        lower = os.open("d" * 100, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = lower
    os.close(deep)
    (top / "shut").mkdir(mode=0)
    assert scratch_folders.disk_usage(str(top), max_files=10_000)[0] > 10_000  # deeper than a path can name
    scratch_folders.remove_tree(str(top))
    assert not top.exists()
    assert (outside / "kept").read_text() == "x"


def test_remove_tree_ignores_a_link_that_replaces_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that still runs must not make the host remove other files."""
    outside, top = tmp_path / "outside", tmp_path / "top"
    for folder in (outside, top / "a"):
        folder.mkdir(parents=True)
        (folder / "kept").write_text("x")
    outside.chmod(0o755)
    original = scratch_folders._entries

    def swap_then_list(folder: int) -> list[tuple[str, bool]]:
        entries = list(original(folder))
        if entries == [("kept", False)] and not (top / "a").is_symlink():
            (top / "a").rename(top / "b")
            (top / "a").symlink_to(outside)
        return entries

    monkeypatch.setattr(scratch_folders, "_entries", swap_then_list)
    with suppress(OSError):
        scratch_folders.remove_tree(str(top))
    assert (outside / "kept").exists()
    assert outside.stat().st_mode & 0o777 == 0o755
    monkeypatch.undo()
    scratch_folders.remove_tree(str(top))
    assert not top.exists() and (outside / "kept").exists()


def test_remove_base_retries_while_others_write() -> None:
    base, lock = scratch_folders.create_base()
    end = time.monotonic() + 0.2

    def write() -> None:
        number = 0
        while time.monotonic() < end:
            number += 1
            with suppress(OSError):
                Path(base, f"{number}").mkdir()
            time.sleep(0.0002)

    writers = [threading.Thread(target=write) for _ in range(2)]
    for writer in writers:
        writer.start()
    scratch_folders.remove_base(base, lock)
    for writer in writers:
        writer.join()
    assert not Path(base).exists()


def test_disk_usage_stops_at_its_limit(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "file").write_bytes(b"x" * 5000)
    count, size = scratch_folders.disk_usage(str(tmp_path), max_files=100)
    assert count == 20
    assert size >= 10 * 5000
    assert scratch_folders.disk_usage(str(tmp_path), max_files=5)[0] > 5
    (tmp_path / "dark").mkdir(mode=0o300)
    assert scratch_folders.disk_usage(str(tmp_path), max_files=100)[0] > 100


def test_paths_without_skips_only_hidden_folders(tmp_path: Path) -> None:
    for name in ("a/b/hidden", "a/b/shown", "a/c", "d"):
        (tmp_path / name).mkdir(parents=True)
    parts = list(paths_without(str(tmp_path), [f"{tmp_path}/a/b/hidden"]))
    assert parts == [f"{tmp_path}/a/b/shown", f"{tmp_path}/a/c", f"{tmp_path}/d"]
    assert list(paths_without(str(tmp_path), [])) == [str(tmp_path)]


def test_python_install_includes_requirements_but_not_turnwise() -> None:
    python = find_python_install(("numpy", "sympy", "no-such-package"))
    names = {Path(entry).name for entry in python.packages}
    assert "turnwise" not in names and "torch" not in names
    if "sympy" in names:
        assert "mpmath" in names
    assert any(folder.endswith("site-packages") for folder in python.hidden)
    assert not any("turnwise" in entry for entry in (*python.packages, *python.roots))
    with pytest.raises(UserError, match="graders"):
        find_python_install(("turnwise",))


def test_python_install_preloads_packages_by_their_import_names() -> None:
    pytest.importorskip("PIL")
    assert find_python_install(("no-such-package", "pillow", "numpy")).preload == ("PIL", "numpy")


def test_zygote_config_survives_json() -> None:
    config = ZygoteConfig(
        tier="landlock",
        limits=SandboxLimits(timeout_s=3),
        python=find_python_install(()),
        host_pid=5,
        scratch="/x",
    )
    assert ZygoteConfig.from_json(config.to_json()) == config


def test_unreadable_process_raises_and_exited_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    assert (process_usage(gone), descendants(gone), proportional_bytes(gone), is_stopped(gone)) == (None, [], 0, True)
    assert not is_stopped(os.getpid())

    def fail(path: str, limit: int = 0) -> str:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("turnwise.sandbox.processes._read", fail)
    for read in (process_usage, descendants, is_stopped):
        with pytest.raises(OSError, match="too many"):
            read(os.getpid())
    assert proportional_bytes(os.getpid()) is None


def test_descendants_fallback_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    child = os.fork()
    if child == 0:
        os.fork()
        signal.pause()
        os._exit(0)
    try:
        assert wait_until(lambda: descendants(child))
        found = descendants(child)
        monkeypatch.setattr("turnwise.sandbox.processes.HAS_CHILDREN_FILES", False)
        assert len(found) == 1 and found == descendants(child)
        assert child in descendants(os.getpid()), "besides others that may come and go"
    finally:
        for pid in reversed(descendants(child)):
            os.kill(pid, 9)
        os.kill(child, 9)
        os.waitpid(child, 0)
