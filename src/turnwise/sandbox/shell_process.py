"""First process of a shell's session: run commands, load and save the file system. Its source is sent to the session.

Commands run in child processes, never in this one, so it can be trusted with what they left behind. They may have
replaced any file: after this module nothing more is imported, and no path is followed through a symbolic link.
"""

# Paths here are plain strings, as system calls take them; this file runs inside a session, without turnwise.
# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH112, PTH123
# ruff: noqa: PTH115, PTH208, PTH211

import base64
import io
import json
import os
import selectors
import signal
import stat
import subprocess
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress

CHUNK = 1 << 16
POLL_S = 0.005
WRAPPER = "trap 'pwd -P >&9' EXIT; eval \"$1\""
"""Runs a command, then writes the folder in which it ended to descriptor 9."""
LEVEL = 1
PAGE_BYTES = 4096
MAX_DEPTH = 64
"""Folders above a file that is saved."""
SYSTEM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "dev", "proc", "sys", "usr", "opt/python")
"""Folders that are the machine's: nothing in there is saved or loaded, except in `usr/local`."""
STARTUP_PATHS = (
    *("etc/bash.bashrc", "etc/environment", "etc/ld.so.conf", "etc/ld.so.conf.d", "etc/ld.so.preload", "etc/perl"),
    *("etc/profile", "etc/profile.d", "usr/local/lib", "usr/local/lib32", "usr/local/lib64", "usr/local/share/perl"),
)
"""Paths from which other programs load code when they start. They come from the image, never from an agent."""

archive: list[bytes] = []
"""Chunks of the archive that is being sent, in either direction."""
system_files: set[str] = set()
"""Paths of the fresh root that are not folders."""


def prepare() -> None:
    """Remember the fresh root, and import nothing from now on: the commands may replace any module."""
    os.umask(0o022)
    system_files.update(path for path, entry in walk("") if not stat.S_ISDIR(entry.st_mode))
    sys.path.clear()
    sys.meta_path.clear()


def run(command: str, *, cwd: str, env: dict[str, str], timeout_s: float, keep: int) -> str:
    """Run a command; return its exit code, the ends of its output and the folder in which it ended, as JSON."""
    places, places_end = os.pipe()
    os.dup2(places_end, 9, inheritable=True)
    os.close(places_end)
    try:
        process = subprocess.Popen(
            ["/bin/bash", "-c", WRAPPER, "bash", command],
            cwd=cwd if os.path.isdir(cwd) and os.access(cwd, os.X_OK) else "/",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(9,),
        )
    finally:
        os.close(9)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    os.set_blocking(places, False)
    try:
        head, tail, total, timed_out = _read_output(process, timeout_s, keep)
        with suppress(BlockingIOError):
            cwd = os.read(places, 4096).decode("utf-8", "replace").rstrip("\n") or cwd
    finally:
        end_processes()
        process.stdout.close()
        os.close(places)
    code = process.returncode if process.returncode is not None else -signal.SIGKILL
    texts = [base64.b64encode(part).decode() for part in (head, tail)]
    return json.dumps({"exit_code": code, "timed_out": timed_out, "cwd": cwd, "ends": texts, "total": total})


def _read_output(process: "subprocess.Popen[bytes]", timeout_s: float, keep: int) -> tuple[bytes, bytes, int, bool]:
    """Read until the shell exits: its children may hold the pipe open for ever."""
    head, tail, total = bytearray(), bytearray(), 0
    deadline = time.monotonic() + timeout_s
    assert process.stdout is not None
    exited = timed_out = False
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ready = selector.select(0 if exited else POLL_S)
            data = b""
            if ready:
                with suppress(BlockingIOError):
                    data = os.read(process.stdout.fileno(), CHUNK)
                if not data:
                    selector.unregister(process.stdout)  # everyone has closed it
            total += len(data)
            head += data[: keep - len(head)]
            tail = (tail + data)[-keep:]
            if exited and not data:
                return bytes(head), bytes(tail), total, timed_out
            if not exited and (process.poll() is not None or time.monotonic() > deadline):
                timed_out = process.returncode is None
                end_processes(process)
                exited = True


