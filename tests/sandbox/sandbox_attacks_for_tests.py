"""Attacks on files, sockets, processes and the kernel. Each runs in every tier, as root and as another user."""

# The attacks are data, and some of their lines are long.
# ruff: noqa: E501

from sandbox_canaries_for_tests import Attack, attack

TRIES = """
import os, sys, ctypes, socket, signal, errno
libc = ctypes.CDLL(None, use_errno=True)
def attempt(action, *arguments):
    "Return whether it worked; print the result."
    try:
        result = action(*arguments)
    except (OSError, ValueError, AttributeError, OverflowError):
        return False
    print(result)
    return True
def must_fail(*actions):
    worked = [index for index, action in enumerate(actions) if attempt(action)]
    print("BROKEN " + repr(worked) if worked else "held")
def call(*words):
    result = libc.syscall(*[ctypes.c_long(word) if isinstance(word, int) else word for word in words])
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result
"""


def tries(*lines: str) -> str:
    """Return code whose every line is an action that must fail."""
    return TRIES + "must_fail(\n" + "".join(f"    lambda: {line},\n" for line in lines) + ")\n"


FILES = (
    attack(
        "read files of the host",
        tries(
            "open('$FILE').read()",
            "open('$SOURCE').read()",
            "open('/etc/passwd').read()",
            "open('/etc/shadow').read()",
            "open('/proc/self/environ').read()",
            "open('/proc/$HOST/environ').read()",
            "open('/proc/$VICTIM/cmdline').read()",
            "open('/proc/1/environ').read()",
            "open('/proc/$HOST/mem', 'rb').read(1)",
            "open('/proc/self/mem', 'rb').read(1)",
            "open('/proc/1/root$FILE').read()",
            "open('/proc/$HOST/root$FILE').read()",
            "open('/proc/$HOST/cwd/pyproject.toml').read()",
            "open('../../../../../../../..$FILE').read()",
            "os.listdir('$FOLDER')",
            "os.listdir('/proc')",
            "os.listdir('/sys')",
            "os.listdir('/home')",
            "os.listdir(os.path.dirname('$SOURCE'))",
            "os.open('$FOLDER', os.O_RDONLY | os.O_DIRECTORY)",
            "open('/dev/mem', 'rb').read(1)",
            "open('/dev/kmsg', 'rb').read(1)",
            "open('/dev/tty').read(1)",
        ),
    ),
    attack(
        "read through links",
        TRIES
        + """
def by_symlink():
    os.symlink('$FILE', 'link'); return open('link').read()
def by_hard_link():
    os.link('$FILE', 'hard'); return open('hard').read()
def by_rename():
    os.rename('$FILE', 'mine'); return open('mine').read()
def by_folder_link():
    os.symlink('/', 'root'); return open('root$FILE').read()
def by_descriptor():
    folder = os.open('/', os.O_PATH); return os.open('$FILE'[1:], os.O_RDONLY, dir_fd=folder)
def by_path_descriptor():
    path = os.open('$FILE', os.O_PATH); return os.read(path, 100)
must_fail(by_symlink, by_hard_link, by_rename, by_folder_link, by_descriptor, by_path_descriptor)
""",
    ),
    attack(
        "read what the host had in its environment",
        r"""
import os, re, ctypes
found = [name for name in os.environ if 'SECRET' in name or '$MARK' in os.environ[name]]
environ = ctypes.c_void_p.in_dll(ctypes.CDLL(None), 'environ').value
here = ctypes.addressof(ctypes.c_char.from_address(environ))
text = ctypes.string_at(ctypes.c_char_p.from_address(here).value and ctypes.c_void_p.from_address(here).value, 600)
print(found, re.findall(rb'$MARK\w+', text), text[:60])
""",
    ),
    attack(
        "read packages that contain graders",
        TRIES
        + """
import importlib
def by_import(name):
    return lambda: importlib.import_module(name).__file__
def guarded(action):
    def inner():
        try:
            return action()
        except ImportError:
            raise OSError
    return inner
must_fail(*(guarded(by_import(name)) for name in ('turnwise.envs.registry', 'turnwise.core.task', 'pytest', 'torch', 'pydantic')))
""",
        prints="held",
    ),
    attack(
        "write files of the host",
        tries(
            "open('$FILE', 'w').write('x')",
            "open('$FILE', 'a').write('x')",
            "open('$FILE', 'r+').write('x')",
            "os.truncate('$FILE', 0)",
            "open('$FOLDER/new', 'w')",
            "os.mkdir('$FOLDER/folder')",
            "os.symlink('a', '$FOLDER/link')",
            "os.mkfifo('$FOLDER/fifo')",
            "os.unlink('$FILE')",
            "os.rename('$FILE', '$FOLDER/other')",
            "os.link('$FILE', '$FOLDER/hard')",
            "os.rmdir('$FOLDER')",
            "open(os.__file__, 'a')",
            "open(os.path.dirname(os.__file__) + '/planted.py', 'w')",
            "open(os.path.dirname(os.__file__) + '/__pycache__/planted.pyc', 'w')",
            "open('/usr/lib/planted', 'w')",
            "open('/etc/planted', 'w')",
            "open('/planted', 'w')",
            "open('/dev/planted', 'w')",
            "open('/proc/self/oom_score_adj', 'w').write('-1000')",
            "open('/proc/$HOST/oom_score_adj', 'w').write('1000')",
            "open('/sys/kernel/profiling', 'w')",
            "os.mknod('device', 0o60666, os.makedev(254, 0))",
            "os.mknod('device', 0o20666, os.makedev(1, 1))",
            "os.chroot('.')",
        ),
    ),
    attack(
        "change metadata of the host",
        TRIES
        + """
for action in (
    lambda: os.chmod('$FILE', 0o600), lambda: os.chmod('$FOLDER', 0o700), lambda: os.chown('$FILE', 12, 12),
    lambda: os.utime('$FILE', (1, 1)), lambda: os.setxattr('$FILE', 'user.a', b'b'), lambda: os.lchown('$FILE', 12, 12),
    lambda: libc.lsetxattr(b'$FILE', b'user.b', b'c', 1, 0),
    lambda: libc.truncate(b'$FILE', 0), lambda: call(452, -100, b'$FILE', 0o600, 0),
):
    attempt(action)
""",
    ),
)

