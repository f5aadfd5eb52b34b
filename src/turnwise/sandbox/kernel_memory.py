"""Memory that the kernel holds for a session and that no process's size shows: full sockets and pipes, and the lists of
mappings. One process cannot have much of it; thirty together can have a thousand times their own size.
"""

# Paths are the kernel's here: plain strings beside descriptors.
# ruff: noqa: PTH115, PTH116, PTH208

import os
import socket
from collections.abc import Sequence

from turnwise.sandbox.process_tree import unless_ending

FEW_DESCRIPTORS = 64
"""Of all processes together: what they hold is not worth a look at each."""
PIPE_BYTES = 1 << 16
PIECE = 1 << 16


def socket_bytes() -> int:
    """The most that one end of a pair holds on this machine; the last message may go half beyond its buffer. No session
    can set a larger one.
    """
    ends = socket.socketpair()
    try:
        return ends[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) * 3 // 2
    finally:
        for end in ends:
            end.close()


def buffer_bytes(pids: Sequence[int], each_socket: int) -> int:
    """The most that sockets and pipes of these processes hold; one that several have counts once."""
    if sum(map(_number_of_descriptors, pids)) <= FEW_DESCRIPTORS:
        return 0
    kinds = [name.partition(":")[0] for name in set().union(*map(_descriptors, pids))]
    return kinds.count("socket") * each_socket + kinds.count("pipe") * PIPE_BYTES


def number_of_mappings(pids: Sequence[int], most: int) -> int:
    """Of all together, counted up to a little over `most`: a long list takes long to be read."""
    count = 0
    for pid in pids:
        with unless_ending(pid):
            descriptor = os.open(f"/proc/{pid}/maps", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while count <= most and (piece := os.read(descriptor, PIECE)):
                    count += piece.count(b"\n")
            finally:
                os.close(descriptor)
    return count


def _number_of_descriptors(pid: int) -> int:
    """Since Linux 6.2 it is the size of their folder; before, that is 0."""
    with unless_ending(pid):
        return os.stat(f"/proc/{pid}/fd").st_size or len(_names(pid))
    return 0


def _descriptors(pid: int) -> set[str]:
    """What they are, such as socket:[8123]."""
    found: set[str] = set()
    for name in _names(pid):
        with unless_ending(pid):
            found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _names(pid: int) -> list[str]:
    """None of a process that is ending."""
    with unless_ending(pid):
        return os.listdir(f"/proc/{pid}/fd")
    return []
