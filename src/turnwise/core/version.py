"""The version of turnwise that runs."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the installed version; "unknown" where the package is on the path but not installed."""
    try:
        return version("turnwise")
    except PackageNotFoundError:
        return "unknown"
