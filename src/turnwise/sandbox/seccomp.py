"""Seccomp filters: a small compiler from rules to BPF, and the rules of the two isolation tiers.

A filter is a BPF program over a call's (number, architecture, arguments). Ours kills calls of other architectures, then
checks one rule per call, and refuses every call without a rule: the rules are an allow-list.

Both tiers allow files (the jail decides which), memory, time, waiting, and connected socket pairs, which asyncio needs.
Neither allows `socket`, so no socket family at all; `memfd`, whose memory is not counted; keys, io_uring, namespaces or
other processes' limits. Nothing may send SIGCONT, `timer_create` included: the host stops a session between calls, and
only the host resumes it.
"""

import ctypes
import errno
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turnwise.sandbox.syscalls import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    audit_arch,
    syscall,
    syscall_numbers,
)

SECCOMP_SET_MODE_FILTER = 1
KILL = 0x80000000
ALLOW = 0x7FFF0000
ERRNO = 0x00050000
X32_BIT = 0x40000000
FIRST_NEW_CALL = 424
"""C libraries have fallbacks for calls from this number on, which they take after ENOSYS."""

_LOAD = 0x20
_AND = 0x54
_RETURN = 0x06
_IF_EQUAL = 0x15
_IF_AT_LEAST = 0x35
_NUMBER_AT = 0
_ARCH_AT = 4
_ARGUMENTS_AT = 16


def fail_with(code: int) -> int:
    """Return the action that makes a call fail with errno `code`; 0 pretends success."""
    return ERRNO | code


@dataclass(frozen=True, kw_only=True, slots=True)
class ArgumentTest:
    """Passes if `argument & mask` is one of `values`. Only the low 32 bits: these arguments are C ints."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    negated: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SyscallRule:
    """Action for one call: `action` if all tests pass, else `otherwise`."""

    name: str
    tests: tuple[ArgumentTest, ...] = ()
    action: int = ALLOW
    otherwise: int = ERRNO | errno.EPERM


def compile_filter(rules: Sequence[SyscallRule], *, default: int = ERRNO | errno.EPERM) -> bytes:
    """Compile rules to BPF instructions. Rules for calls that this architecture lacks are skipped."""
    known: Mapping[str, int] = syscall_numbers()
    code = [
        _instruction(_LOAD, _ARCH_AT),
        _instruction(_IF_EQUAL, audit_arch(), yes=1),
        _instruction(_RETURN, KILL),
        _instruction(_LOAD, _NUMBER_AT),
        _instruction(_IF_AT_LEAST, X32_BIT, no=1),
        _instruction(_RETURN, KILL),
    ]
    for rule in rules:
        if rule.name in known:
            code += _rule(known[rule.name], rule)
    new = default if default == ALLOW else ERRNO | errno.ENOSYS
    code += [
        _instruction(_IF_AT_LEAST, FIRST_NEW_CALL, no=1),
        _instruction(_RETURN, new),
        _instruction(_RETURN, default),
    ]
    return b"".join(code)


def install_filter(filter_program: bytes) -> None:
    """Install a filter for this thread and its descendants, for good. Requires no-new-privs."""
    count = len(filter_program) // 8
    buffer = ctypes.create_string_buffer(filter_program, len(filter_program))
    header = struct.pack("HxxxxxxQ", count, ctypes.addressof(buffer))
    syscall("install the seccomp filter", "seccomp", SECCOMP_SET_MODE_FILTER, 0, ctypes.c_char_p(header))


def _rule(number: int, rule: SyscallRule) -> list[bytes]:
    if not rule.tests:
        return [_instruction(_IF_EQUAL, number, no=1), _instruction(_RETURN, rule.action)]
    body: list[bytes] = []
    for test in rule.tests:
        body += _test(test, rule.otherwise)
    body.append(_instruction(_RETURN, rule.action))
    return [_instruction(_IF_EQUAL, number, no=len(body)), *body]


def _test(test: ArgumentTest, otherwise: int) -> list[bytes]:
    """Compile one test: fall through if it passes, return `otherwise` if not.

    [load] [and] v1? v2? ... [return otherwise]: a match jumps past the return; if negated, onto it.
    """
    code = [_instruction(_LOAD, _ARGUMENTS_AT + 8 * test.argument), _instruction(_AND, test.mask)]
    count = len(test.values)
    for index, value in enumerate(test.values):
        to_return = count - index - 1
        last = index == count - 1
        if test.negated:
            code.append(_instruction(_IF_EQUAL, value, yes=to_return, no=1 if last else 0))
        else:
            code.append(_instruction(_IF_EQUAL, value, yes=to_return + 1))
    code.append(_instruction(_RETURN, otherwise))
    return code


def _instruction(code: int, operand: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("HBBI", code, yes, no, operand)


FILES = """
    read write close lseek pread64 pwrite64 readv writev preadv pwritev preadv2 pwritev2 open openat creat access
    faccessat faccessat2 stat lstat fstat newfstatat statx statfs fstatfs readlink readlinkat getcwd chdir fchdir
    getdents getdents64 dup dup2 dup3 close_range pipe pipe2 rename renameat renameat2 mkdir mkdirat rmdir unlink
    unlinkat link linkat symlink symlinkat umask ftruncate fsync fdatasync fadvise64 flock sendfile
    copy_file_range mknod mknodat
