"""Attacks on limits (time, memory, processes, files, output) and on the protocol between session and host."""

# The attacks are data, and some of their lines are long.
# ruff: noqa: E501

from dataclasses import replace

from sandbox_canaries_for_tests import Attack, attack

FORGE = """
import json, os, socket, struct, sys, threading, time
me = sys._getframe()
while me.f_back is not None:
    me = me.f_back
def frame(**message):
    body = json.dumps(message).encode()
    return struct.pack('!I', len(body)) + body
def answer(number, text='FORGED'):
    return frame(id=number, status='ok', value=text, error=None)
"""

MAPS = """
import ctypes, mmap, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
def mapped(size, flags, *, at=None, fd=-1, prot=3):
    address = libc.mmap(at, size, prot, flags, fd, 0)
    if address in (None, 2**64 - 1):
        raise OSError(ctypes.get_errno(), 'refused')
    return address
"""

TIME = (
    attack(
        "an endless loop",
        "x = 1",
        "while True: pass",
        "print(x)",
        status=("ok",),
        timeout_s=(60.0, 0.5, 60.0),
        prints="1",
    ),
    attack("sleep", "import time; time.sleep(100)", status=("timeout",)),
    attack(
        "a loop that ignores interrupts",
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        status=("timeout",),
    ),
    attack(
        "a loop that catches interrupts",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        status=("timeout",),
    ),
    attack(
        "a loop with signals blocked",
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\nwhile True: pass",
        status=("timeout",),
    ),
    attack("a number that never ends", "9 ** 9 ** 9", status=("timeout", "memory")),
    attack("a pattern that never ends", "import re; re.match('(a+)+$', 'a' * 60 + 'b')", status=("timeout",)),
    attack(
        "a repr that never ends",
        "class A:\n    def __repr__(self):\n        while True: pass\nA()",
        status=("timeout",),
    ),
    attack(
        "an error text that never ends",
        "class A(Exception):\n    def __str__(self):\n        while True: pass\nraise A",
        status=("timeout", "error"),
    ),
    attack(
        "many busy processes",
        "import os\nfor _ in range(5): os.fork()\nwhile True: pass",
        status=("timeout", "killed", "error"),
    ),
    attack(
        "busy threads that the main thread waits for",
        """
import threading
def burn():
    while True: pass
for _ in range(4): threading.Thread(target=burn).start()
while True: pass
""",
        "print('next')",
        status=("ok", "timeout"),
    ),
    attack("a fake interrupt is an error", "raise KeyboardInterrupt", status=("error",)),
    attack("code that never compiles", "(" * 5000 + ")" * 5000, status=("error", "memory", "killed")),
    attack("code that overflows the stack", "eval('-' * 90000 + '1')", status=("error", "memory", "killed")),
)

