"""Read a Dockerfile without Docker: the files, variables and commands that the sandbox can reproduce.

Anything else raises `Unsupported`, whose line names the instruction, so that no task runs in another environment than
its author meant.
"""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from turnwise.envs.adapters.harbor.installs import check_script
from turnwise.envs.adapters.harbor.types import Unsupported
from turnwise.sandbox.files import FileEntry

PLAIN_IMAGES = ("ubuntu", "debian", "bash", "buildpack-deps", "python")
"""Base images with a shell and the usual programs, which the sandbox's own root stands in for."""
IGNORED = ("CMD", "LABEL", "MAINTAINER", "STOPSIGNAL")
"""Instructions without an effect: Harbor starts the shell itself."""
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")
HEREDOC = re.compile(r"<<-?\s*[\"']?\w")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Files that a COPY or ADD instruction writes."""

    entries: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Command of a RUN instruction."""

    command: str
    where: str
    workdir: str
    env: Mapping[str, str]


@dataclass(slots=True, kw_only=True)
class Plan:
    """Instructions to build an image."""

    steps: list[Copy | Run] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    workdir: str = "/"
    packages: set[str] = field(default_factory=set)
    """Python packages that it installs, which are installed here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    name: str
    text: str
    line: int


def read_dockerfile(path: Path, *, more_images: Sequence[str] = ()) -> Plan:
    """Return the plan of a Dockerfile, whose folder is the build context. Raises Unsupported."""
    plan, arguments = Plan(), dict[str, str]()
    num_from = 0
    for instruction in split_instructions(path.read_text(encoding="utf-8")):
        where = f"environment/{path.name} line {instruction.line}: {instruction.name} {instruction.text}"
        expanded = _expand(instruction.text, {**arguments, **plan.env})
        if instruction.name == "FROM":
            num_from += 1
            if num_from > 1:
                raise Unsupported(where, "several stages cannot be built here")
            _check_base(expanded, where, more_images)
        elif instruction.name == "ARG":
            name, _, value = expanded.partition("=")
            arguments[name.strip()] = _unquote(value)
        elif instruction.name == "ENV":
            plan.env |= _read_env(expanded, where)
        elif instruction.name == "WORKDIR":
            plan.workdir = str(PurePosixPath(plan.workdir, _unquote(expanded)))
            plan.steps.append(Copy(entries=(FileEntry(path=plan.workdir, mode=0o755),)))
        elif instruction.name in ("COPY", "ADD"):
            plan.steps.append(Copy(entries=tuple(_copy(expanded, path.parent, plan.workdir, where))))
        elif instruction.name == "RUN":
            plan.steps.append(_read_run(instruction.text, where, plan, arguments))
        elif instruction.name == "USER" and expanded in ("root", "0"):
            continue
        elif instruction.name not in IGNORED:
            raise Unsupported(where, "the sandbox does not have it")
    if not num_from:
        raise Unsupported(f"environment/{path.name}", "it has no FROM")
    return plan


def split_instructions(text: str) -> list[Instruction]:
    """Return the instructions, with continued lines joined and comments removed."""
    instructions, parts, start = list[Instruction](), list[str](), 0
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        start = start if parts else number
        parts.append(stripped.removesuffix("\\").strip())
        if stripped.endswith("\\"):
            continue
        name, _, rest = " ".join(parts).partition(" ")
        instructions.append(Instruction(name=name.upper(), text=rest.strip(), line=start))
        parts = []
    if parts:
        name, _, rest = " ".join(parts).partition(" ")
        instructions.append(Instruction(name=name.upper(), text=rest.strip(), line=start))
    return instructions


def check_image(image: str, where: str, more_images: Sequence[str]) -> None:
    """Raise Unsupported unless an image is a plain base, or the user says that it is."""
    if image in more_images or image.partition(":")[0] in more_images:
        return
    name, _, tag = image.removeprefix("docker.io/").removeprefix("library/").partition(":")
    if name not in PLAIN_IMAGES:
        raise Unsupported(where, f"{image} is not a plain base image ({', '.join(PLAIN_IMAGES)})")
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    version = re.match(r"\d+(\.\d+)?", tag)
    if name == "python" and version and version.group() not in (here, here.partition(".")[0]):
        raise Unsupported(where, f"this Python is {here}")


def _check_base(text: str, where: str, more_images: Sequence[str]) -> None:
    words = [word for word in text.split() if not word.startswith("--platform")]
    if not words:
        raise Unsupported(where, "it names no image")
    check_image(words[0], where, more_images)


def _read_run(text: str, where: str, plan: Plan, arguments: Mapping[str, str]) -> Run:
    if text.startswith("--") or HEREDOC.search(text):
        raise Unsupported(where, "options and here-documents of RUN are not supported")
    command = text
    if text.startswith("["):
        command = shlex.join(_json_list(text, where))
    plan.packages |= check_script(command, where)
    return Run(command=command, where=where, workdir=plan.workdir, env={**arguments, **plan.env})


def _json_list(text: str, where: str) -> list[str]:
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise Unsupported(where, "it is not a list of texts")
    return words


def _read_env(text: str, where: str) -> dict[str, str]:
    name, _, rest = text.partition(" ")
    if "=" not in name:
        return {name: rest.strip()}
    try:
        pairs = [word.partition("=") for word in shlex.split(text)]
    except ValueError as error:
        raise Unsupported(where, str(error)) from error
    return {name: value for name, _, value in pairs}


def _copy(text: str, context: Path, workdir: str, where: str) -> list[FileEntry]:
    mode: int | None = None
    words = _json_list(text, where) if text.lstrip().startswith("[") else shlex.split(text)
    while words and words[0].startswith("--"):
        option, _, value = words.pop(0).partition("=")
        if option == "--chmod" and re.fullmatch(r"[0-7]{3,4}", value):
            mode = int(value, 8)
        elif option != "--chown" or value.partition(":")[0] not in ("root", "0"):
            raise Unsupported(where, f"{option} is not supported")
    if len(words) < 2:
        raise Unsupported(where, "it needs a source and a destination")
    *sources, target = words
    destination = str(PurePosixPath(workdir, target))
    entries: list[FileEntry] = []
    into = target.endswith("/") or target in (".", "..") or len(sources) > 1
    for source in sources:
        for file in _find_sources(source, context, where):
            if file.is_dir():
                entries += read_tree(file, destination, mode)
            else:
                path = f"{destination}/{file.name}" if into or any(mark in source for mark in "*?[") else destination
                entries.append(_read_file(file, path, mode))
    return entries


def _find_sources(source: str, context: Path, where: str) -> list[Path]:
    if re.match(r"https?://|git@", source):
        raise Unsupported(where, "there is no network")
    if re.search(r"\.(tar|tgz|tar\.\w+)$", source) and where.split(": ", 1)[1].startswith("ADD"):
        raise Unsupported(where, "ADD of an archive is not supported: use COPY and RUN tar")
    pattern = source.lstrip("/") or "."
    matches = sorted(context.glob(pattern)) if any(mark in pattern for mark in "*?[") else [context / pattern]
    inside = [path for path in matches if path.exists() and path.resolve().is_relative_to(context.resolve())]
    if not inside:
        raise Unsupported(where, f"{source} is not in {context.name}/")
    return inside


def read_tree(folder: Path, destination: str, mode: int | None = None) -> list[FileEntry]:
    """Return the files below a folder. Symbolic links stay links."""
    entries = [FileEntry(path=destination, mode=0o755)]
    for path in sorted(folder.rglob("*")):
        inside = f"{destination.rstrip('/')}/{path.relative_to(folder).as_posix()}"
        if path.is_symlink():
            entries.append(FileEntry(path=inside, target=str(path.readlink())))
        elif path.is_dir():
            entries.append(FileEntry(path=inside, mode=0o755))
        elif path.is_file():
            entries.append(_read_file(path, inside, mode))
    return entries


def _read_file(path: Path, inside: str, mode: int | None) -> FileEntry:
    return FileEntry(path=inside, data=path.read_bytes(), mode=path.stat().st_mode & 0o777 if mode is None else mode)


def _expand(text: str, values: Mapping[str, str]) -> str:
    """Replace the variables that are known; others, such as PATH, stay for the shell."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return values.get(name, match.group() if match[3] is None else match[3])

    return VARIABLE.sub(value, text)


def _unquote(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
