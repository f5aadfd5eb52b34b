"""Run the checks of an environment in a process of their own, which may crash or hang without harming this one."""

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any

from turnwise.concurrency.blocking import allow_interrupts
from turnwise.envs.registry import load_spec
from turnwise.testing.soundness import CHECKS, Finding, Subject, Verdict, run_check

MEMORY_LIMIT = 8 * 2**30
"""Bytes of address space of the process that runs the environment."""
PROGRAM = "from turnwise.testing.supervised import main; main()"


def check_environment(
    env_id: str,
    params: Mapping[str, Any],
    *,
    num_tasks: int,
    step_s: float,
    check_s: float,
    checks: Sequence[str] = tuple(CHECKS),
) -> Iterator[Finding]:
    """Yield the finding of each check. One that takes longer than `check_s`, or ends the process, fails."""
    remaining = list(checks)
    while remaining:
        yield from _run_until_it_dies(
            remaining, {"env": env_id, "params": dict(params), "tasks": num_tasks, "step_s": step_s}, check_s
        )


def _run_until_it_dies(remaining: list[str], work: dict[str, Any], check_s: float) -> Iterator[Finding]:
    """Yield findings while the process lives, then one about its end; remove them from the remaining checks."""
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", PROGRAM, str(writing), json.dumps(work | {"checks": remaining})],
        pass_fds=[writing],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)},
    )
    os.close(writing)
    try:
        with os.fdopen(reading, "rb", buffering=0) as lines:
            while remaining:
                line = _read_line(lines, check_s)
                if not line:
                    yield Finding(
                        check=remaining.pop(0), verdict=Verdict.FAILED, detail=_describe_end(child, line, check_s)
                    )
                    return
                finding = Finding(**json.loads(line) | {"verdict": Verdict(json.loads(line)["verdict"])})
                remaining.remove(finding.check)
                yield finding
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        child.wait()


def _read_line(lines: Any, seconds: float) -> bytes | None:
    """Return the next line; empty if the process ended, None if it wrote none in time."""
    with DefaultSelector() as selector:
        selector.register(lines, EVENT_READ)
        if not selector.select(seconds):
            return None
    line: bytes = lines.readline()
    return line


def _describe_end(child: "subprocess.Popen[bytes]", line: bytes | None, check_s: float) -> str:
    if line is None:
        return f"it did not end within {check_s:g} s: the environment hangs in code that cannot be interrupted"
    status = child.wait()
    return f"the process ended with {f'signal {-status}' if status < 0 else f'status {status}'}: it crashes its process"


def main() -> None:
    """Run checks in this process; write a line per finding to the descriptor that is the first argument."""
    with suppress(ValueError, OSError):  # not every system has it
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    work = json.loads(sys.argv[2])
    subject = Subject(
        spec=load_spec(work["env"]), params=work["params"], num_tasks=work["tasks"], step_s=work["step_s"]
    )
    with os.fdopen(int(sys.argv[1]), "w", encoding="utf-8") as lines, allow_interrupts():
        asyncio.run(_run(work["checks"], subject, lines))


async def _run(checks: Sequence[str], subject: Subject, lines: Any) -> None:
    for name in checks:
        lines.write(json.dumps(asdict(await run_check(name, subject))) + "\n")
        lines.flush()