MEMORY = (
    attack("one large block", "x = bytearray(4 << 30)", "print('kept')", prints="kept"),
    attack("many small blocks", "x = []\nwhile True: x.append(bytearray(1 << 20))", status=("memory",)),
    attack(
        "children together",
        """
import os, time
for _ in range(8):
    if os.fork() == 0:
        block = bytearray(b'x') * (100 << 20)
        time.sleep(30)
        os._exit(0)
time.sleep(30)
""",
        status=("memory",),
        tiers=("namespaces",),
    ),
    attack(
        "memory shared by children counts once",
        """
import mmap, os, time
blocks = []
for number in range(3):
    file = open(f'shared{number}', 'w+b'); file.truncate(30 << 20)
    block = mmap.mmap(file.fileno(), 30 << 20)
    blocks.append(block)
    for at in range(0, len(block), 4096): block[at] = 1
    time.sleep(0.1)
time.sleep(30)
""",
        status=("memory", "error", "killed"),
    ),
    attack(
        "mappings without end",
        "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 1 << 28, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))",
        status=("memory", "error"),
    ),
    attack(
        "shared memory that survives munmap",
        MAPS
        + """
for flags, path in ((0x21, None), (0x23, None), (0x40022, None), (0x40021, None), (1, '/dev/zero')):
    try:
        address = mapped(2 << 20, flags, fd=-1 if path is None else os.open(path, os.O_RDWR))
        ctypes.memset(address, 1, 1 << 20); libc.munmap(address + 4096, (2 << 20) - 4096)
        print('BROKEN', hex(flags), path)
    except OSError as error:
        if error.errno not in (1, 2, 13): print('BROKEN', hex(flags), path, error)
print('held')
""",
        prints="held",
    ),
    attack(
        "page tables",
        MAPS
        + """
for number in range(60000):  # each page needs two tables of its own, and none is more than the one page of zeros
    try: ctypes.string_at(mapped(4096, 0x22 | 0x100000, at=(1 << 40) + (number << 30), prot=1), 1)
    except OSError: pass
import time; time.sleep(30)
""",
        status=("memory", "killed"),
    ),
    attack(
        "pipes full of bytes",
        """
import os, fcntl
total = 0
try:
    while True:
        r, w = os.pipe()
        try:
            fcntl.fcntl(w, 1031, 1 << 20); print('BROKEN larger pipe')
        except OSError: pass
        os.set_blocking(w, False)
        try:
            while True: total += os.write(w, b'x' * 65536)
        except BlockingIOError: pass
except OSError as error:
    print(error.errno, total)
print('BROKEN' if total > 16 << 20 else 'held')
""",
        prints="held",
    ),
    attack(
        "sockets full of bytes in many processes",
        """
import os, socket, time
def fill():
    kept = []
    try:
        while True:
            pair = socket.socketpair(); kept.append(pair)
            for end in pair:
                end.setblocking(False)
                try:
                    while True: end.send(b'x' * 65536)
                except BlockingIOError: pass
    except OSError: time.sleep(30)
for _ in range(24):
    if os.fork() == 0: fill()
fill()
print('BROKEN')
""",
        status=("memory",),
        tiers=("namespaces",),
    ),
    attack(
        "mappings without pages in many processes",
        MAPS
        + """
import time
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
block = mapped(4096 * 10000, 0x22, prot=0)
for page in range(0, 10000, 2): libc.mprotect(block + 4096 * page, 4096, 1)
for _ in range(20):
    if os.fork() == 0: time.sleep(30)
time.sleep(30)
print('BROKEN')
""",
        status=("memory",),
        tiers=("namespaces",),
    ),
    attack(
        "zombie children do not count",
        """
import os, time
for _ in range(8):
    if os.fork() == 0: os._exit(0)
time.sleep(0.3)
print('all well')
""",
        status=("ok",),
        tiers=("namespaces",),
        prints="all well",
    ),
    attack(
        "forks of a large parent share its memory",
        """
import os
block = bytearray(b'x') * (120 << 20)
children = []
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        import time; time.sleep(0.3); os._exit(0)
    children.append(pid)
for pid in children: os.waitpid(pid, 0)
print('all well')
""",
        status=("ok",),
        tiers=("namespaces",),
        prints="all well",
    ),
)

