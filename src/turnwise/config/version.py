"""Version of turnwise."""

from importlib.metadata import PackageNotFoundError, version


def installed_version() -> str:
    """Return the installed version; "unknown" if the package is on the path but not installed."""
    try:
        return version("turnwise")
    except PackageNotFoundError:
        return "unknown"
