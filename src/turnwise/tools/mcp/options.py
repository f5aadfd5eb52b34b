"""Settings of an MCP server in a recipe: { mcp = "npx -y @modelcontextprotocol/server-filesystem data" }, or a URL."""

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from turnwise.core.errors import UserError
from turnwise.network.secrets import PLACEHOLDER, VARIABLE, reject_keys, split_url
from turnwise.settings.section import Positive
from turnwise.text.truncation import shorten
from turnwise.tools.process_tree import inherited_environment

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
VariableNames = dict[str, str]
MAX_LABEL_CHARS = 60
MIN_SECRET_CHARS = 6
FIX_KEY = 'export it, and name its variable with env = { KEY = "NAME" } or as ${NAME} in the command line'


class McpOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    mcp: str
    """Command line of a server that speaks MCP over stdio, run without a shell; or an http(s) URL. ${NAME} in a command
    line is replaced by that environment variable, so that recipes contain no keys."""
    shared: bool = False
    """False: one server (or HTTP session) per episode, since servers may be stateful. True: one for all episodes,
    restarted when it dies."""
    tools: tuple[str, ...] | None = None
    """Tools to use, by the server's names. None: all."""
    prefix: str = ""
    """Prepended to the tools' names, for servers whose tools have the same names."""
    timeout_s: Seconds = 30.0
    """Per call."""
    start_timeout_s: Seconds = 60.0
    """Until the server has listed its tools. The first `npx -y` downloads it."""
    concurrency: Positive = 64
    """Simultaneous calls of one tool over all episodes."""
    retries: int = Field(default=2, ge=0)
    """Retries of a call to a shared server after a failure that is not the agent's fault; 0 for calls that must not run
    twice. With one server per episode the episode is retried instead, since the state is lost."""
    max_output: Positive = 10_000
    """Characters kept of an answer; the middle is cut."""
    images: bool = False
    """Show the images of answers to the model, which must be a vision-language model. False: a note in their place."""
    env: VariableNames = {}
    """Environment variables of the server, as the names of our variables that hold the values."""
    headers: VariableNames = {}
    """HTTP headers, in the same way. A single word for Authorization is sent as `Bearer WORD`."""
    cwd: str | None = None
    """Working directory of the command. None: the current one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Address of a server, with its secrets. Fields with secrets are hidden from repr."""

    label: str
    """Name in messages."""
    command: tuple[str, ...] = field(default=(), repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str | None = None
    url: str = field(default="", repr=False)
    """URL with its query, which may contain a key."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def redact(self, text: str) -> str:
        """Remove this server's keys from `text`, since the server may repeat them."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def resolve_server(options: McpOptions) -> McpServer:
    """Check what can be checked without starting the server: command, folder and the variables with its keys."""
    if options.mcp.startswith(("http://", "https://")):
        return _resolve_url(options)
    try:
        command = shlex.split(options.mcp)
    except ValueError as error:
        raise UserError(f"mcp: the command line cannot be parsed ({error}): close its quotes.") from error
    if not command:
        raise UserError("mcp is empty: give a command line or a URL.")
    reject_keys(command, option="mcp", fix=FIX_KEY)
    label = shorten(options.mcp, MAX_LABEL_CHARS)
    if options.headers:
        raise UserError(f"mcp {label}: headers are for URLs: pass a command's keys with env.")
    values = _read_variables(options.env, "env", label)
    environment = inherited_environment() | values
    folder = _resolve_folder(options.cwd, label)
    placeholders = {name: name for word in command for name in PLACEHOLDER.findall(word)}
    replacements = _read_variables(placeholders, "mcp", label)
    words = [PLACEHOLDER.sub(lambda match: replacements[match[1]], word) for word in command]
    return McpServer(
        label=label,
        command=(_find_program(words[0], environment, folder, label), *words[1:]),
        environment=environment,
        folder=folder,
        secrets=_select_secrets([*values.values(), *replacements.values()]),
    )


def _resolve_url(options: McpOptions) -> McpServer:
    fix = "pass it with headers, which name an environment variable"
    parts = split_url(options.mcp, option="mcp", example="http://HOST:PORT/mcp", fix=fix)
    label = shorten(parts._replace(query="", fragment="").geturl(), MAX_LABEL_CHARS)
    for name in ("env", "cwd"):
        if getattr(options, name):
            raise UserError(f"mcp {label}: {name} is for servers that are started by a command: remove it.")
    values = _read_variables(options.headers, "headers", label)
    headers = {name: _add_bearer(value) if name.lower() == "authorization" else value for name, value in values.items()}
    return McpServer(label=label, url=options.mcp, headers=headers, secrets=_select_secrets(values.values()))


def _add_bearer(value: str) -> str:
    return value if " " in value else f"Bearer {value}"


def _read_variables(names: VariableNames, option: str, label: str) -> dict[str, str]:
    values = {}
    for name, variable in names.items():
        if not VARIABLE.fullmatch(variable):
            raise UserError(f"mcp {label}: {option}.{name} must be the name of an environment variable, not its value.")
        if variable not in os.environ:
            raise UserError(f"mcp {label}: {option}.{name} names an environment variable that is not set: export it.")
        values[name] = os.environ[variable].strip()
        if any(ord(letter) < 32 for letter in values[name]):
            raise UserError(f"mcp {label}: {option}.{name} contains a line break: give a single line.")
    return values


def _select_secrets(values: Iterable[str]) -> tuple[str, ...]:
    """Values long enough to be keys, longest first. Redacting short ones would mangle ordinary text."""
    return tuple(sorted({value for value in values if len(value) >= MIN_SECRET_CHARS}, key=len, reverse=True))


def _resolve_folder(cwd: str | None, label: str) -> str | None:
    if cwd is None:
        return None
    folder = Path(cwd).expanduser()
    if not folder.is_dir():
        raise UserError(f"mcp {label}: cwd is not a folder: {folder}")
    return str(folder.resolve())


def _find_program(name: str, environment: Mapping[str, str], folder: str | None, label: str) -> str:
    """Absolute path of the program. A relative path is resolved in the working directory of the command."""
    path = os.path.join(folder, name) if folder and os.sep in name else name  # noqa: PTH118
    program = shutil.which(path, path=environment.get("PATH", os.defpath))
    if program is None:
        raise UserError(f"mcp {label}: there is no command {name}: install it, or give its path.")
    return os.path.abspath(program)  # noqa: PTH100