SAME = "os.stat(os.__file__).st_mode & 0o7777"
"""Changes that change nothing: a sandbox that fails these tests must not cost the machine that runs them."""

PREFIX = (
    attack(
        "change metadata of the libraries",
        tries(
            f"os.chmod(os.__file__, {SAME})",
            f"os.chmod(os.path.dirname(os.__file__), {SAME} | 0o111)",
            "os.utime(os.__file__, ns=(os.stat(os.__file__).st_atime_ns, os.stat(os.__file__).st_mtime_ns))",
            "os.chmod('/dev/null', os.stat('/dev/null').st_mode & 0o7777)",
        ),
        tiers=("namespaces",),
        prints="held",
    ),
)

SOCKETS = (
    attack(
        "reach the host by sockets",
        tries(
            "socket.create_connection(('127.0.0.1', $PORT), 1)",
            "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', $UDP))",
            "socket.socket(socket.AF_UNIX).connect('$FOLDER/stream')",
            "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '$FOLDER/datagram')",
            "socket.socket(socket.AF_UNIX).connect('\\0$ABSTRACT')",
            "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'x', '\\0$ABSTRACT-datagram')",
            "socket.create_server(('0.0.0.0', 0))",
            "socket.getaddrinfo('example.com', 80)",
        ),
    ),
    attack(
        "send bytes out of band",
        tries(
            "socket.socketpair()[0].send(b'x', socket.MSG_OOB)",
            "socket.socketpair()[0].sendmsg([b'x'], [], socket.MSG_OOB)",
            "socket.socket(fileno=os.dup(3)).send(b'x', socket.MSG_OOB)",
        ),
        prints="held",
    ),
    attack("open a socket of any family", tries(*(f"socket.socket({f}, {t})" for f in range(46) for t in (1, 2, 3)))),
    attack(
        "send from a connected pair to an address",
        TRIES
        + """
def pairs():
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        try:
            yield from socket.socketpair(socket.AF_UNIX, kind)
        except OSError:
            pass
for one in list(pairs()):
    for address in ('$FOLDER/datagram', '$FOLDER/stream', '\\0$ABSTRACT', '\\0$ABSTRACT-datagram'):
        for action in (lambda: one.sendto(b'x', address), lambda: one.connect(address), lambda: one.sendmsg([b'x'], [], 0, address)):
            attempt(action)
    for option in range(1, 80):
        try:
            one.setsockopt(socket.SOL_SOCKET, option, 1 << 30)
            print('BROKEN option', option)
        except OSError:
            pass
print('done')
""",
        prints="done",
    ),
)

