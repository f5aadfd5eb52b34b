"""System calls that Python has no function for, through the C library.
Each failure is a JailError that names its step.
"""

import ctypes
import os
import sys
from typing import Any

from turnwise.sandbox.errors import JailError
from turnwise.sandbox.syscall_numbers import numbers

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_NEWCGROUP = 0x02000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_KEEPCAPS = 8
PR_CAPBSET_DROP = 24
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_CLEAR_ALL = 4
LAST_CAPABILITY = 63

MOUNT_ATTR_RDONLY = 1
MOUNT_ATTR_NOSUID = 2
MOUNT_ATTR_NODEV = 4
AT_FDCWD = -100
AT_RECURSIVE = 0x8000

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("ns", ctypes.c_uint64),
    )


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def syscall(step: str, name: str, *arguments: Any) -> int:
    """A raw call by its name on this machine."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _checked(step, _library().syscall(ctypes.c_long(numbers()[name]), *words))


def unshare(step: str, flags: int) -> None:
    _checked(step, _library().unshare(flags))


def setns(step: str, descriptor: int, kind: int) -> None:
    _checked(step, _library().setns(descriptor, kind))


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, data: str = "") -> None:
    _checked(
        f"mount {kind or source} on {target}",
        _library().mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode()),
    )


def read_only(target: str, *, below: bool = False, devices: bool = False) -> None:
    """Read-only and no setuid for a mount, and with `below` for every mount below it;
    device files only with `devices`.
    """
    flags = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | (0 if devices else MOUNT_ATTR_NODEV)
    attr = _MountAttr(set=flags)
    path = ctypes.c_char_p(target.encode())
    step = f"make {target} read-only"
    depth = AT_RECURSIVE if below else 0
    syscall(step, "mount_setattr", AT_FDCWD, path, depth, ctypes.byref(attr), ctypes.sizeof(attr))


def swap_root(folder: str) -> None:
    """`folder`, a mount, becomes the root; the old root is gone from this namespace."""
    os.chdir(folder)
    here = ctypes.c_char_p(b".")
    syscall("pivot_root", "pivot_root", here, here)
    _checked("detach the old root", _library().umount2(b".", MNT_DETACH))
    os.chdir("/")


def prctl(step: str, option: int, argument: int = 0) -> None:
    words = [ctypes.c_ulong(value) for value in (argument, 0, 0, 0)]
    _checked(step, _library().prctl(option, *words))


def die_with_parent(signal_number: int) -> None:
    """Cleared by every change of user or capabilities: to be armed last."""
    prctl("arm the parent-death signal", PR_SET_PDEATHSIG, signal_number)


def drop_capabilities() -> None:
    """All of them, for good: bounding set, ambient, inheritable, permitted, effective."""
    for capability in range(LAST_CAPABILITY + 1):
        if _library().prctl(
            PR_CAPBSET_DROP, ctypes.c_ulong(capability), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
        ):
            break  # EINVAL: one past the last that this kernel knows; EPERM: nothing to drop with
    prctl_ambient = [ctypes.c_ulong(value) for value in (PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)]
    _checked("clear ambient capabilities", _library().prctl(PR_CAP_AMBIENT, *prctl_ambient))
    header = _CapHeader(version=0x20080522, pid=0)
    empty = (ctypes.c_uint32 * 6)()
    syscall("drop capabilities", "capset", ctypes.byref(header), ctypes.byref(empty))


def close_from(first: int) -> None:
    """Every descriptor from here on, however many there are."""
    syscall("close descriptors", "close_range", first, 0xFFFFFFFF, 0)


def no_new_privileges() -> None:
    prctl("set no-new-privs", PR_SET_NO_NEW_PRIVS, 1)


def _library() -> ctypes.CDLL:
    if _libc is None:
        raise JailError("this is not Linux")
    return _libc


def _checked(step: str, returned: int) -> int:
    if returned < 0:
        raise JailError(f"{step}: {os.strerror(ctypes.get_errno())}")
    return returned