def end_processes(shell: "subprocess.Popen[bytes] | None" = None) -> None:
    """Kill and reap every other process: this is the first one of its namespace."""
    if shell is not None and shell.returncode is None:
        shell.kill()
        shell.wait()
    while True:
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def walk(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the paths below `folder` that are in the session's own file system, relative to the root, in order."""
    try:
        names = sorted(os.listdir(f"/{folder}"))
    except OSError:
        return
    device = os.lstat("/").st_dev
    for name in names:
        path = f"{folder}/{name}" if folder else name
        try:
            entry = os.lstat(f"/{path}")
        except OSError:
            continue
        if entry.st_dev == device:
            yield path, entry
            if stat.S_ISDIR(entry.st_mode):
                with suppress(OSError):  # a folder that its owner has closed
                    if entry.st_mode & stat.S_IRWXU != stat.S_IRWXU:
                        os.chmod(f"/{path}", stat.S_IRWXU)
                yield from walk(path)


def is_system(path: str) -> bool:
    if path in system_files:
        return True
    return _is_below(path, SYSTEM_FOLDERS) and not _is_below(path, ("usr/local",))


def _is_below(path: str, folders: "tuple[str, ...] | list[str]") -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


class _Compressor(io.RawIOBase):
    def __init__(self) -> None:
        self.stream = zlib.compressobj(LEVEL)

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        archive.append(self.stream.compress(data))
        return len(data)

    def finish(self) -> None:
        archive.append(self.stream.flush())


def save(*, max_bytes: int, max_files: int, without: list[str]) -> str:
    """Archive the file system for `read_chunk`; return the archive's length, or why it is too large, as JSON."""
    archive.clear()
    size = count = 0
    out = _Compressor()
    with tarfile.open(fileobj=out, mode="w|", format=tarfile.PAX_FORMAT) as tar:
        for path, entry in walk(""):
            if is_system(path) or _is_below(path, STARTUP_PATHS) or _is_below(path, without):
                continue
            size, count = size + -(-entry.st_size // PAGE_BYTES) * PAGE_BYTES, count + 1
            if path.count("/") > MAX_DEPTH:
                return json.dumps({"problem": f"its folders are nested deeper than {MAX_DEPTH}"})
            if size > max_bytes:
                return json.dumps({"problem": f"its files have more than {max_bytes >> 20} MiB"})
            if count > max_files:
                return json.dumps({"problem": f"it has more than {max_files} files"})
            _add(tar, path, entry)
    out.finish()
    archive[:] = [b"".join(archive)]
    return json.dumps({"bytes": len(archive[0])})


def _add(tar: tarfile.TarFile, path: str, entry: os.stat_result) -> None:
    info = tarfile.TarInfo(path)
    info.mode, info.mtime = stat.S_IMODE(entry.st_mode), int(entry.st_mtime)
    if stat.S_ISDIR(entry.st_mode):
        info.type = tarfile.DIRTYPE
        tar.addfile(info)
    elif stat.S_ISLNK(entry.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(f"/{path}")
        tar.addfile(info)
    elif stat.S_ISREG(entry.st_mode):
        if not entry.st_mode & stat.S_IRUSR:
            os.chmod(f"/{path}", stat.S_IRUSR)
        info.size = entry.st_size
        with open(f"/{path}", "rb") as file:  # nothing else runs: it is the file that `walk` has seen
            tar.addfile(info, file)


def read_file(path: str, max_bytes: int) -> bytes | None:
    """Return the start of a file; None unless it is a regular file, reached through no link."""
    if not _parents_are_folders(path):
        return None
    try:
        descriptor = os.open(f"/{path}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(max_bytes)
    finally:
        os.close(descriptor)


def read_text(path: str, max_bytes: int) -> str:
    data = read_file(path, max_bytes)
    return json.dumps(None if data is None else base64.b64encode(data).decode())


def read_chunk(start: int, size: int) -> str:
    return base64.b64encode(archive[0][start : start + size]).decode()


def receive_chunk(text: str) -> None:
    archive.append(base64.b64decode(text))


class _Decompressor(io.RawIOBase):
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stream = zlib.decompressobj()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        result = self.stream.decompress(self.data, max(0, size))
        self.data = self.stream.unconsumed_tail
        return result


def load(origin: str) -> None:
    """Write the received archive into the file system, except what belongs to the machine.

    `origin`: "image"; "agent", of which the startup paths are left out; "startup", an image's startup paths alone.
    """
    data = b"".join(archive)
    archive.clear()
    folders: list[tuple[str, int]] = []
    with tarfile.open(fileobj=_Decompressor(data), mode="r|") as tar:
        for info in tar:
            path = os.path.normpath(info.name)
            if path.startswith(("/", "..")) or path == "." or is_system(path):
                continue
            if origin != "image" and _is_below(path, STARTUP_PATHS) != (origin == "startup"):
                continue
            if not _make_parents(path):
                continue
            _write(tar, info, path)
            if info.isdir():
                folders.append((path, info.mode))
    for path, mode in reversed(folders):
        os.chmod(f"/{path}", mode)


def _write(tar: tarfile.TarFile, info: tarfile.TarInfo, path: str) -> None:
    target = f"/{path}"
    if info.isdir():
        if not _is_folder(path):
            remove(path)
            os.mkdir(target, 0o755)
        return
    remove(path)
    if info.issym():
        os.symlink(info.linkname, target)
    elif info.isreg():
        source = tar.extractfile(info)
        assert source is not None
        with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
            while data := source.read(CHUNK):
                file.write(data)
            os.fchmod(file.fileno(), info.mode & 0o7777)
        os.utime(target, (info.mtime, info.mtime), follow_symlinks=False)


def _is_folder(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(f"/{path}").st_mode)
    except OSError:
        return False


def _parents_are_folders(path: str) -> bool:
    parts = path.split("/")[:-1]
    return all(_is_folder("/".join(parts[: end + 1])) for end in range(len(parts)))


def _make_parents(path: str) -> bool:
    """Make the folders above a path; False if one of them is something else, such as a link."""
    parts = path.split("/")[:-1]
    for end in range(len(parts)):
        parent = "/".join(parts[: end + 1])
        if not os.path.lexists(f"/{parent}"):
            os.mkdir(f"/{parent}", 0o755)
        elif not _is_folder(parent):
            return False
    return True


def remove(path: str) -> None:
    """Remove a file, a link, or a folder with all that is in it; nothing if there is none."""
    if not _is_folder(path):
        with suppress(FileNotFoundError):
            os.unlink(f"/{path}")
        return
    with suppress(OSError):
        os.chmod(f"/{path}", 0o700)
    for name in os.listdir(f"/{path}"):
        remove(f"{path}/{name}")
    os.rmdir(f"/{path}")