KERNEL = (
    attack(
        "unneeded system calls",
        TRIES
        + """
import platform
x86_64 = dict(
    ptrace=101, unshare_user=272, unshare_net=272, setns=308, mount=165, umount=166, pivot_root=155, chroot=161, io_uring_setup=425,
    io_uring_enter=426, bpf=321, perf=298, userfaultfd=323, keyctl=250, add_key=248, request_key=249, shmget=29, msgget=68, semget=64, mq_open=240,
    memfd_create=319, memfd_secret=447, fanotify_init=300, inotify_init=253, personality=135, process_vm_readv=310, process_vm_writev=311, kcmp=312,
    pidfd_open=434, pidfd_getfd=438, open_by_handle_at=304, name_to_handle_at=303, modify_ldt=154, iopl=172, ioperm=173, reboot=169, swapon=167,
    sethostname=170, settimeofday=164, clock_settime=227, adjtimex=159, init_module=175, finit_module=313, delete_module=176, kexec_load=246,
    syslog=103, quotactl=179, acct=163, sync=162, syncfs=306, vmsplice=278, splice=275, tee=276, setuid=105, setgid=106, setresuid=117, setgroups=116,
    setpriority=141, sched_setscheduler=144, sched_setaffinity=203, mlockall=151, mlock=149, migrate_pages=256, move_pages=279, landlock=444,
    seccomp=317, clone3=435, open_tree=428, fsopen=430, mount_setattr=442, process_madvise=440, process_mrelease=448, cachestat=451, socket_unix=41,
    execveat=322, pkey_alloc=330, setxattr=188, ustat=136, uselib=134, vhangup=153, rt_sigqueueinfo=129, lookup_dcookie=212, set_mempolicy=238,
    get_robust_list=274)
aarch64 = dict(
    ptrace=117, unshare_user=97, unshare_net=97, setns=268, mount=40, umount=39, pivot_root=41, chroot=51, io_uring_setup=425, io_uring_enter=426,
    bpf=280, perf=241, userfaultfd=282, keyctl=219, add_key=217, request_key=218, shmget=194, msgget=186, semget=190, mq_open=180, memfd_create=279,
    memfd_secret=447, fanotify_init=262, personality=92, process_vm_readv=270, process_vm_writev=271, kcmp=272, pidfd_open=434, pidfd_getfd=438,
    open_by_handle_at=265, name_to_handle_at=264, reboot=142, swapon=224, sethostname=161, settimeofday=170, clock_settime=112, adjtimex=171,
    init_module=105, finit_module=273, delete_module=106, kexec_load=104, syslog=116, quotactl=60, acct=89, sync=81, syncfs=267, vmsplice=75,
    splice=76, tee=77, setuid=146, setgid=144, setresuid=147, setgroups=159, setpriority=140, sched_setscheduler=119, sched_setaffinity=122,
    mlockall=230, mlock=228, migrate_pages=238, move_pages=239, landlock=444, seccomp=277, clone3=435, open_tree=428, fsopen=430, mount_setattr=442,
    process_madvise=440, process_mrelease=448, cachestat=451, socket_unix=198, execveat=281, pkey_alloc=289, setxattr=5, vhangup=58,
    rt_sigqueueinfo=138, lookup_dcookie=18, set_mempolicy=237, get_robust_list=100)
arguments = dict(
    unshare_user=(0x10000000,), unshare_net=(0x40000000,), setns=(0, 0), chroot=(b'.',), io_uring_setup=(8, ctypes.create_string_buffer(512)),
    bpf=(0, ctypes.create_string_buffer(128), 128), perf=(ctypes.create_string_buffer(128), 0, -1, -1, 0), userfaultfd=(1,), keyctl=(0, -3, 1),
    add_key=(b'user', b'a', b'b', 1, -3), shmget=(0, 4096, 0o1600), msgget=(0, 0o1600), semget=(0, 1, 0o1600), mq_open=(b'q', 0o102, 0o600, 0),
    memfd_create=(b'a', 0), memfd_secret=(0,), fanotify_init=(0, 0), inotify_init=(), personality=(0x0040000,), kcmp=(1, 1, 0, 0, 1), pidfd_open=(1, 0),
    iopl=(0,), ioperm=(0, 1, 0), sethostname=(b'a', 1), syslog=(10, 0, 0), acct=(0,), sync=(), syncfs=(1,), setuid=(0,), setgid=(0,),
    setresuid=(0, 0, 0), setgroups=(0, 0), setpriority=(2, 0, 5), sched_setscheduler=(0, 0, ctypes.create_string_buffer(8)),
    sched_setaffinity=(0, 8, ctypes.create_string_buffer(b'\\xff' * 8)), mlockall=(1,), mlock=(0, 0), landlock=(0, 0, 1),
    seccomp=(2, 0, ctypes.create_string_buffer(4)), clone3=(ctypes.create_string_buffer(b'\\0' * 88, 88), 88), open_tree=(-100, b'.', 1),
    fsopen=(b'tmpfs', 0), socket_unix=(1, 1, 0), execveat=(-1, b'', 0, 0, 0x1000), pkey_alloc=(0, 0), vhangup=(),
    rt_sigqueueinfo=(1, 0, ctypes.create_string_buffer(128)), set_mempolicy=(0, 0, 0),
    get_robust_list=(1, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)))
worked = []
for name, number in {'x86_64': x86_64, 'aarch64': aarch64}[platform.machine()].items():
    try:
        call(number, *arguments.get(name, (0, 0, 0, 0, 0)))
        worked.append(name)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOSYS, errno.ENOTSUP):
            worked.append((name, errno.errorcode[error.errno]))
print('BROKEN' if worked else 'held', worked)
""",
        prints="held",
    ),
    attack(
        "namespaces by clone",
        TRIES
        + """
import platform
number = 56 if platform.machine() == 'x86_64' else 220
worked = []
for bit in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    pid = libc.syscall(ctypes.c_long(number), ctypes.c_long(bit | 17), *[ctypes.c_long(0)] * 4)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        worked.append(hex(bit))
print('BROKEN' if worked else 'held', worked)
""",
        prints="held",
    ),
    attack(
        "calls of another architecture",
        """
import ctypes, mmap, os, platform, struct
if platform.machine() == 'x86_64':
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(bytes.fromhex('b814000000cd80c3'))       # getpid of i386 by int 0x80
    print('BROKEN', ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())
code = bytes.fromhex('1470a0e3000000ef2a00a0e30170a0e3000000ef')       # getpid of 32-bit ARM, then exit(42)
head = struct.pack('<16sHHIIIIIHHHHHH', b'\\x7fELF\\1\\1\\1', 2, 40, 1, 0x10054, 52, 0, 0x5000000, 52, 32, 1, 0, 0, 0)
with open('foreign', 'wb') as file:
    file.write(head + struct.pack('<8I', 1, 0, 0x10000, 0x10000, 104, 104, 5, 0x1000) + code)
os.chmod('foreign', 0o700)
child = os.fork()
if child == 0:
    try:
        os.execv('foreign', ['foreign'])
    finally:
        os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
if status not in (1, -31):                              # no such program here, or killed by the filter
    print('BROKEN', status)
raise SystemExit(status)
""",
        status=("killed", "error"),
    ),
    attack(
        "calls with the x32 bit",
        "import ctypes; print('BROKEN', ctypes.CDLL(None).syscall(ctypes.c_long(0x40000000 | 39)))",
        status=("killed",),
    ),
    attack(
        "limits raised again",
        TRIES
        + """
import resource
for name in ('AS', 'FSIZE', 'NOFILE', 'NPROC', 'CPU', 'MEMLOCK', 'CORE', 'STACK'):
    which = getattr(resource, 'RLIMIT_' + name)
    hard = resource.getrlimit(which)[1]
    if name == 'NPROC' and hard == resource.RLIM_INFINITY:
        continue
    for value in ((resource.RLIM_INFINITY,) * 2, (hard + 1, hard + 1)):
        try:
            resource.setrlimit(which, value)
            print('BROKEN', name, hard, value)
        except (OSError, ValueError):
            pass
for option in (1, 4, 22, 24, 28, 36, 47):
    if libc.prctl(option, *[ctypes.c_ulong(0)] * 4) == 0:
        print('BROKEN prctl', option)
print('capabilities', os.getresuid())
""",
    ),
    attack(
        "descriptors that were left open",
        """
import os
found = []
for number in range(4096):
    try:
        os.fstat(number); found.append(number)
    except OSError:
        pass
print('held' if found == [0, 1, 2, 3] else 'BROKEN', found)
""",
        prints="held",
    ),
)

