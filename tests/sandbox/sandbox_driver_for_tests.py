"""Run attacks against one tier and print the problems as JSON. A program, so that it can run as another user.

python sandbox_driver_for_tests.py attacks|outward TIER [part of a name]
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Literal, cast

from sandbox_attacks_for_tests import ALL as OUTWARD
from sandbox_canaries_for_tests import MARK, Attack, Canaries
from sandbox_limit_attacks_for_tests import ALL as INWARD

from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.processes import descendants
from turnwise.sandbox.types import RunResult, SandboxLimits, SandboxUnavailable

LIMITS = SandboxLimits(timeout_s=60.0, memory_mb=256, output_chars=2000, scratch_mb=48, grace_s=1.0)
AT_ONCE = 12
Tier = Literal["namespaces", "landlock"]
OWN_ROOT = "own_root"
"""The tier namespaces, with a root of its own for each session."""


async def run_attack(box: Sandbox, one: Attack) -> str | None:
    """Return the problem; None if the sandbox held."""
    canaries = Canaries()
    try:
        *first, last = (fill(code, canaries.words()) for code in one.codes)
        limits = one.timeout_s if isinstance(one.timeout_s, tuple) else (one.timeout_s,) * len(one.codes)
        async with box.session() as session:
            results = [await session.run(code, timeout_s=limit) for code, limit in zip(first, limits, strict=False)]
            await asyncio.sleep(one.pause_s)
            results.append(await session.run(last, timeout_s=limits[-1]))
        return _judge(one, results) or canaries.damage()
    finally:
        canaries.close()


def fill(code: str, words: dict[str, str]) -> str:
    for word, value in words.items():
        code = code.replace(word, value)
    return code


def _judge(one: Attack, results: list[RunResult]) -> str | None:
    text = "\n".join(f"{result.output} {result.value} {result.error}" for result in results)
    last = results[-1]
    broken = [line for line in text.splitlines() if line.startswith("BROKEN")]
    if broken:
        return broken[0]
    if MARK in text:
        return "a secret of the host came out"
    if last.status not in one.status:
        return f"ended as {last.status}: {last}"
    if one.prints is not None and one.prints not in last.output:
        return f"did not print {one.prints!r}: {last}"
    limit = LIMITS.output_chars + 200
    if text.encode("utf-8", "replace").decode() != text:
        return "a text that UTF-8 cannot encode"
    if any(len(part or "") > limit for result in results for part in (result.output, result.value, result.error)):
        return "a text is longer than the limit"
    return None


async def run_all(which: str, tier: Tier, part: str, *, own_root: bool) -> dict[str, str]:
    """Return problems by attack; `start` if the tier is not available."""
    os.environ["SECRET_KEY"] = f"{MARK}environment"
    try:
        box = await Sandbox.start(LIMITS, tier, packages=(), own_root=own_root)
    except SandboxUnavailable as error:
        return {"start": str(error)}
    attacks = [
        one for one in (OUTWARD if which == "outward" else OUTWARD + INWARD) if tier in one.tiers and part in one.name
    ]
    gate = asyncio.Semaphore(AT_ONCE)

    async def guarded(one: Attack) -> str | None:
        async with gate:
            return await run_attack(box, one)

    found = await asyncio.gather(*(guarded(one) for one in attacks))
    problems = {one.name: problem for one, problem in zip(attacks, found, strict=True) if problem is not None}
    async with box.session() as session:
        if (await session.run("6 * 7")).value != "42":
            problems["afterwards"] = "a fresh session does not work"
    await box.close()
    return problems | _left_behind() | {"_jail": box.jail, "_count": str(len(attacks))}


def _left_behind() -> dict[str, str]:
    children = descendants(os.getpid())
    names = [Path(f"/proc/{pid}/cmdline").read_text()[:80] for pid in children]
    return {"left behind": str(names)} if children else {}


if __name__ == "__main__":
    own_root = sys.argv[2] == OWN_ROOT
    tier = cast(Tier, "namespaces" if own_root else sys.argv[2])
    result = asyncio.run(run_all(sys.argv[1], tier, " ".join(sys.argv[3:]), own_root=own_root))
    sys.stdout.write(json.dumps(result))
