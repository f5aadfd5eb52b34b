"""Write the starter environment and its test from templates."""

import keyword
import re
from pathlib import Path
from string import Template

from turnwise.core.errors import UserError
from turnwise.files.package_data import read_data


def write_starter(name: str, folder: Path) -> tuple[Path, Path]:
    """Write the environment class `name` and its test into `folder`; return both files. Never overwrites a file."""
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name) or keyword.iskeyword(name):
        raise UserError(
            f'"{name}" is not a class name: use letters and digits and start with a capital, such as GuessNumber.'
        )
    module = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    title = module.replace("_", " ").capitalize()
    files = folder / f"{module}.py", folder / f"test_{module}.py"
    for file in files:
        if file.exists():
            raise UserError(f"{file} exists: choose another name, or remove the file.")
    words = {"name": name, "title": title, "module": module, "file": files[0].name, "test": files[1].name}
    for file, starter in zip(files, ("env.txt", "test.txt"), strict=True):
        text = read_data("turnwise.envs.starter", starter)
        try:
            file.write_text(Template(text).substitute(words), encoding="utf-8")
        except OSError as error:
            raise UserError(f"{file} cannot be written ({error.strerror}): change to a writable folder.") from error
    return files
