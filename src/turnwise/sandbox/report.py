"""What `turnwise doctor` says about the sandbox."""

import asyncio

from turnwise.sandbox.errors import SandboxUnavailable
from turnwise.sandbox.host import Sandbox
from turnwise.sandbox.limits import SandboxLimits
from turnwise.sandbox.probe import TIERS, missing_ground
from turnwise.sandbox.zygote_config import Tier


def sandbox_report() -> list[str]:
    """One line a tier, and one that says which is used; each tier is started and attacked for real."""
    if (problem := missing_ground()) is not None:
        return [f"sandbox: none; {problem}"]
    return asyncio.run(_report())


async def _report() -> list[str]:
    lines = []
    works: list[Tier] = []
    for tier in TIERS:
        try:
            async with await Sandbox.start(SandboxLimits(), tier) as box:  # type: ignore[arg-type]
                found = ", ".join(f"{name} {version}" for name, version in box.packages.items()) or "no packages"
                lines.append(f"  {tier}: works ({box.jail}; {found})")
                works.append(tier)
        except SandboxUnavailable as error:
            lines.append(f"  {tier}: {error}")
    chosen = f"{works[0]} is used" if works else "none: tools that run code cannot be used"
    return [f"sandbox: {chosen}", *lines]
