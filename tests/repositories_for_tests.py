"""Git repositories that tests make."""

import os
import subprocess
from pathlib import Path

AUTHOR = {f"GIT_{role}_{part}": "tests@localhost" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}


def git(*arguments: str, folder: Path) -> None:
    """Run git, with neither the user's nor the system's settings."""
    variables = {**os.environ, **AUTHOR, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    subprocess.run(["git", *arguments], cwd=folder, env=variables, check=True)