"""
MEMORY = "munmap mprotect mremap brk madvise msync mincore membarrier rseq"
TIME = """
    nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getitimer setitimer alarm
    timerfd_create timerfd_settime timerfd_gettime
"""
WAITING = """
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd
    eventfd2 futex futex_waitv pause restart_syscall
"""
SIGNALS = """
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigsuspend rt_sigtimedwait sigaltstack signalfd
    signalfd4
"""
OWN_PROCESS = """
    getpid getppid gettid getuid geteuid getgid getegid getresuid getresgid getgroups getpgid getpgrp getsid
    getrusage getrlimit getpriority capget uname sysinfo getcpu getrandom sched_yield sched_getaffinity
    sched_getparam sched_getscheduler sched_get_priority_max sched_get_priority_min set_tid_address set_robust_list
    arch_prctl exit exit_group
"""
SOCKET_PAIRS = "shutdown getsockname getpeername getsockopt"
AGENTS = """
    connect bind listen accept accept4 setsockopt sendmmsg recvmmsg inotify_init inotify_init1 inotify_add_watch
    inotify_rm_watch setpriority sched_setaffinity pidfd_open
"""
"""Calls that programs of agents make besides."""
PROCESSES = "fork vfork execve wait4 waitid setpgid setsid"
METADATA = "chmod fchmod fchmodat fchmodat2 utime utimes utimensat futimesat"
ATTRIBUTES = """
    setxattr lsetxattr fsetxattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr removexattr lremovexattr
    fremovexattr
"""

NAMESPACES = CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
CLONE_THREAD_AND_MEMORY = 0x00010000 | 0x00000100
AF_UNIX = 1
AF_INET = 2
AF_INET6 = 10
SOCK_STREAM = 1
SOCK_DGRAM = 2
SOCK_TYPE_MASK = 0xF
RLIMIT_CORE = 4
SIGCONT = 18
MSG_OOB = 1
MAP_FLAGS_MASK = 0xF | 0x20 | 0x40000
"""Flags of `mmap` that matter: shared or private, anonymous, huge pages."""
MAPPINGS = (0x1, 0x2, 0x3, 0x22)
"""Allowed mappings: files and private memory. Shared anonymous memory survives munmap uncounted; no resident size
includes huge pages.
"""
FCNTL = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
"""Duplicates, flags, locks, pipe sizes. Not F_SETOWN and F_SETSIG, which signal others, nor F_SETPIPE_SZ."""
IOCTL = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""isatty, window size, bytes waiting, non-blocking, close on exec. Not SIOCSPGRP, nor device-specific calls."""
PRCTL = (3, 15, 16, 23, 0x53564D41)
"""Read dumpable, thread names, read capabilities, names of mappings. Not the parent-death signal, nor clearing
dumpable, which would hide the process from the watchdog.
"""


def _allow_without_flag(name: str, *, argument: int, bit: int) -> SyscallRule:
    return SyscallRule(name=name, tests=(ArgumentTest(argument=argument, values=(0,), mask=bit),))


COMMON = (
    SyscallRule(name="clone3", action=fail_with(errno.ENOSYS)),  # its flags are in memory, which a filter cannot read
    # shutil handles ENOTSUP
    *(SyscallRule(name=name, action=fail_with(errno.ENOTSUP)) for name in ATTRIBUTES.split()),
    SyscallRule(name="prctl", tests=(ArgumentTest(argument=0, values=PRCTL),)),
    SyscallRule(name="fcntl", tests=(ArgumentTest(argument=1, values=FCNTL),), otherwise=fail_with(errno.EPERM)),
    SyscallRule(name="mmap", tests=(ArgumentTest(argument=3, values=MAPPINGS, mask=MAP_FLAGS_MASK),)),
    SyscallRule(name="ioctl", tests=(ArgumentTest(argument=1, values=IOCTL),), otherwise=fail_with(errno.ENOTTY)),
    # a datagram pair could send to any address
    SyscallRule(
        name="socketpair",
        tests=(
            ArgumentTest(argument=0, values=(AF_UNIX,)),
            ArgumentTest(argument=1, values=(SOCK_STREAM,), mask=SOCK_TYPE_MASK),
        ),
    ),
    *(
        _allow_without_flag(name, argument=argument, bit=MSG_OOB)
        for name, argument in (("sendto", 3), ("recvfrom", 3), ("recvmsg", 2))
    ),
    # its own limits, except whether it leaves a core file
    SyscallRule(
        name="prlimit64",
        tests=(ArgumentTest(argument=0, values=(0,)), ArgumentTest(argument=1, values=(RLIMIT_CORE,), negated=True)),
    ),
)


