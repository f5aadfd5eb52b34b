"""The host's side of one session's process: sends code, collects output and the answer, and judges what comes back."""

import asyncio
import os
import signal
import socket
import time
from contextlib import suppress
from typing import Any, get_args

from turnwise.core.truncation import OutputBuffer, truncate_middle
from turnwise.sandbox.processes import descendants, is_stopped, process_usage
from turnwise.sandbox.protocol import SOCKET_GONE, FrameBuffer, FrameError, encode
from turnwise.sandbox.types import MEBIBYTE, RunResult, RunStatus, SandboxFailure, SandboxLimits
from turnwise.sandbox.watchdog import Watchdog, WatchedCall
from turnwise.sandbox.zygote_process import ANSWER_S, SessionHandle, ZygoteProcess

PIECE = 1 << 16
OUTLIVED = "processes that outlive their call"
LOOK_AGAIN_S = 0.05
LOST = "; its variables are lost"
CLOSED = "its code closed a descriptor that is not its own"
ABORTS = (-signal.SIGABRT, -signal.SIGTRAP)
"""SIGABRT does not end the first process of a namespace: then the C library traps, on ARM; on x86 it halts, which looks
like SIGSEGV.
"""


class SessionProcess:
    """Between calls the process is stopped: threads that a call left behind burn nothing and cannot act.

    `dead`: no further call can be made. `closed`: its descriptors are given back, too.
    """

    def __init__(self, zygote: ZygoteProcess, watchdog: Watchdog, limits: SandboxLimits) -> None:
        self.zygote = zygote
        self.watchdog = watchdog
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.dead = False
        self.closed = False
        self.started: SessionHandle | None = None
        self.calls = 0
        self.answer: asyncio.Future[dict[str, Any]] | None = None
        self.watch: WatchedCall | None = None
        self.look: asyncio.TimerHandle | None = None
        self.frames = FrameBuffer(cap=16 * limits.output_chars + 4096)
        self.output = OutputBuffer(keep=4 * limits.output_chars)

    async def start(self, seed: int) -> None:
        """SandboxFailure if the zygote cannot do it; nothing is left then."""
        try:
            theirs, write_end = self._make_channels()
        except OSError as error:
            raise SandboxFailure(f"no descriptors for a session of the sandbox: {error.strerror}") from None
        try:
            try:
                self.started = await self.zygote.start_session(sock=theirs, output=write_end, seed=seed)
            finally:
                theirs.close()
                os.close(write_end)
            self._listen()
            ready = await asyncio.wait_for(self._expect(), ANSWER_S)
            if ready["status"] != "ok":
                raise SandboxFailure(f"the sandbox could not jail a session: {ready['error']}")
        except (TimeoutError, FrameError, EOFError, OSError):
            self.close()
            raise SandboxFailure("a session of the sandbox died while it started") from None
        except BaseException:
            self.close()
            raise

    def _make_channels(self) -> tuple[socket.socket, int]:
        """Ours are kept; theirs are for the session."""
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.pipe, write_end = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self.sock.close()
            theirs.close()
            raise
        return theirs, write_end

    async def call(self, code: str, timeout_s: float) -> RunResult:
        """Exactly one result, whatever the code does. Cancelled: the process is killed at once."""
        assert self.started is not None
        begin = time.monotonic()
        self.calls += 1
        self.output = OutputBuffer(keep=4 * self.limits.output_chars)
        self.watch = watch = WatchedCall(
            pid=self.started.pid,
            pidfd=self.started.pidfd,
            scratch=self.started.scratch,
            base_bytes=self.zygote.base_bytes,
            timeout_s=timeout_s,
            deadline=begin + timeout_s,
        )
        self.watchdog.add(watch)
        try:
            answer = await self._answer(code, watch)
        except BaseException:
            self.close()
            raise
        return self._result(answer, watch, time.monotonic() - begin)

    def close(self) -> None:
        """Kills it with all that it started; safe at any time and more than once."""
        if self.closed:
            return
        self.closed = self.dead = True
        if self.look is not None:
            self.look.cancel()
        self.loop.remove_reader(self.sock)
        self.loop.remove_reader(self.pipe)
        self.sock.close()
        os.close(self.pipe)
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(SandboxFailure("the sandbox was closed during a call"))
        if self.started is not None:
            self._signal(signal.SIGKILL)
            os.close(self.started.pidfd)

    async def _answer(self, code: str, watch: WatchedCall) -> dict[str, Any]:
        """The answer; or, where there is none, what the process died of, in the same form.

        The watchdog may kill while an answer is on its way: what it wrote counts, once it can write no more.
        """
        problem: Exception | None = None
        answer: dict[str, Any] = {}
        try:
            answer = await self._exchange(code)
        except (EOFError, FrameError, OSError) as error:
            problem = error
        finally:
            self.watchdog.remove(watch)
            self.watch = None
        if problem is not None or watch.status is not None:
            return await self._died(problem, watch)
        return answer

    async def _exchange(self, code: str) -> dict[str, Any]:
        waiting = self._expect()
        try:
            self._signal(signal.SIGCONT)
            await self.loop.sock_sendall(self.sock, encode({"id": self.calls, "code": code}))
            answer = await waiting
            self._stop()
        finally:
            if not waiting.cancel() and not waiting.cancelled():
                waiting.exception()  # it may never be awaited; nobody need hear of that
        return answer

    def _stop(self) -> None:
        """Nothing of a call outlives it: processes are gone (the inside ends them, here it is checked), threads stand
        still. First stopped, then looked at: the other way round, what it starts in between would not be seen.
        """
        assert self.started is not None
        self._signal(signal.SIGSTOP)
        self._drain()
        if self.frames.bytes or self.dead:
            raise FrameError("more than one answer")
        if not self.started.scratch and descendants(self.started.pid):
            raise FrameError(OUTLIVED)
        if not self.started.scratch and self.look is None:
            self.look = self.loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        """A process that was being started while its parent was stopped appears late. After a call, not during one."""
        assert self.started is not None
        self.look = None
        if self.watch is not None:
            return
        try:
            still = is_stopped(self.started.pid)
            alone = not descendants(self.started.pid)
        except OSError:  # what cannot be watched must not run
            still = alone = False
        if not alone:
            self._end_between_calls()
        elif not still:
            self.look = self.loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _end_between_calls(self) -> None:
        """It acted without being asked: the next call finds it dead and starts another."""
        self.dead = True
        self.loop.remove_reader(self.sock)
        self.loop.remove_reader(self.pipe)
        self._signal(signal.SIGKILL)

    async def _died(self, error: Exception | None, watch: WatchedCall) -> dict[str, Any]:
        """Kill what is left, learn why it ended."""
        assert self.started is not None
        self.loop.remove_reader(self.sock)
        lived = isinstance(error, EOFError) and self._lives()
        self._signal(signal.SIGKILL)
        try:
            status = await asyncio.wait_for(asyncio.shield(self.started.exited), ANSWER_S)
        except TimeoutError:
            status = -signal.SIGKILL
        self._drain()
        self.close()
        if watch.status is not None:
            return {"status": watch.status, "value": None, "error": f"the session was killed: {watch.reason}{LOST}"}
        if not self.zygote.alive:
            raise SandboxFailure("the sandbox's zygote died during a call")
        if isinstance(error, FrameError):
            return {"status": "killed", "value": None, "error": f"the session was killed: {error}{LOST}"}
        cause = CLOSED if lived or status == SOCKET_GONE else _cause(status)
        return {"status": "killed", "value": None, "error": f"the session died: {cause}{LOST}"}

    def _lives(self) -> bool:
        """Whether it has its memory, which a process gives up before it closes its descriptors."""
        assert self.started is not None
        found = process_usage(self.started.pid)
        return found is not None and found.resident_bytes > 0

    def _result(self, answer: dict[str, Any], watch: WatchedCall, seconds: float) -> RunResult:
        status: RunStatus = answer["status"]
        error: str | None = answer["error"]
        if watch.interrupted and status == "timeout":
            error = f"{error}\n({self._why(watch)})" if error else self._why(watch)
        if status == "timeout" and watch.interrupted != "timeout":
            status = "error"  # the code raised KeyboardInterrupt itself, or printed too much
        limit = self.limits.output_chars
        return RunResult(
            output=self.output.text(limit),
            value=None if answer["value"] is None else truncate_middle(_text(answer["value"]), limit),
            error=None if error is None else truncate_middle(_text(error), limit),
            status=status,
            seconds=seconds,
        )

    def _why(self, watch: WatchedCall) -> str:
        if watch.interrupted == "output":
            return f"stopped: more than {self.limits.output_mb} MiB of output"
        return f"stopped: the time limit is {watch.timeout_s:g} s"

    def _listen(self) -> None:
        self.sock.setblocking(False)
        os.set_blocking(self.pipe, False)
        self.loop.add_reader(self.sock, self._on_frame)
        self.loop.add_reader(self.pipe, self._on_output)

    def _expect(self) -> "asyncio.Future[dict[str, Any]]":
        self.answer = self.loop.create_future()
        return self.answer

    def _on_frame(self) -> None:
        """One answer is expected while a call runs; anything else ends the session."""
        error: Exception | None = None
        frame = None
        try:
            data = self.sock.recv(PIECE)
            frame = self._checked(self.frames.feed(data)) if data else None
            error = None if data else EOFError()
        except BlockingIOError:
            return
        except (FrameError, OSError) as problem:
            error = problem
        waiting = self.answer
        if waiting is None or waiting.done():
            self._end_between_calls()  # it spoke, or broke
        elif error is not None:
            self.loop.remove_reader(self.sock)
            waiting.set_exception(error)
        elif frame is not None:
            self.answer = None
            waiting.set_result(frame)

    def _checked(self, frame: dict[str, Any] | None) -> dict[str, Any] | None:
        if frame is None:
            return None
        texts = all(frame.get(name) is None or isinstance(frame.get(name), str) for name in ("value", "error"))
        known = isinstance(frame.get("status"), str) and frame["status"] in get_args(RunStatus)
        if frame.keys() != {"id", "status", "value", "error"} or not texts or not known:
            raise FrameError("an answer of the wrong form")
        if type(frame["id"]) is not int or frame["id"] != self.calls:
            raise FrameError("an answer to another call")
        return frame

    def _on_output(self) -> None:
        try:
            data = os.read(self.pipe, PIECE)
        except BlockingIOError:
            return
        if not data:
            self.loop.remove_reader(self.pipe)
            return
        self.output.add(data)
        if self.output.total <= self.limits.output_mb * MEBIBYTE:
            return
        if self.watch is not None:
            self.watch.interrupt("output", grace_s=self.limits.grace_s)
        else:
            self._end_between_calls()

    def _drain(self) -> None:
        """What is in the pipe now; more than it can hold is the output of a process that still runs."""
        with suppress(BlockingIOError):
            for _ in range(32):
                data = os.read(self.pipe, PIECE)
                if not data:
                    return
                self.output.add(data)

    def _signal(self, number: int) -> None:
        assert self.started is not None
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.started.pidfd, number)


def _text(text: str) -> str:
    """JSON can spell halves of surrogate pairs, which no file and no tokenizer takes: they are written as escapes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cause(status: int) -> str:
    if status == -signal.SIGSYS:
        return "a forbidden system call"
    if status == -signal.SIGKILL:
        return "killed by its own code, or by the kernel (out of memory, or processor time used up)"
    if status in ABORTS:
        return "aborted, by its own code or by a library"
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"the interpreter was ended with status {status}"