PROCESSES = (
    attack(
        "signals to others",
        TRIES
        + """
for pid in ($VICTIM, $HOST, os.getppid(), -$VICTIM):
    for action in (lambda: os.kill(pid, 9), lambda: os.kill(pid, 19), lambda: call(200, pid, 9), lambda: call(234, pid, pid, 9)):
        if pid:
            attempt(action)
def owned(kind):
    import fcntl
    one, other = socket.socketpair()
    libc.fcntl(one.fileno(), 10, 9)
    return libc.fcntl(one.fileno(), 8, kind) == 0 and print('BROKEN owner') or 1 / 0
for pid in ($VICTIM, -$VICTIM):
    try:
        owned(pid)
    except (OSError, ZeroDivisionError):
        pass
one, other = socket.socketpair()
if libc.ioctl(one.fileno(), ctypes.c_ulong(0x8902), ctypes.byref(ctypes.c_int($VICTIM))) == 0:
    print('BROKEN ioctl')
for which, who in ((0, $VICTIM), (1, $VICTIM), (2, 0)):
    attempt(lambda: os.setpriority(which, who, 10))
attempt(lambda: os.sched_setaffinity($VICTIM, {0}))
import resource
for pid in ($VICTIM, $HOST):
    attempt(lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (10, 10)))
print('done')
""",
        prints="done",
    ),
    # signal 0 asks without harm: a sandbox that fails must not cost the machine all of its processes
    attack("kill everybody", "import os\nif os.getpid() == 1: os.kill(-1, 9)\nelse: os.kill(-1, 0); print('BROKEN')"),
    attack("kill the own group", "import os\nif os.getpgid(0) == os.getpid(): os.kill(0, 9)\nelse: print('BROKEN')"),
    attack("stop itself", "import os\nos.kill(os.getpid(), 19)", timeout_s=0.5),
    attack(
        "trace another process",
        """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for request in (16, 0x4206):
    if libc.ptrace(request, $VICTIM, 0, 0) == 0 or libc.ptrace(request, $HOST, 0, 0) == 0:
        print('BROKEN', request)
if libc.ptrace(0, 0, 0, 0) == 0:
    print('BROKEN traceme')
""",
    ),
    attack(
        "a daemon that outlives its call",
        """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.01)
    os._exit(0)
time.sleep(0.1)
""",
        "print('alive')",
        tiers=("namespaces",),
        prints="alive",
    ),
    attack(
        "a daemon whose parent refuses to end it",
        """
import os, time
os.kill = os.waitpid = lambda *a: (_ for _ in ()).throw(ChildProcessError)
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
""",
        "print('fresh')",
        tiers=("namespaces",),
        prints="restarted",
    ),
    attack(
        "a fork that runs on into the loop",
        "import os\nmine = os.fork()\nprint('child' if mine == 0 else 'parent')",
        "print('one answer')",
        tiers=("namespaces",),
        status=("ok",),
        prints="one answer",
    ),
    attack(
        "resuming itself while stopped",
        tries(
            "os.kill(os.getpid(), signal.SIGCONT)",
            "signal.pthread_kill(__import__('threading').get_ident(), signal.SIGCONT)",
            "signal.raise_signal(signal.SIGCONT)",
            "libc.kill(os.getpid(), signal.SIGCONT) and 1 / 0",
            "call(222 if os.uname().machine == 'x86_64' else 107, 1, (ctypes.c_int * 16)(0, 0, 18), (ctypes.c_int * 2)())",
        ).replace("AttributeError", "AttributeError, ZeroDivisionError"),
        prints="held",
    ),
    attack(
        "threads that continue after their call",
        """
import threading, time
ticks = []
def work():
    while True:
        ticks.append(time.monotonic())
        time.sleep(0.001)
threading.Thread(target=work, daemon=True).start()
while not ticks: time.sleep(0.001)
""",
        "first = len(ticks)",
        """
times = [*ticks[first - 1:], time.monotonic()]
longest = max(after - before for before, after in zip(times, times[1:]))
print('held' if longest > 0.4 else 'BROKEN', longest)
""",
        pause_s=0.5,
        prints="held",
    ),
)

ALL: tuple[Attack, ...] = FILES + PREFIX + SOCKETS + KERNEL + PROCESSES
