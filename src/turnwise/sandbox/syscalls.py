"""System calls without a Python function, made through the C library, and their numbers.

A call that fails raises JailError with the step that failed. The numbers cover the calls that the jails make or allow,
on two architectures; other machines have no sandbox, since a filter with wrong numbers protects nothing.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from typing import Any


def _table(text: str) -> Mapping[str, int]:
    pairs = (entry.split("=") for entry in text.split())
    return {name: int(number) for name, number in pairs}


X86_64 = _table(
    """
    setxattr=188 lsetxattr=189 fsetxattr=190 getxattr=191 lgetxattr=192 fgetxattr=193 listxattr=194
    llistxattr=195 flistxattr=196 removexattr=197 lremovexattr=198 fremovexattr=199
    access=21 alarm=37 arch_prctl=158 brk=12 capget=125 capset=126 chdir=80 chmod=90 clock_getres=229
    clock_gettime=228 clock_nanosleep=230 clone=56 clone3=435 close=3 close_range=436 copy_file_range=326
    creat=85 dup=32 dup2=33 dup3=292 epoll_create=213 epoll_create1=291 epoll_ctl=233 epoll_pwait=281
    epoll_pwait2=441 epoll_wait=232 eventfd=284 eventfd2=290 execve=59 exit=60 exit_group=231 faccessat=269
    faccessat2=439 fadvise64=221 fallocate=285 fchdir=81 fchmod=91 fchmodat=268 fchmodat2=452 fcntl=72
    fdatasync=75 flock=73 fork=57 fstat=5 fstatfs=138 fsync=74 ftruncate=77 futex=202 futex_waitv=449
    futimesat=261 getcpu=309 getcwd=79 getdents=78 getdents64=217 getegid=108 geteuid=107 getgid=104
    getgroups=115 getitimer=36 getpeername=52 getpgid=121 getpgrp=111 getpid=39 getppid=110 getpriority=140
    getrandom=318 getresgid=120 getresuid=118 getrlimit=97 getrusage=98 getsid=124 getsockname=51 getsockopt=55
    gettid=186 gettimeofday=96 getuid=102 ioctl=16 kill=62 landlock_add_rule=445 landlock_create_ruleset=444
    landlock_restrict_self=446 link=86 linkat=265 lseek=8 lstat=6 madvise=28 membarrier=324 mincore=27 mkdir=83
    mkdirat=258 mknod=133 mknodat=259 mmap=9 mount_setattr=442 mprotect=10 mremap=25 msync=26 munmap=11
    nanosleep=35 newfstatat=262 open=2 openat=257 pause=34 pipe=22 pipe2=293 pivot_root=155 poll=7 ppoll=271
    prctl=157 pread64=17 preadv=295 preadv2=327 prlimit64=302 pselect6=270 pwrite64=18 pwritev=296 pwritev2=328
    read=0 readahead=187 readlink=89 readlinkat=267 readv=19 recvfrom=45 recvmsg=47 rename=82 renameat=264
    renameat2=316 restart_syscall=219 rmdir=84 rseq=334 rt_sigaction=13 rt_sigpending=127 rt_sigprocmask=14
    rt_sigreturn=15 rt_sigsuspend=130 rt_sigtimedwait=128 sched_get_priority_max=146 sched_get_priority_min=147
    sched_getaffinity=204 sched_getparam=143 sched_getscheduler=145 sched_yield=24 seccomp=317 select=23
    sendfile=40 sendmsg=46 sendto=44 set_robust_list=273 set_tid_address=218 setitimer=38 setpgid=109 setsid=112
    shutdown=48 sigaltstack=131 signalfd=282 signalfd4=289 socketpair=53 stat=4 statfs=137 statx=332 symlink=88
    symlinkat=266 sysinfo=99 tgkill=234 time=201 timer_create=222 timer_delete=226 timer_getoverrun=225
    timer_gettime=224 timer_settime=223 timerfd_create=283 timerfd_gettime=287 timerfd_settime=286 times=100
    accept=43 accept4=288 bind=49 connect=42 inotify_add_watch=254 inotify_init=253 inotify_init1=294
    inotify_rm_watch=255 listen=50 pidfd_open=434 recvmmsg=299 sched_setaffinity=203 sendmmsg=307 setpriority=141
    setsockopt=54 socket=41
    tkill=200 truncate=76 umask=95 uname=63 unlink=87 unlinkat=263 unshare=272 utime=132 utimensat=280
    utimes=235 vfork=58 wait4=61 waitid=247 write=1 writev=20
    """
)

AARCH64 = _table(
    """
    setxattr=5 lsetxattr=6 fsetxattr=7 getxattr=8 lgetxattr=9 fgetxattr=10 listxattr=11 llistxattr=12
    flistxattr=13 removexattr=14 lremovexattr=15 fremovexattr=16
    brk=214 capget=90 capset=91 chdir=49 clock_getres=114 clock_gettime=113 clock_nanosleep=115 clone=220
    clone3=435 close=57 close_range=436 copy_file_range=285 dup=23 dup3=24 epoll_create1=20 epoll_ctl=21
    epoll_pwait=22 epoll_pwait2=441 eventfd2=19 execve=221 exit=93 exit_group=94 faccessat=48 faccessat2=439
    fadvise64=223 fallocate=47 fchdir=50 fchmod=52 fchmodat=53 fchmodat2=452 fcntl=25 fdatasync=83 flock=32
    fstat=80 fstatfs=44 fsync=82 ftruncate=46 futex=98 futex_waitv=449 getcpu=168 getcwd=17 getdents64=61
    getegid=177 geteuid=175 getgid=176 getgroups=158 getitimer=102 getpeername=205 getpgid=155 getpid=172
    getppid=173 getpriority=141 getrandom=278 getresgid=150 getresuid=148 getrlimit=163 getrusage=165 getsid=156
    getsockname=204 getsockopt=209 gettid=178 gettimeofday=169 getuid=174 ioctl=29 kill=129
    landlock_add_rule=445 landlock_create_ruleset=444 landlock_restrict_self=446 linkat=37 lseek=62 madvise=233
    membarrier=283 mincore=232 mkdirat=34 mknodat=33 mmap=222 mount_setattr=442 mprotect=226 mremap=216
    msync=227 munmap=215 nanosleep=101 newfstatat=79 openat=56 pipe2=59 pivot_root=41 ppoll=73 prctl=167
    pread64=67 preadv=69 preadv2=286 prlimit64=261 pselect6=72 pwrite64=68 pwritev=70 pwritev2=287 read=63
    readahead=213 readlinkat=78 readv=65 recvfrom=207 recvmsg=212 renameat=38 renameat2=276 restart_syscall=128
    rseq=293 rt_sigaction=134 rt_sigpending=136 rt_sigprocmask=135 rt_sigreturn=139 rt_sigsuspend=133
    rt_sigtimedwait=137 sched_get_priority_max=125 sched_get_priority_min=126 sched_getaffinity=123
    sched_getparam=121 sched_getscheduler=120 sched_yield=124 seccomp=277 sendfile=71 sendmsg=211 sendto=206
    set_robust_list=99 set_tid_address=96 setitimer=103 setpgid=154 setsid=157 shutdown=210 sigaltstack=132
    signalfd4=74 socketpair=199 statfs=43 statx=291 symlinkat=36 sysinfo=179 tgkill=131 timer_create=107
    timer_delete=111 timer_getoverrun=109 timer_gettime=108 timer_settime=110 timerfd_create=85
    accept=202 accept4=242 bind=200 connect=203 inotify_add_watch=27 inotify_init1=26 inotify_rm_watch=28 listen=201
    pidfd_open=434 recvmmsg=243 sched_setaffinity=122 sendmmsg=269 setpriority=140 setsockopt=208 socket=198
    timerfd_gettime=87 timerfd_settime=86 times=153 tkill=130 truncate=45 umask=166 uname=160 unlinkat=35
    unshare=97 utimensat=88 wait4=260 waitid=95 write=64 writev=66
    """
)

MACHINES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "x86_64": (0xC000003E, X86_64),
    "aarch64": (0xC00000B7, AARCH64),
}
"""Machine -> (AUDIT_ARCH word, by which a filter detects calls of another architecture; syscall numbers)."""


def is_supported_machine() -> bool:
    return platform.machine() in MACHINES


def audit_arch() -> int:
    return MACHINES[platform.machine()][0]


def syscall_numbers() -> Mapping[str, int]:
    """Return name -> number on this machine, without calls that the architecture lacks."""
    return MACHINES[platform.machine()][1]


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
MS_NOEXEC = 8
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


class JailError(Exception):
    """The kernel refused a step of building a jail. The message names the step and the reason."""


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
    """Make a raw system call by name. `step` describes it in errors."""
    words = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return _check(step, _library().syscall(ctypes.c_long(syscall_numbers()[name]), *words))


def unshare(step: str, flags: int) -> None:
    _check(step, _library().unshare(flags))


def setns(step: str, descriptor: int, namespace: int) -> None:
    _check(step, _library().setns(descriptor, namespace))


def mount(source: str, target: str, *, filesystem: str = "", flags: int = 0, data: str = "") -> None:
    _check(
        f"mount {filesystem or source} on {target}",
        _library().mount(
            source.encode(), target.encode(), filesystem.encode() or None, ctypes.c_ulong(flags), data.encode()
        ),
    )


def make_read_only(target: str, *, below: bool = False, devices: bool = False) -> None:
    """Make a mount read-only and nosuid; with `below`, every mount below it too. `devices` allows device files."""
    flags = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | (0 if devices else MOUNT_ATTR_NODEV)
    attr = _MountAttr(set=flags)
    path = ctypes.c_char_p(target.encode())
    step = f"make {target} read-only"
    depth = AT_RECURSIVE if below else 0
    syscall(step, "mount_setattr", AT_FDCWD, path, depth, ctypes.byref(attr), ctypes.sizeof(attr))


def pivot_root(folder: str) -> None:
    """Make the mount at `folder` the root and detach the old root."""
    os.chdir(folder)
    here = ctypes.c_char_p(b".")
    syscall("pivot_root", "pivot_root", here, here)
    _check("detach the old root", _library().umount2(b".", MNT_DETACH))
    os.chdir("/")


def prctl(step: str, option: int, argument: int = 0) -> None:
    words = [ctypes.c_ulong(value) for value in (argument, 0, 0, 0)]
    _check(step, _library().prctl(option, *words))


def die_with_parent(signal_number: int) -> None:
    """Send this process a signal when its parent dies. Call it last: changing user or capabilities clears it."""
    prctl("arm the parent-death signal", PR_SET_PDEATHSIG, signal_number)


def drop_capabilities() -> None:
    """Drop all capabilities for good: bounding, ambient, inheritable, permitted and effective sets."""
    for capability in range(LAST_CAPABILITY + 1):
        if _library().prctl(
            PR_CAPBSET_DROP, ctypes.c_ulong(capability), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
        ):
            break  # EINVAL: past the last capability of this kernel; EPERM: no capability to drop with
    words = [ctypes.c_ulong(value) for value in (PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)]
    _check("clear ambient capabilities", _library().prctl(PR_CAP_AMBIENT, *words))
    header = _CapHeader(version=0x20080522, pid=0)
    empty = (ctypes.c_uint32 * 6)()
    syscall("drop capabilities", "capset", ctypes.byref(header), ctypes.byref(empty))


def close_descriptors_from(first: int) -> None:
    """Close all descriptors from `first` on."""
    syscall("close descriptors", "close_range", first, 0xFFFFFFFF, 0)


def set_no_new_privileges() -> None:
    prctl("set no-new-privs", PR_SET_NO_NEW_PRIVS, 1)


def _library() -> ctypes.CDLL:
    if _libc is None:
        raise JailError("the sandbox needs Linux")
    return _libc


def _check(step: str, returned: int) -> int:
    if returned < 0:
        raise JailError(f"{step}: {os.strerror(ctypes.get_errno())}")
    return returned
