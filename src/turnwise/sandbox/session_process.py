"""The host's side of one session's process: send code, collect output, check the answer."""

import asyncio
import os
import signal
import socket
import time
from contextlib import suppress
from typing import Any, get_args

from turnwise.sandbox.processes import descendants, is_stopped, process_usage
from turnwise.sandbox.protocol import SOCKET_CLOSED, FrameBuffer, FrameError, encode
from turnwise.sandbox.types import MEBIBYTE, RunResult, RunStatus, SandboxFailure, SandboxLimits
from turnwise.sandbox.watchdog import Watchdog, WatchedCall
from turnwise.sandbox.zygote_process import ANSWER_TIMEOUT_S, SessionHandle, ZygoteProcess
from turnwise.text.truncation import OutputBuffer, truncate_middle

CHUNK_BYTES = 1 << 16
RECHECK_S = 0.05
OUTLIVED = "processes that outlive their call"
VARIABLES_LOST = "; its variables are lost"
CLOSED = "its code closed a descriptor that is not its own"
ABORTS = (-signal.SIGABRT, -signal.SIGTRAP)
"""Signals of an abort. SIGABRT does not end the first process of a pid namespace: the C library then traps on ARM, and
halts on x86, which looks like SIGSEGV.
"""


class SessionProcess:
    """One session. Between calls its process is stopped: threads left behind by a call use no CPU and cannot act.

    `dead`: no further call can be made. `closed`: its descriptors are closed as well.
    """

    def __init__(self, zygote: ZygoteProcess, watchdog: Watchdog, limits: SandboxLimits) -> None:
        self.zygote = zygote
        self.watchdog = watchdog
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.dead = False
        self.closed = False
        self.handle: SessionHandle | None = None
        self.calls = 0
        self.answer: asyncio.Future[dict[str, Any]] | None = None
        self.running: WatchedCall | None = None
        self.recheck: asyncio.TimerHandle | None = None
        self.frames = FrameBuffer(cap=16 * limits.output_chars + 4096)
        self.output = OutputBuffer(keep=4 * limits.output_chars)

    async def start(self, seed: int) -> None:
        """Fork the process. On SandboxFailure nothing of it stays."""
        try:
            theirs, write_end = self._make_channels()
        except OSError as error:
            raise SandboxFailure(f"no file descriptors for a sandbox session: {error.strerror}") from None
        try:
            try:
                self.handle = await self.zygote.start_session(sock=theirs, output=write_end, seed=seed)
            finally:
                theirs.close()
                os.close(write_end)
            self._listen()
            ready = await asyncio.wait_for(self._expect(), ANSWER_TIMEOUT_S)
            if ready["status"] != "ok":
                raise SandboxFailure(f"the sandbox could not jail a session: {ready['error']}")
        except (TimeoutError, FrameError, EOFError, OSError):
            self.close()
            raise SandboxFailure("a sandbox session died during its start") from None
        except BaseException:
            self.close()
            raise

    def _make_channels(self) -> tuple[socket.socket, int]:
        """Create socket and output pipe; return the session's ends."""
        self.sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.pipe, write_end = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self.sock.close()
            theirs.close()
            raise
        return theirs, write_end

    async def call(self, code: str, timeout_s: float) -> RunResult:
        """Run code and return exactly one result, whatever the code does. Cancelling kills the process."""
        assert self.handle is not None
        start = time.monotonic()
        self.calls += 1
        self.output = OutputBuffer(keep=4 * self.limits.output_chars)
        self.running = call = WatchedCall(
            pid=self.handle.pid,
            pidfd=self.handle.pidfd,
            scratch=self.handle.scratch,
            base_bytes=self.zygote.base_bytes,
            timeout_s=timeout_s,
            deadline=start + timeout_s,
        )
        self.watchdog.add(call)
        try:
            answer = await self._answer(code, call)
        except BaseException:
            self.close()
            raise
        return self._result(answer, call, time.monotonic() - start)

    def close(self) -> None:
        """Kill the process with everything it started. Safe at any time and more than once."""
        if self.closed:
            return
        self.closed = self.dead = True
        if self.recheck is not None:
            self.recheck.cancel()
        self.loop.remove_reader(self.sock)
        self.loop.remove_reader(self.pipe)
        self.sock.close()
        os.close(self.pipe)
        if self.answer is not None and not self.answer.done():
            self.answer.set_exception(SandboxFailure("the sandbox was closed during a call"))
        if self.handle is not None:
            self._signal(signal.SIGKILL)
            os.close(self.handle.pidfd)

    async def _answer(self, code: str, call: WatchedCall) -> dict[str, Any]:
        """Return the session's answer or, in the same form, why it died.

        The watchdog may kill while an answer is on its way: its verdict counts.
        """
        problem: Exception | None = None
        answer: dict[str, Any] = {}
        try:
            answer = await self._exchange(code)
        except (EOFError, FrameError, OSError) as error:
            problem = error
        finally:
            self.watchdog.remove(call)
            self.running = None
        if problem is not None or call.status is not None:
            return await self._collect_exit(problem, call)
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
                waiting.exception()  # mark it as retrieved
        return answer

    def _stop(self) -> None:
        """Stop the process and check that the call left no other process behind.

        The session ends them itself. Stop first: a process started after the check would be missed.
        """
        assert self.handle is not None
        self._signal(signal.SIGSTOP)
        self._drain()
        if self.frames.bytes or self.dead:
            raise FrameError("more than one answer")
        if not self.handle.scratch and descendants(self.handle.pid):
            raise FrameError(OUTLIVED)
        if not self.handle.scratch and self.recheck is None:
            self.recheck = self.loop.call_later(RECHECK_S, self._recheck)

    def _recheck(self) -> None:
        """Check again between calls: a process forked while its parent was stopped appears late."""
        assert self.handle is not None
        self.recheck = None
        if self.running is not None:
            return
        try:
            stopped = is_stopped(self.handle.pid)
            alone = not descendants(self.handle.pid)
        except OSError:  # a session that cannot be watched must not run
            stopped = alone = False
        if not alone:
            self._end_between_calls()
        elif not stopped:
            self.recheck = self.loop.call_later(RECHECK_S, self._recheck)

    def _end_between_calls(self) -> None:
        """Kill a session that acted between calls. The next call finds it dead and starts another."""
        self.dead = True
        self.loop.remove_reader(self.sock)
        self.loop.remove_reader(self.pipe)
        self._signal(signal.SIGKILL)

    async def _collect_exit(self, error: Exception | None, call: WatchedCall) -> dict[str, Any]:
        """Kill the session and return why it died, in the form of an answer."""
        assert self.handle is not None
        self.loop.remove_reader(self.sock)
        was_alive = isinstance(error, EOFError) and self._is_alive()
        self._signal(signal.SIGKILL)
        try:
            exit_code = await asyncio.wait_for(asyncio.shield(self.handle.exited), ANSWER_TIMEOUT_S)
        except TimeoutError:
            exit_code = -signal.SIGKILL
        self._drain()
        self.close()
        if call.status is not None:
            return _death(call.status, f"the session was killed: {call.reason}")
        if not self.zygote.alive:
            raise SandboxFailure("the sandbox's zygote died during a call")
        if isinstance(error, FrameError):
            return _death("killed", f"the session was killed: {error}")
        cause = CLOSED if was_alive or exit_code == SOCKET_CLOSED else _cause(exit_code)
        return _death("killed", f"the session died: {cause}")

    def _is_alive(self) -> bool:
        """Return whether the process has memory, which it releases before it closes its descriptors."""
        assert self.handle is not None
        usage = process_usage(self.handle.pid)
        return usage is not None and usage.resident_bytes > 0

    def _result(self, answer: dict[str, Any], call: WatchedCall, seconds: float) -> RunResult:
        status: RunStatus = answer["status"]
        error: str | None = answer["error"]
        if call.interrupted and status == "timeout":
            reason = self._interrupt_reason(call)
            error = f"{error}\n({reason})" if error else reason
        if status == "timeout" and call.interrupted != "timeout":
            status = "error"  # the code raised KeyboardInterrupt itself, or printed too much
        limit = self.limits.output_chars
        return RunResult(
            output=self.output.text(limit),
            value=None if answer["value"] is None else truncate_middle(_escape_surrogates(answer["value"]), limit),
            error=None if error is None else truncate_middle(_escape_surrogates(error), limit),
            status=status,
            seconds=seconds,
        )

    def _interrupt_reason(self, call: WatchedCall) -> str:
        if call.interrupted == "output":
            return f"stopped: more than {self.limits.output_mb} MiB of output"
        return f"stopped: the time limit is {call.timeout_s:g} s"

    def _listen(self) -> None:
        self.sock.setblocking(False)
        os.set_blocking(self.pipe, False)
        self.loop.add_reader(self.sock, self._on_frame)
        self.loop.add_reader(self.pipe, self._on_output)

    def _expect(self) -> "asyncio.Future[dict[str, Any]]":
        self.answer = self.loop.create_future()
        return self.answer

    def _on_frame(self) -> None:
        """Receive the answer of the running call. Any other message ends the session."""
        error: Exception | None = None
        frame = None
        try:
            data = self.sock.recv(CHUNK_BYTES)
            frame = self._validate(self.frames.feed(data)) if data else None
            error = None if data else EOFError()
        except BlockingIOError:
            return
        except (FrameError, OSError) as problem:
            error = problem
        waiting = self.answer
        if waiting is None or waiting.done():
            self._end_between_calls()  # unexpected data, or the socket closed
        elif error is not None:
            self.loop.remove_reader(self.sock)
            waiting.set_exception(error)
        elif frame is not None:
            self.answer = None
            waiting.set_result(frame)

    def _validate(self, frame: dict[str, Any] | None) -> dict[str, Any] | None:
        if frame is None:
            return None
        valid_texts = all(frame.get(name) is None or isinstance(frame.get(name), str) for name in ("value", "error"))
        valid_status = isinstance(frame.get("status"), str) and frame["status"] in get_args(RunStatus)
        if frame.keys() != {"id", "status", "value", "error"} or not valid_texts or not valid_status:
            raise FrameError("an answer of the wrong form")
        if type(frame["id"]) is not int or frame["id"] != self.calls:
            raise FrameError("an answer to another call")
        return frame

    def _on_output(self) -> None:
        try:
            data = os.read(self.pipe, CHUNK_BYTES)
        except BlockingIOError:
            return
        if not data:
            self.loop.remove_reader(self.pipe)
            return
        self.output.add(data)
        if self.output.total <= self.limits.output_mb * MEBIBYTE:
            return
        if self.running is not None:
            self.running.interrupt("output", grace_s=self.limits.grace_s)
        else:
            self._end_between_calls()

    def _drain(self) -> None:
        """Read what is in the pipe, but no more than it can hold: a process may still be writing."""
        with suppress(BlockingIOError):
            for _ in range(32):
                data = os.read(self.pipe, CHUNK_BYTES)
                if not data:
                    return
                self.output.add(data)

    def _signal(self, number: int) -> None:
        assert self.handle is not None
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle.pidfd, number)


def _death(status: RunStatus, reason: str) -> dict[str, Any]:
    return {"status": status, "value": None, "error": f"{reason}{VARIABLES_LOST}"}


def _escape_surrogates(text: str) -> str:
    """Escape unpaired surrogates, which JSON can express but UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _cause(exit_code: int) -> str:
    if exit_code == -signal.SIGSYS:
        return "a forbidden system call"
    if exit_code == -signal.SIGKILL:
        return "killed by its own code, or by the kernel (out of memory, or processor time used up)"
    if exit_code in ABORTS:
        return "aborted, by its own code or by a library"
    if exit_code < 0:
        return f"signal {signal.Signals(-exit_code).name}"
    return f"the interpreter was ended with status {exit_code}"