def _not_sigcont(argument: int) -> ArgumentTest:
    return ArgumentTest(argument=argument, values=(SIGCONT,), negated=True)


def allow_calls(*groups: str) -> tuple[SyscallRule, ...]:
    return tuple(SyscallRule(name=name) for group in groups for name in group.split())


def namespaces_rules() -> tuple[SyscallRule, ...]:
    """Return the rules of the namespaces tier. Processes, signals and metadata are free: all in there is its own."""
    no_namespace = SyscallRule(name="clone", tests=(ArgumentTest(argument=0, values=(0,), mask=NAMESPACES),))
    sendmsg = _allow_without_flag("sendmsg", argument=2, bit=MSG_OOB)
    signals = tuple(
        SyscallRule(name=name, tests=(_not_sigcont(argument),))
        for name, argument in (("kill", 1), ("tkill", 1), ("tgkill", 2))
    )
    common = allow_calls(
        FILES, MEMORY, TIME, WAITING, SIGNALS, OWN_PROCESS, SOCKET_PAIRS, PROCESSES, METADATA, "truncate fallocate"
    )
    return (*COMMON, no_namespace, sendmsg, *signals, *common)


def agent_rules() -> tuple[SyscallRule, ...]:
    """Return the rules of sessions with `AgentAccess`: also sockets, and what runtimes of programs expect to succeed.

    Its first process is not trusted afterwards. No packets, netlink, namespaces or tracing.
    """
    families = ArgumentTest(argument=0, values=(AF_UNIX, AF_INET, AF_INET6))
    types = ArgumentTest(argument=1, values=(SOCK_STREAM, SOCK_DGRAM), mask=SOCK_TYPE_MASK)
    sockets = tuple(
        SyscallRule(name=name, tests=tests, otherwise=fail_with(errno.EAFNOSUPPORT))
        for name, tests in (("socket", (families, types)), ("socketpair", (types,)))
    )
    pretended = (
        SyscallRule(name="prctl", tests=(ArgumentTest(argument=0, values=(*PRCTL, 1)),), otherwise=fail_with(0)),
        SyscallRule(
            name="prlimit64",
            tests=(ArgumentTest(argument=1, values=(RLIMIT_CORE,), negated=True),),
            otherwise=fail_with(0),
        ),
    )
    replaced = (*sockets, *pretended, *allow_calls(AGENTS))
    names = {rule.name for rule in replaced}
    return (*replaced, *(rule for rule in namespaces_rules() if rule.name not in names))


def landlock_rules(pid: int) -> tuple[SyscallRule, ...]:
    """Return the rules of the Landlock tier, for the process `pid`.

    Threads but no further process; signals only to itself; operations that Landlock does not mediate are refused or
    faked. No `fallocate`: it fills a disk faster than the watchdog looks.
    """
    threads = SyscallRule(
        name="clone", tests=(ArgumentTest(argument=0, values=(CLONE_THREAD_AND_MEMORY,), mask=CLONE_THREAD_AND_MEMORY),)
    )
    own_signals = tuple(
        SyscallRule(name=name, tests=(ArgumentTest(argument=0, values=(pid,)), _not_sigcont(argument)))
        for name, argument in (("kill", 1), ("tgkill", 2))
    )
    no_fallocate = SyscallRule(name="fallocate", action=fail_with(errno.EOPNOTSUPP))
    faked = tuple(SyscallRule(name=name, action=fail_with(0)) for name in METADATA.split())
    no_children = tuple(SyscallRule(name=name, action=fail_with(errno.ECHILD)) for name in ("wait4", "waitid"))
    common = allow_calls(FILES, MEMORY, TIME, WAITING, SIGNALS, OWN_PROCESS, SOCKET_PAIRS)
    return (*COMMON, threads, *own_signals, no_fallocate, *faked, *no_children, *common)
