"""Find what a script installs or downloads. There is no network: packages must be installed on this machine."""

import re
import shlex
import shutil
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from packaging.requirements import InvalidRequirement, Requirement

from turnwise.envs.adapters.harbor.types import Unsupported

SYSTEM_INSTALLERS = ("apt", "apt-get")
PYTHON_INSTALLERS = ("pip", "pip3")
HARMLESS = ("update", "clean", "autoclean", "autoremove", "upgrade", "--version")
OTHERS = ("apk", "brew", "cargo", "conda", "dnf", "gem", "go", "mamba", "npm", "npx", "pipx", "uv", "uvx", "yum")
DOWNLOADERS = ("curl", "wget")
WITH_VALUE = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "-t", "--target", "-o", "--prefix")
COMMAND_WORDS = ("then", "else", "do", "if", "while", "!", "sudo", "exec", "time", "command", "{", "(")
REMOTE = re.compile(r"\b(?:https?|ftp|git|ssh)://(?!localhost|127\.|0\.0\.0\.0)|^git@")
HEREDOC = re.compile(r"<<-?\s*([\"']?)(\w+)\1")
ASSIGNMENT = re.compile(r"\w+=\S*")
SKIP_INSTALLS = (
    "".join(f"{name}() {{ :; }}; export -f {name}; " for name in (*SYSTEM_INSTALLERS, *PYTHON_INSTALLERS))
    + 'python3() { case "$1 $2 $3" in "-m pip install") ;; *) command python3 "$@" ;; esac; }; export -f python3; '
)
"""Functions for a script whose installs `check_script` has found to be installed."""


def check_script(script: str, where: str) -> set[str]:
    """Return the Python packages that a script installs, all of which are installed here. Raises Unsupported."""
    packages: set[str] = set()
    for command in simple_commands(script):
        words = _words(command)
        if words[:1] and (words[0] in ("python", "python3")) and words[1:3] == ["-m", "pip"]:
            words = ["pip", *words[3:]]
        if not words:
            continue
        name = words[0].rpartition("/")[2]
        place = where if command in where else f"{where}: {command.strip()}"
        if name in SYSTEM_INSTALLERS:
            _check_system(words[1:], place)
        elif name in PYTHON_INSTALLERS:
            packages |= _check_python(words[1:], place)
        elif name in OTHERS and (name != "go" or words[1:2] in (["get"], ["install"])):
            raise Unsupported(place, f"{name} cannot install anything here: there is no network")
        elif (name in DOWNLOADERS or words[:2] == ["git", "clone"]) and any(map(REMOTE.search, words)):
            raise Unsupported(place, "there is no network")
    return packages


def has_installs(script: str) -> bool:
    """Return whether a script runs an installer."""
    return any(
        words[0] in (*SYSTEM_INSTALLERS, *PYTHON_INSTALLERS) or words[1:3] == ["-m", "pip"]
        for words in map(_words, simple_commands(script))
        if words
    )


def simple_commands(script: str) -> list[str]:
    """Split a script at lines and operators, without the texts of here-documents. Rough: it need not be a parser."""
    commands, ends = list[str](), list[str]()
    for line in script.replace("\\\n", " ").splitlines():
        if ends:
            if line.strip() == ends[0]:
                ends.pop(0)
            continue
        ends += [match[2] for match in HEREDOC.finditer(line)]
        if not line.lstrip().startswith("#"):
            commands += re.split(r"&&|\|\||;|\|", line)
    return [command for command in commands if command.strip()]


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command, comments=True)
    except ValueError:  # quotes that span lines
        words = command.split()
    while words and (words[0] in COMMAND_WORDS or ASSIGNMENT.fullmatch(words[0])):
        words.pop(0)
    return words


def _check_system(words: list[str], where: str) -> None:
    names = [word for word in words if not word.startswith("-")]
    if not names or names[0] in HARMLESS:
        return
    if names[0] != "install":
        raise Unsupported(where, f"{names[0]} is not supported")
    for name in names[1:]:
        if not is_system_package(name.partition("=")[0].partition(":")[0]):
            raise Unsupported(where, f"{name} is not installed on this machine: install it here first")


@cache
def is_system_package(name: str) -> bool:
    """Return whether the Debian package is installed on this machine, whose programs the sandbox shows."""
    if shutil.which("dpkg-query") is None:
        return False
    done = subprocess.run(
        ["dpkg-query", "-W", "-f=${db:Status-Status}", "--", name], capture_output=True, text=True, check=False
    )
    return done.stdout == "installed"


def _check_python(words: list[str], where: str) -> set[str]:
    if not words or words[0] in ("list", "freeze", "show", "--version", "cache"):
        return set()
    if words[0] != "install":
        raise Unsupported(where, f"pip {words[0]} is not supported")
    packages, skip = set[str](), False
    for word in words[1:]:
        if skip:
            skip = False
        elif word in WITH_VALUE:
            skip = True
        elif word in ("-r", "--requirement", "-e", "--editable", "-c") or "/" in word or "://" in word or word == ".":
            raise Unsupported(where, "only packages by name are supported")
        elif not word.startswith("-"):
            packages |= _check_requirement(word, where)
    return packages


def _check_requirement(text: str, where: str) -> set[str]:
    try:
        requirement = Requirement(text)
        here = version(requirement.name)
    except InvalidRequirement as error:
        raise Unsupported(where, "it is not a requirement") from error
    except PackageNotFoundError as error:
        if text in ("pip", "setuptools", "wheel"):
            return set()
        raise Unsupported(where, f"{text} is not installed on this machine: install it here first") from error
    if here not in requirement.specifier:
        raise Unsupported(where, f"{requirement.name} is installed here in version {here}")
    if requirement.name.lower() == "turnwise":
        raise Unsupported(where, "turnwise contains graders and answers")
    return {requirement.name}
