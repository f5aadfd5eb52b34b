"""What a recipe says of a server: `{ mcp = "npx -y @modelcontextprotocol/server-filesystem data" }`, or a URL."""

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from turnwise.config.keys import read_options
from turnwise.config.secrets import PLACEHOLDER, VARIABLE, refuse_keys, split_url
from turnwise.config.section import Positive
from turnwise.core.errors import UserError
from turnwise.tools.tool import ToolSource

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NamesOfVariables = dict[str, str]
INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER")
"""All that a server gets of our environment: the rest may hold keys."""
LABEL_CHARS = 60
KEY_FIX = 'export it, and name its variable with env = { KEY = "NAME" } or as ${NAME} in the command line'


class McpOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    mcp: str
    """A command line, run without a shell, whose standard input and output speak MCP; or an http(s) URL. ${NAME} in a
    command line is the value of that environment variable of ours: keys stand in no recipe."""
    shared: bool = False
    """False: every episode has a server, or over HTTP a session, of its own, since servers may be stateful.
    True: one for all episodes, started again when it dies."""
    tools: tuple[str, ...] | None = None
    """Those to offer, by the server's names; None: all of them."""
    prefix: str = ""
    """Put before the tools' names, where two servers have tools of one name."""
    timeout_s: Seconds = 30.0
    """Of one call."""
    start_timeout_s: Seconds = 60.0
    """Until the server has told its tools. The first `npx -y` downloads it."""
    concurrency: Positive = 64
    """Calls of one tool at the same time, over all episodes."""
    retries: int = Field(default=2, ge=0)
    """Of a call to a shared server, after a failure that is not the agent's; 0 for what must not happen twice.
    With a server of its own the episode is run again instead: the state is gone."""
    max_output: Positive = 10_000
    """Characters of an answer that are kept; the middle is left out."""
    env: NamesOfVariables = {}
    """Environment variables of the server, each by the name of ours that holds its value: keys stand in no recipe."""
    headers: NamesOfVariables = {}
    """HTTP headers likewise. A value for Authorization that is one word is sent as `Bearer WORD`."""
    cwd: str | None = None
    """The folder in which the command runs; None: the present one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """Where a server is, with its secrets: never shown."""

    label: str
    """How messages name it."""
    command: tuple[str, ...] = field(default=(), repr=False)
    """With the values of its placeholders, which are nobody's to see."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    folder: str | None = None
    url: str = field(default="", repr=False)
    """With its query, which is nobody's to see; the label is without."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = field(default=(), repr=False)

    def hidden(self, text: str) -> str:
        """`text` without the keys that this server was given: it may well say them back."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def resolve_server(options: McpOptions) -> McpServer:
    """What can be checked without starting it, is: the command, the folder, and the variables that hold its keys."""
    if options.mcp.startswith(("http://", "https://")):
        return _at_url(options)
    try:
        command = shlex.split(options.mcp)
    except ValueError as error:
        raise UserError(f"mcp: the command line cannot be read ({error}): close its quotes") from error
    if not command:
        raise UserError("mcp is empty: give a command line or a URL")
    refuse_keys(command, option="mcp", fix=KEY_FIX)
    label = _label(options.mcp)
    if options.headers:
        raise UserError(f"mcp {label}: headers are for URLs; a command's keys are given by env")
    values = _values(options.env, "env", label)
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ} | values
    folder = _folder(options.cwd, label)
    placed = _values({name: name for word in command for name in PLACEHOLDER.findall(word)}, "mcp", label)
    words = [PLACEHOLDER.sub(lambda found: placed[found[1]], word) for word in command]
    return McpServer(
        label=label,
        command=(_program(words[0], environment, folder, label), *words[1:]),
        environment=environment,
        folder=folder,
        secrets=_longest_first([*values.values(), *placed.values()]),
    )


def _at_url(options: McpOptions) -> McpServer:
    mend = "give it by headers, which name an environment variable"
    parts = split_url(options.mcp, option="mcp", example="http://HOST:PORT/mcp", mend=mend)
    label = _label(parts._replace(query="", fragment="").geturl())
    for name in ("env", "cwd"):
        if getattr(options, name):
            raise UserError(f"mcp {label}: {name} is for servers that a command starts: leave it out")
    values = _values(options.headers, "headers", label)
    headers = {
        name: _credentials(value) if name.lower() == "authorization" else value for name, value in values.items()
    }
    return McpServer(label=label, url=options.mcp, headers=headers, secrets=_longest_first(values.values()))


def _credentials(value: str) -> str:
    return value if " " in value else f"Bearer {value}"


def _values(names: NamesOfVariables, option: str, label: str) -> dict[str, str]:
    values = {}
    for name, variable in names.items():
        if not VARIABLE.fullmatch(variable):
            raise UserError(f"mcp {label}: {option}.{name} must be the name of an environment variable, not its value")
        if variable not in os.environ:
            raise UserError(f"mcp {label}: {option}.{name} names an environment variable that is not set: export it")
        values[name] = os.environ[variable].strip()
        if any(ord(letter) < 32 for letter in values[name]):
            raise UserError(f"mcp {label}: {option}.{name} holds a line's end: give one line")
    return values


def _longest_first(values: Iterable[str]) -> tuple[str, ...]:
    """Of values long enough to be keys: what is as short as a number would be struck out everywhere."""
    return tuple(sorted({value for value in values if len(value) >= 6}, key=len, reverse=True))


def _folder(given: str | None, label: str) -> str | None:
    if given is None:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        raise UserError(f"mcp {label}: cwd is no folder: {folder}")
    return str(folder.resolve())


def _program(name: str, environment: Mapping[str, str], folder: str | None, label: str) -> str:
    """Its path. A relative one begins where the command runs."""
    given = os.path.join(folder, name) if folder and os.sep in name else name  # noqa: PTH118
    found = shutil.which(given, path=environment.get("PATH", os.defpath))
    if found is None:
        raise UserError(f"mcp {label}: there is no command {name}: install it, or give its path")
    return os.path.abspath(found)  # noqa: PTH100


def _label(text: str) -> str:
    return text if len(text) <= LABEL_CHARS else f"{text[: LABEL_CHARS - 3]}..."


def make_mcp_source(options: Mapping[str, Any]) -> ToolSource:
    """`options`: those of `McpOptions`. A UserError says what is wrong with them, or what to install."""
    checked = read_options(McpOptions, options, "an MCP server")
    try:
        from turnwise.tools.mcp.source import McpSource
    except ImportError as error:
        raise UserError(
            f"MCP servers need the package mcp, 2.3 or newer ({error}): pip install 'turnwise[mcp]'"
        ) from error
    return McpSource(checked)
