"""Render SVG with resvg inside the sandbox: no files, no network, limits of time and memory.

resvg reads the files that an image element names, and some SVG of a few hundred bytes makes it run for hours, fill the
memory or crash. `scene.read_svg` lets nothing of the kind pass; the sandbox holds if it ever does.
"""

import asyncio
import base64
import zlib
from dataclasses import dataclass
from functools import lru_cache

import numpy

from turnwise.concurrency.per_loop import PerLoop
from turnwise.sandbox.host import SandboxSession
from turnwise.sandbox.shared import SharedSandbox
from turnwise.sandbox.types import RunResult, SandboxLimits

PACKAGES = ("resvg_py", "pillow")
MAX_SIDE = 512
"""Width and height of a picture in pixels, at most."""
NUM_SESSIONS = 8
"""Pictures that are rendered concurrently, at most."""
MAX_PICTURES = 100
"""Pictures per session, so that memory and CPU time that earlier pictures used do not count against later ones."""
CODE = """
import base64, io, resvg_py, zlib
from PIL import Image
_png = resvg_py.svg_to_bytes(
    svg_string={svg!r}, width={side}, height={side}, background="#ffffff", skip_system_fonts=True
)
_pixels = Image.open(io.BytesIO(_png), formats=("PNG",)).convert("RGB").tobytes()
base64.b64encode(zlib.compress(_pixels, 1)).decode()
"""
"""The result is plain pixels: no image decoder outside of the sandbox reads what the renderer wrote."""


@dataclass(slots=True)
class _Slot:
    """Place of a session in the pool; its session is replaced after MAX_PICTURES, or after a failure."""

    session: SandboxSession | None = None
    num_pictures: int = 0


class SvgRenderer:
    """Renders in sessions that are kept for the next picture: to start one takes longer than to draw."""

    def __init__(self, sandbox: SharedSandbox) -> None:
        self._sandbox = sandbox
        self._free = PerLoop(_make_slots)

    async def render(self, svg: str, side: int) -> numpy.ndarray:
        """Return pixels of (side, side, 3) from 0 to 255.

        Raises ValueError, with a reason for the agent, for SVG that cannot be rendered, and SandboxFailure if the
        sandbox is broken.
        """
        free = self._free.get()
        slot = await free.get()
        try:
            result = await self._run(slot, CODE.format(svg=svg, side=side))
        finally:
            free.put_nowait(slot)
        if result.status != "ok":
            raise ValueError(self._reason(result))
        return _read_pixels(result.value or "", side)

    async def _run(self, slot: _Slot, code: str) -> RunResult:
        session, slot.session = slot.session, None  # stays None if this call does not succeed
        if session is None:
            session, slot.num_pictures = await self._sandbox.session(), 0
        try:
            result = await session.run(code)
            slot.num_pictures += 1
            if result.status == "ok" and slot.num_pictures < MAX_PICTURES:
                slot.session = session
            return result
        finally:
            if slot.session is None:
                session.close()

    def _reason(self, result: RunResult) -> str:
        limits = self._sandbox.limits
        if result.status == "timeout":
            return f"the SVG takes longer than {limits.timeout_s:g} s to render"
        if result.status == "memory":
            return f"the SVG takes more than {limits.memory_mb} MiB to render"
        if result.status == "killed":
            return f"the SVG crashes the renderer, or takes more than {limits.memory_mb} MiB"
        return f"the SVG cannot be rendered ({(result.error or '').splitlines()[-1]})"


def _make_slots() -> "asyncio.LifoQueue[_Slot]":
    """The last session used is the next one: one episode at a time starts only one."""
    slots: asyncio.LifoQueue[_Slot] = asyncio.LifoQueue()
    for _ in range(NUM_SESSIONS):
        slots.put_nowait(_Slot())
    return slots


def _read_pixels(value: str, side: int) -> numpy.ndarray:
    """Read the repr of compressed pixels in base64. A renderer that read the agent's SVG may send anything."""
    size = 3 * side * side
    try:
        pixels = zlib.decompressobj().decompress(base64.b64decode(value[1:-1], validate=True), size + 1)
    except (ValueError, zlib.error):
        pixels = b""
    if len(pixels) != size:
        raise ValueError("the SVG cannot be rendered")
    return numpy.frombuffer(pixels, numpy.uint8).reshape(side, side, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Renderers:
    targets: SvgRenderer
    """For our own SVG only: a renderer that read an agent's SVG never sees a target."""
    answers: SvgRenderer


@lru_cache(maxsize=8)
def shared_renderers(timeout_s: float, memory_mb: int) -> Renderers:
    """Return the renderers that all episodes with equal limits share. Their sandbox starts with the first picture."""
    limits = SandboxLimits(timeout_s=timeout_s, memory_mb=memory_mb, processes=1, output_chars=5 * MAX_SIDE * MAX_SIDE)
    sandbox = SharedSandbox(limits, PACKAGES)
    return Renderers(targets=SvgRenderer(sandbox), answers=SvgRenderer(sandbox))