COUNTS = (
    attack(
        "a fork bomb",
        "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        timeout_s=0.4,
        status=("timeout", "killed", "error"),
        tiers=("namespaces",),
    ),
    attack("forks are refused", "import os\nos.fork()\nprint('BROKEN')", status=("error",), tiers=("landlock",)),
    attack(
        "exec is refused",
        "import os\nos.execv('/bin/sh', ['sh', '-c', 'echo BROKEN'])",
        status=("error",),
        tiers=("landlock",),
    ),
    attack(
        "a shell is not there", "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'echo BROKEN'])", status=("error",)
    ),
    attack(
        "a thread bomb",
        "import threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(9,)).start()\n    except RuntimeError: pass",
        timeout_s=0.4,
        status=("timeout", "killed", "error", "memory"),
    ),
    attack(
        "a bomb of small threads",
        "import threading, _thread, time\nthreading.stack_size(32768)\nwhile True:\n    try: _thread.start_new_thread(time.sleep, (9,))\n    except RuntimeError: pass",
        timeout_s=0.4,
        status=("timeout", "killed", "error", "memory"),
    ),
    attack("descriptors without end", "import os\nx = []\nwhile True: x.append(os.dup(1))", status=("error",)),
    attack("a huge file", "f = open('big', 'wb')\nwhile True: f.write(b'x' * (1 << 20))", status=("error", "killed")),
    attack(
        "a huge file at once",
        "import os\nf = open('big', 'wb')\nos.posix_fallocate(f.fileno(), 0, 1 << 40)",
        status=("error", "killed"),
    ),
    attack(
        "large files without end",
        "number = 0\nwhile True:\n    open(f'big{number}', 'wb').write(b'x' * (1 << 22))\n    number += 1",
        status=("error", "killed"),
    ),
    attack(
        "unlinked files",
        """
import os
kept = []
while True:
    f = open('big', 'wb'); os.unlink('big'); kept.append(f); f.write(b'x' * (4 << 20)); f.flush()
""",
        status=("error", "killed"),
    ),
    attack(
        "many files",
        "number = 0\nwhile True:\n    open(f'{number}', 'w').close()\n    number += 1",
        status=("error", "killed"),
    ),
    attack(
        "files in a folder that cannot be listed",
        "import os\nos.mkdir('dark', 0o300)\nnumber = 0\nwhile True:\n"
        "    open(f'dark/{number}', 'wb').write(b'x' * (1 << 22))\n    number += 1",
        status=("error", "killed"),
    ),
    attack(
        "unlinked files that are only mapped",
        """
import mmap, os
kept = []
while True:
    f = open('big', 'w+b'); os.unlink('big'); f.truncate(4 << 20)
    m = mmap.mmap(f.fileno(), 4 << 20); f.close(); m[:] = b'x' * (4 << 20); kept.append(m)
""",
        status=("error", "killed", "memory"),
    ),
    attack(
        "unlinked files that are mapped and closed",
        MAPS
        + """
import time
for _ in range(6):
    f = open('big', 'w+b'); os.unlink('big'); f.write(b'x' * (30 << 20)); f.flush()
    mapped(4096, 2, fd=f.fileno(), prot=1); f.close(); time.sleep(0.1)
time.sleep(30)
print('BROKEN')
""",
        status=("error", "killed"),
    ),
    attack(
        "unlinked files in folders deeper than a path",
        """
import os, time
kept = []
for _ in range(17):
    os.mkdir('d' * 250); os.chdir('d' * 250)
for _ in range(6):
    f = open('big', 'wb'); os.unlink('big'); kept.append(f)
for _ in range(17):
    os.chdir('..'); os.rmdir('d' * 250)
for f in kept:
    f.write(b'x' * (30 << 20)); f.flush(); time.sleep(0.05)
time.sleep(30)
print('BROKEN')
""",
        status=("error", "killed"),
    ),
    attack(
        "fallocated blocks",
        MAPS
        + """
given = 0
for mode in (0, 1):
    for number in range(20):
        f = open(f'{mode}{number}', 'wb')
        if libc.fallocate(f.fileno(), mode, ctypes.c_long(0), ctypes.c_long(16 << 20)) == 0: given += 16
        if libc.fallocate(f.fileno(), mode, ctypes.c_long(0), ctypes.c_long(90 << 20)) == 0: given += 90
print('BROKEN' if given > 48 else 'held', given)
""",
        prints="held",
    ),
    attack(
        "unlinked files in a socket buffer",
        """
import os, socket
pairs = []
while True:
    a, b = socket.socketpair(); pairs.append((a, b))
    for _ in range(8):
        f = open('big', 'wb'); os.unlink('big'); f.write(b'x' * (4 << 20)); f.flush()
        socket.send_fds(a, [b'x'], [f.fileno()]); f.close()
""",
        status=("error", "killed"),
    ),
    attack(
        "folders without end",
        "import os\nwhile True:\n    os.mkdir('d'); os.chdir('d')",
        status=("error", "killed"),
    ),
    attack(
        "folders that cannot be opened, and links out of them",
        "import os\nos.symlink('$FOLDER', 'out')\nos.mkdir('a'); os.mkdir('a/b'); os.symlink('$FILE', 'a/b/c'); os.mkdir('shut', 0)\nos.mkdir('.moved-0')",
        status=("ok",),
    ),
)

OUTPUT = (
    attack("endless output", "while True: print('x' * 1000)", "print('kept')", prints="kept"),
    attack(
        "endless output below Python",
        "import os\nwhile True: os.write(2, b'x' * 65536)",
        status=("error", "timeout", "killed"),
    ),
    attack(
        "endless output that cannot be interrupted",
        "import os\nwhile True:\n    try: os.write(1, b'x' * 65536)\n    except BaseException: pass",
        status=("error", "timeout", "killed"),
    ),
    attack("one huge line", "print('x' * (100 << 20))"),
    attack("a huge value", "'x' * (50 << 20)", status=("ok",)),
    attack("a huge error", "raise ValueError('x' * (50 << 20))", status=("error",)),
    attack("a value full of escapes", "'\\U0001F600\\x00\\ud800' * 100000", status=("ok",)),
    attack("an error that is not text", "raise ValueError('\\udfff\\ud800 \\x00 \\x1b[2J')", status=("error",)),
    attack(
        "a forged answer that is not text",
        FORGE + "os.write(3, answer(1, '\\ud800'))\ntime.sleep(0.5)",
        status=("ok",),
    ),
    attack("bytes that are not text", "import os\nos.write(1, bytes(range(256)) * 100)", status=("ok",)),
    attack("closed output", "import sys, os\nsys.stdout.close(); os.close(1); os.close(2)", "1 + 1"),
)

