"""The zygote: imports the libraries once, jails itself, and forks a session whenever the host asks.

Messages over the control socket, one JSON object each (SOCK_SEQPACKET keeps them apart):
  host -> zygote   the configuration, once; then {"start": 7, "seed": 3} with two descriptors: socket and output
  zygote -> host   {"ready": {...}} or {"failed": "..."}, once; {"started": 7, "scratch": "..."} with a pidfd;
                   {"exited": 7, "status": -9}
A set-up that fails says so here and never hangs. When the host goes, the socket ends, and so does all of this.
"""

import array
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
from turnwise.sandbox.protocol import CONTROL, SOCKET_GONE, ZygoteConfig, encode, receive
from turnwise.sandbox.session_loop import SessionLoop, seed_everything, unload_turnwise
from turnwise.sandbox.syscalls import JailError, close_descriptors_from, die_with_parent

NICENESS = 5
"""How much nicer sessions are than the host: code that burns every processor must not starve it."""
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
"""Imported before the jail is built: the libraries behind them are then loaded, and known to the prefix."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionChild:
    """A session as the zygote knows it."""

    number: int
    pid: int
    pidfd: int
    scratch: str


class HostGone(Exception):
    """The host was killed: the parent-death signal says so."""


def main() -> NoReturn:
    """The whole life of a zygote process."""
    control = socket.socket(fileno=CONTROL)
    control.set_inheritable(False)
    try:
        config = ZygoteConfig.from_json(control.recv(1 << 20))
        jail = prepare(config)
    except HostGone:
        os._exit(1)
    except (JailError, OSError, ImportError, ValueError) as error:
        control.send(json.dumps({"failed": f"{error}" or type(error).__name__}).encode())
        os._exit(1)
    Zygote(control, config, jail).serve()
    os._exit(0)


def prepare(config: ZygoteConfig) -> Jail:
    """Jailed, with everything imported."""
    signal.signal(signal.SIGTERM, _host_is_gone)
    die_with_parent(signal.SIGTERM)
    if os.getppid() != config.host_pid:
        os._exit(1)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a descriptor is kept for every session
    sys.argv[:] = [""]
    sys.path[:] = config.prefix.search_path
    for name in STANDARD_MODULES:
        _import_if_there(name)
    jail = make_jail(config)
    jail.build()
    warm_up(config.prefix.preload)
    site.setquit()
    site.sethelper()
    importlib.import_module("multiprocessing").set_start_method("fork")  # forkserver needs sockets with names
    jail.loaded()
    gc.collect()
    gc.freeze()
    return jail


def make_jail(config: ZygoteConfig) -> Jail:
    if config.tier == "namespaces":
        return NamespacesJail(config.limits, config.prefix)
    if config.tier == "landlock":
        return LandlockJail(config.limits, config.prefix, config.scratch)
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


WARM_UPS: Mapping[str, Callable[[Any], None]] = {"numpy": warm_numpy, "sympy": warm_sympy}


def warm_up(packages: tuple[str, ...]) -> None:
    """Imports the packages and uses each a little."""
    for name in packages:
        module = importlib.import_module(name)
        if name in WARM_UPS:
            WARM_UPS[name](module)
    seed_everything(0)


class Zygote:
    """Waits for the host and for its sessions; both wake it through descriptors."""

    def __init__(self, control: socket.socket, config: ZygoteConfig, jail: Jail) -> None:
        self.control = control
        self.config = config
        self.jail = jail
        self.children: dict[int, SessionChild] = {}
        self.selector = selectors.DefaultSelector()
        self.selector.register(control, selectors.EVENT_READ)

    def serve(self) -> None:
        versions = {name: str(getattr(sys.modules[name], "__version__", "")) for name in self.config.prefix.preload}
        try:
            self._send({"ready": {"packages": versions, "jail": self.jail.describe()}})
            while self._step():
                pass
        except (HostGone, OSError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._end()

    def _step(self) -> bool:
        """One wait; False when the host has gone."""
        for key, _ in self.selector.select():
            if isinstance(key.data, SessionChild):
                self._bury(key.data)
            elif key.data is not None:
                self._forget_remover(key.fd, key.data)
            elif not self._obey():
                return False
        return True

    def _obey(self) -> bool:
        message, descriptors = receive(self.control)
        if not message:
            return False
        request = json.loads(message)
        try:
            self._start(request, descriptors)
        except (JailError, OSError) as error:
            self._send({"started": request["start"], "failed": str(error)})
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
            self.jail.after_fork()  # after a fork that failed, too: the next one needs it
        pidfd = _opened(pid)
        child = SessionChild(number=request["start"], pid=pid, pidfd=pidfd, scratch=scratch)
        self.children[child.number] = child
        self.selector.register(pidfd, selectors.EVENT_READ, child)
        self._send({"started": child.number, "scratch": scratch if self.config.scratch else ""}, pidfd)

    def _become_session(self, seed: int, descriptors: list[int], scratch: str) -> NoReturn:
        """Never returns: whatever happens here, the child must not go on as a second zygote."""
        status = 1
        try:
            sock = _take_descriptors(*descriptors)
            try:
                self.jail.enter(scratch)
                close_descriptors_from(CONTROL + 1)
                _set_up_python(scratch, seed)
                self.jail.seal()
            except (JailError, OSError, ValueError) as error:
                sock.sendall(encode({"id": 0, "status": "killed", "value": None, "error": str(error)}))
                os._exit(1)
            limits = self.config.limits
            loop = SessionLoop(
                sock, output_chars=limits.output_chars, memory_mb=limits.memory_mb, alone=self.jail.single_process
            )
            unload_turnwise()
            loop.serve()
            status = 0
        except OSError:
            status = SOCKET_GONE
        finally:
            os._exit(status)

    def _bury(self, child: SessionChild) -> None:
        """A session has ended: reap it, remove its folder, tell the host why it ended."""
        status = os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1])
        self.selector.unregister(child.pidfd)
        os.close(child.pidfd)
        del self.children[child.number]
        remover = self.jail.remove(child.scratch)
        if remover is not None:
            self.selector.register(os.pidfd_open(remover), selectors.EVENT_READ, remover)
        self._send({"exited": child.number, "status": status})

    def _forget_remover(self, pidfd: int, pid: int) -> None:
        os.waitpid(pid, 0)
        self.selector.unregister(pidfd)
        os.close(pidfd)

    def _end(self) -> None:
        """Nothing stays: the sessions are killed, removers are waited for, then the jail removes the rest itself."""
        for child in self.children.values():
            signal.pidfd_send_signal(child.pidfd, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        self.jail.close()

    def _send(self, message: dict[str, Any], *descriptors: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        self.control.sendmsg([json.dumps(message).encode()], rights)


def _opened(pid: int) -> int:
    """A handle of a child; one that cannot be watched must not live."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _take_descriptors(sock: int, output: int) -> socket.socket:
    """0 is empty, 1 and 2 are the output, 3 is the socket to the host."""
    high = [os.dup(descriptor) for descriptor in (sock, output)]
    for descriptor, number in ((high[1], 1), (high[1], 2), (high[0], CONTROL)):
        os.dup2(descriptor, number, inheritable=number != CONTROL)
    return socket.socket(fileno=CONTROL)


def _set_up_python(scratch: str, seed: int) -> None:
    """A session's own randomness, folder and signals."""
    os.umask(0o077)
    os.nice(NICENESS)
    os.environ.update(HOME=scratch, TMPDIR=scratch)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    seed_everything(seed)


def _host_is_gone(number: int, frame: FrameType | None) -> None:
    raise HostGone


def _import_if_there(name: str) -> None:
    """Some builds of Python lack a library or another."""
    try:
        importlib.import_module(name)
    except ImportError:
        return
