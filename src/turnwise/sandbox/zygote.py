"""The zygote: a process that imports the libraries once, jails itself, and forks a session for each request.

`protocol` describes its messages. A failed set-up is reported to the host and never hangs. When the host exits, the
control socket closes and the zygote ends with all its sessions.
"""

import gc
import importlib
import json
import os
import resource
import selectors
import signal
import site
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from turnwise.sandbox.jail import Jail, NoJail
from turnwise.sandbox.jail_landlock import LandlockJail
from turnwise.sandbox.jail_namespaces import NamespacesJail
from turnwise.sandbox.protocol import CONTROL, SOCKET_CLOSED, ZygoteConfig, encode, receive, send
from turnwise.sandbox.session_loop import SessionLoop, seed_everything, unload_turnwise
from turnwise.sandbox.syscalls import JailError, close_descriptors_from, die_with_parent

NICENESS = 5
"""Niceness of sessions relative to the host, so that busy code does not starve training."""
STANDARD_MODULES = (
    "asyncio",
    "bz2",
    "ctypes",
    "decimal",
    "fractions",
    "hashlib",
    "lzma",
    "multiprocessing",
    "sqlite3",
    "ssl",
)
"""Imported before the jail is built, so that the shared libraries behind them are loaded and stay readable."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionChild:
    """A session's process, as the zygote sees it."""

    number: int
    pid: int
    pidfd: int
    scratch: str


class HostExited(Exception):
    """The host was killed; raised by the parent-death signal."""


def main() -> NoReturn:
    """Run a zygote process."""
    control = socket.socket(fileno=CONTROL)
    control.set_inheritable(False)
    try:
        config = ZygoteConfig.from_json(control.recv(1 << 20))
        jail = prepare(config)
    except HostExited:
        os._exit(1)
    except (JailError, OSError, ImportError, ValueError) as error:
        control.send(json.dumps({"failed": f"{error}" or type(error).__name__}).encode())
        os._exit(1)
    Zygote(control, config, jail).serve()
    os._exit(0)


def prepare(config: ZygoteConfig) -> Jail:
    """Build the jail and import everything that sessions share."""
    signal.signal(signal.SIGTERM, _raise_host_exited)
    die_with_parent(signal.SIGTERM)
    if os.getppid() != config.host_pid:
        os._exit(1)
    max_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max_files, max_files))  # the zygote keeps one descriptor per session
    sys.argv[:] = [""]
    sys.path[:] = config.python.search_path
    for name in STANDARD_MODULES:
        with suppress(ImportError):  # some builds of Python lack a library
            importlib.import_module(name)
    jail = make_jail(config)
    jail.build()
    warm_up(config.python.preload)
    site.setquit()
    site.sethelper()
    importlib.import_module("multiprocessing").set_start_method("fork")  # forkserver needs named sockets
    jail.measure_base_memory()
    gc.collect()
    gc.freeze()
    return jail


def make_jail(config: ZygoteConfig) -> Jail:
    if config.tier == "namespaces":
        return NamespacesJail(config.limits, config.python)
    if config.tier == "landlock":
        return LandlockJail(config.limits, config.python, config.scratch)
    return NoJail(config.limits, config.scratch)


def warm_numpy(numpy: Any) -> None:
    importlib.import_module("numpy.random")
    numpy.linalg.inv(numpy.eye(2))
    repr(numpy.arange(3) / 2)


def warm_sympy(sympy: Any) -> None:
    x = sympy.Symbol("x")
    sympy.factor(x**2 - 1)
    sympy.solve(x**2 - 2)
    sympy.integrate(x**2, x)
    sympy.simplify(sympy.sin(x) ** 2 + sympy.cos(x) ** 2)
    str(sympy.sympify("x + 1/2"))


def warm_pillow(pillow: Any) -> None:
    importlib.import_module("PIL.Image").preinit()


WARM_UPS: Mapping[str, Callable[[Any], None]] = {"numpy": warm_numpy, "sympy": warm_sympy, "PIL": warm_pillow}


def warm_up(packages: tuple[str, ...]) -> None:
    """Import the packages and use each a little, since they import parts of themselves at first use.

    Forks then start warm: solving a first equation takes 1 ms instead of 200 ms.
    """
    for name in packages:
        module = importlib.import_module(name)
        if name in WARM_UPS:
            WARM_UPS[name](module)
    seed_everything(0)