CRASHES = (
    attack(
        "a segmentation fault",
        "import ctypes\nctypes.string_at(0)",
        "print('fresh')",
        status=("ok",),
        prints="restarted",
    ),
    attack("an abort", "import os\nos.abort()", "print('fresh')", status=("ok",), prints="restarted"),
    attack("an exit below Python", "import os\nos._exit(3)", "print('fresh')", status=("ok",), prints="restarted"),
    attack("exit", "x = 3\nexit()", "print(x)", status=("ok",), prints="3"),
    attack("builtins gone", "import builtins\nbuiltins.__dict__.clear()", "print('fresh')"),
    attack("modules gone", "import sys\nsys.modules.clear()", "1"),
    attack("tracing", "import sys\nsys.settrace(lambda *a: (_ for _ in ()).throw(SystemError))\nprint(1)", "1"),
    attack(
        "a tampered session loop",
        "import json, socket\njson.dumps = lambda *a, **k: 'null'\nsocket.socket.sendall = None",
        "print('fresh')",
    ),
)

PROTOCOL = (
    attack("a forged answer and its real one", FORGE + "os.write(3, answer(1))", status=("ok", "killed")),
    attack("two forged answers", FORGE + "os.write(3, answer(1) * 2)\ntime.sleep(9)", status=("ok", "killed")),
    attack("an answer to another call", FORGE + "os.write(3, answer(99))\ntime.sleep(9)", status=("killed",)),
    attack("a huge answer", FORGE + "os.write(3, struct.pack('!I', 1 << 31))\ntime.sleep(9)", status=("killed",)),
    attack(
        "a garbage answer",
        FORGE + "os.write(3, struct.pack('!I', 5) + b'xxxxx')\ntime.sleep(9)",
        status=("killed",),
    ),
    attack(
        "a deeply nested answer",
        FORGE + "os.write(3, struct.pack('!I', 60000) + b'[' * 60000)\ntime.sleep(9)",
        status=("killed",),
    ),
    attack(
        "an answer with wrong types",
        FORGE + "os.write(3, frame(id=1, status=['ok'], value={}, error=7))\ntime.sleep(9)",
        status=("killed",),
    ),
    attack(
        "an answer with an unhashable status",
        FORGE + "os.write(3, frame(id=1, status={}, value=None, error=None))\ntime.sleep(9)",
        status=("killed",),
    ),
    attack(
        "an answer whose id is a bool",
        FORGE + "os.write(3, frame(id=True, status='ok', value=None, error=None))\ntime.sleep(9)",
    ),
    attack("half an answer", FORGE + "os.write(3, answer(1)[:9])\ntime.sleep(9)", status=("timeout", "killed")),
    attack(
        "an answer between calls",
        FORGE
        + "threading.Thread(target=lambda: [(time.sleep(0.05), os.write(3, answer(2))) for _ in range(99)], daemon=True).start()",
        "import time; time.sleep(0.3)",
        "print('still here')",
        status=("ok", "killed"),
    ),
    attack("a closed socket", "import os\nos.close(3)\nimport time; time.sleep(9)", status=("killed",)),
    attack(
        "a closed socket and a quiet end",
        "import os\nos.close(3)",
        "print('fresh')",
        status=("ok",),
        prints="restarted",
    ),
    attack(
        "descriptors sent to the host",
        "import os, socket\ns = socket.socket(fileno=os.dup(3))\ntry:\n    socket.send_fds(s, [b'x'], [0, 1, 2])\nexcept OSError: pass",
        status=("ok", "killed"),
    ),
    attack(
        "a thread that steals the next request",
        "import os, threading\nthreading.Thread(target=lambda: os.read(3, 1 << 20), daemon=True).start()",
        "print('next')",
        status=("ok", "timeout", "killed"),
    ),
)

SHORT_S = 0.5


def shorten_timeout(one: Attack) -> Attack:
    """With a short time limit where it may run into that, and a long one where it may not: a busy machine is slow."""
    return replace(one, timeout_s=SHORT_S) if "timeout" in one.status and one.status != Attack.status else one


ALL: tuple[Attack, ...] = tuple(map(shorten_timeout, TIME + PROTOCOL)) + MEMORY + COUNTS + OUTPUT + CRASHES