class Zygote:
    """Forks sessions and reaps them.

    waits for: a request of the host, or the end of a session. unblocked by: the control socket, the sessions' pidfds.
    """

    def __init__(self, control: socket.socket, config: ZygoteConfig, jail: Jail) -> None:
        self.control = control
        self.config = config
        self.jail = jail
        self.children: dict[int, SessionChild] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)

    def serve(self) -> None:
        versions = {name: str(getattr(sys.modules[name], "__version__", "")) for name in self.config.python.preload}
        try:
            send(self.control, {"ready": {"packages": versions, "jail": self.jail.describe()}})
            while self._step():
                pass
        except (HostExited, OSError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._end()

    def _step(self) -> bool:
        """Handle the next events; False once the host has closed the socket."""
        for key, _ in self.selector.select():
            if isinstance(key.data, SessionChild):
                self._reap(key.data)
            elif key.data is not None:
                self._reap_remover(key.fd, key.data)
            elif not self._handle_request():
                return False
        return True

    def _handle_request(self) -> bool:
        message, descriptors = receive(self.control)
        if not message:
            return False
        request = json.loads(message)
        try:
            self._start(request, descriptors)
        except (JailError, OSError) as error:
            send(self.control, {"started": request["start"], "failed": str(error)})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def _start(self, request: dict[str, Any], descriptors: list[int]) -> None:
        if len(descriptors) != 2:
            raise JailError("too many open descriptors")
        scratch = self.jail.before_fork()
        try:
            pid = os.fork()
            if pid == 0:
                self._become_session(request["seed"], descriptors, scratch)
        finally:
            self.jail.after_fork()  # also after a failed fork: the next one needs it
        pidfd = _open_pidfd(pid)
        child = SessionChild(number=request["start"], pid=pid, pidfd=pidfd, scratch=scratch)
        self.children[child.number] = child
        self.selector.register(pidfd, selectors.EVENT_READ, child)
        send(self.control, {"started": child.number, "scratch": scratch if self.config.scratch else ""}, pidfd)

    def _become_session(self, seed: int, descriptors: list[int], scratch: str) -> NoReturn:
        """Run a session in the forked child. Never returns: the child must not continue as a second zygote."""
        exit_code = 1
        try:
            sock = _install_descriptors(*descriptors)
            try:
                self.jail.enter(scratch)
                close_descriptors_from(CONTROL + 1)
                _set_up_python(scratch, seed)
                self.jail.seal()
            except (JailError, OSError, ValueError) as error:
                sock.sendall(encode({"id": 0, "status": "killed", "value": None, "error": str(error)}))
                os._exit(1)
            loop = SessionLoop(
                sock,
                output_chars=self.config.limits.output_chars,
                memory_mb=self.config.limits.memory_mb,
                single_process=self.jail.single_process,
            )
            unload_turnwise()
            loop.serve()
            exit_code = 0
        except OSError:
            exit_code = SOCKET_CLOSED
        finally:
            os._exit(exit_code)

    def _reap(self, child: SessionChild) -> None:
        """Reap an exited session, remove its folder and report its exit code to the host."""
        exit_code = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        self.selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self.children[child.number]
        remover = self.jail.remove(child.scratch)
        if remover is not None:
            self.selector.register(os.pidfd_open(remover), selectors.EVENT_READ, remover)
        send(self.control, {"exited": child.number, "exit_code": exit_code})

    def _reap_remover(self, pidfd: int, pid: int) -> None:
        os.waitpid(pid, 0)
        self.selector.unregister(pidfd)
        os.close(pidfd)

    def _end(self) -> None:
        """Kill the sessions, wait for them and for removers, then let the jail clean up."""
        for child in self.children.values():
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        self.jail.close()


def _open_pidfd(pid: int) -> int:
    """Open a child's pidfd. If that fails, kill the child: a process that cannot be watched must not live."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _install_descriptors(sock: int, output: int) -> socket.socket:
    """Make `output` descriptors 1 and 2 and `sock` descriptor 3; 0 stays /dev/null."""
    high = [os.dup(descriptor) for descriptor in (sock, output)]
    for descriptor, number in ((high[1], 1), (high[1], 2), (high[0], CONTROL)):
        os.dup2(descriptor, number, inheritable=number != CONTROL)
    return socket.socket(fileno=CONTROL)


def _set_up_python(scratch: str, seed: int) -> None:
    os.umask(0o077)
    os.nice(NICENESS)
    os.environ.update(HOME=scratch, TMPDIR=scratch)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seed_everything(seed)


def _raise_host_exited(number: int, frame: FrameType | None) -> None:
    raise HostExited
