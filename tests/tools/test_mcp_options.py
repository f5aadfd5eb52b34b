"""What is checked before a server starts, and what is made of what it says: no process is needed."""

import asyncio
import base64
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec
from turnwise.tools.mcp.messages import read_lines, read_message
from turnwise.tools.mcp.options import McpOptions, make_mcp_source, resolve_server
from turnwise.tools.mcp.tools import McpTool, build_tools, to_tool_result
from turnwise.tools.mcp.transports import OutputTail
from turnwise.tools.tool import ToolError, ToolResult, ToolRules

URL = "http://127.0.0.1:1/mcp"
SECRET = "sk-canary-typed-into-a-recipe"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mcp": "no-such-program-here --x"}, "there is no command no-such-program-here: install it"),
        ({"mcp": "cat 'half"}, "close its quotes"),
        ({"mcp": " "}, "give a command line or a URL"),
        ({"mcp": "cat", "shard": True}, 'did you mean "shared"?'),
        ({"mcp": "cat", "timeout_s": 0}, "timeout_s"),
        ({"mcp": "cat", "timeout_s": float("inf")}, "timeout_s"),
        ({"mcp": "cat", "retries": -1}, "retries"),
        ({"mcp": "cat", "headers": {"A": "B"}}, "given by env"),
        ({"mcp": "cat", "cwd": "/no/such/folder"}, "cwd is no folder"),
        ({"mcp": "cat", "env": {"KEY": "NOT_SET_ANYWHERE"}}, "env.KEY names an environment variable that is not set"),
        ({"mcp": "cat", "env": {"KEY": SECRET}}, "env.KEY must be the name of an environment variable"),
        ({"mcp": "cat", "env": SECRET}, "env"),
        ({"mcp": "cat", "max_output": [SECRET]}, "max_output"),
        ({"mcp": URL, "env": {"A": "B"}}, "env is for servers that a command starts"),
        ({"mcp": URL, "headers": {"Authorization": f"Bearer {SECRET}"}}, "must be the name"),
        ({"mcp": URL, "headers": {"X-Key": "sk_canary"}}, "names an environment variable that is not set"),
        ({"mcp": f"https://me:{SECRET}@host/mcp"}, "mcp holds a password"),
        ({"mcp": f"{URL}?api_key={SECRET}"}, "mcp holds a key behind its ?"),
        ({"mcp": f"http:///mcp?token={SECRET}"}, "mcp must be a URL such as http://HOST:PORT/mcp"),
        ({}, "mcp"),
    ],
)
def test_a_mistake_is_one_line_that_tells_no_value(options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as error:
        make_mcp_source(options)
    assert complaint in str(error.value) and "\n" not in str(error.value)
    assert SECRET not in str(error.value) and "sk_canary" not in str(error.value)


HELD = [
    f"cat --api-key {SECRET}",
    f"cat --api-key={SECRET}",
    f"cat --api_key {SECRET}",
    f"cat -token {SECRET}",
    f"cat --github-token={SECRET}",
    f"cat --db-password {SECRET}",
    *(
        f"cat --{name} hunter2"
        for name in ("pass", "auth", "db-pass", "passphrase", "credentials", "apiKey", "openai-key")
    ),
    *(f"env {name}=hunter2 cat" for name in ("PGPASSWORD", "MYSQL_PWD", "TAVILY_KEY", "KEY", "authToken")),
    "cat --password 1234",
    "cat --token 123456",
    f"env API_KEY={SECRET} cat",
    f"env -i PATH=/bin OPENAI_API_KEY={SECRET} cat",
    f"docker run -i --rm -e GITHUB_PERSONAL_ACCESS_TOKEN={SECRET} image",
    f"npx -y mcp-remote https://host/sse --header 'Authorization: Bearer {SECRET}'",
    f"npx -y mcp-remote https://host/sse --header 'X-Api-Key:{SECRET}'",
    f"npx -y mcp-remote https://host/sse?api_key={SECRET}",
    f"npx -y mcp-remote https://me:{SECRET}@host/sse",
    f"cat postgresql://me:{SECRET}@host/db",
    f"cat --url=postgresql://me:{SECRET}@host/db",
    f"sh -c 'KEY={SECRET} cat'",
    f"sh -c 'exec cat --token {SECRET}'",
    f"cat {SECRET}",
    f"cat --config={SECRET}",
    f"cat --token ${{NAME}}{SECRET}",
    *(f"cat {shape}" for shape in ("ghp_" + "a1" * 18, "hf_" + "a" * 34, "xoxb-1234567890-abc", "AKIA" + "A" * 16)),
]


@pytest.mark.parametrize("command", HELD)
def test_command_that_holds_a_key_is_refused_without_repeating_it(command: str) -> None:
    with pytest.raises(UserError, match=r"^mcp holds a key.*, which would be saved: export it, and name its") as error:
        make_mcp_source({"mcp": command})
    to_tool_result = str(error.value)
    assert (
        "\n" not in to_tool_result and SECRET not in to_tool_result and command.rpartition(" ")[2] not in to_tool_result
    )


FREE = [
    "cat --tokenizer gpt2 --max-tokens 5 --keyboard us --verbose",
    "cat --token-file keys.txt --api-key-env NAME --password-file x",
    "cat --token --verbose",
    "cat --api-key",
    "cat https://host/sse?profile=x http://localhost:1/x postgresql://me@host/db",
    "cat KEYS=1 PATH=/bin sk-short",
    "cat --max-token 100 --sort-key name --primary-key=id --auth none --key-bindings vi --bypass all",
    "cat MONKEY=1 COMPASS=north AUTHOR=me SSH_AUTH_SOCK=/run/agent turkey:8080",
    "cat https://host/sse?sort_key=name",
    "cat 'half\"quoted text' --name 'a b'",
]


@pytest.mark.parametrize("command", FREE)
def test_command_without_a_key_is_accepted(command: str) -> None:
    assert resolve_server(McpOptions(mcp=command)).command[1:] == tuple(shlex.split(command)[1:])


def test_placeholder_in_a_command_is_a_variables_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    options = McpOptions(
        mcp="cat --api-key ${MY_KEY} --url=https://me:${MY_KEY}@host 'Authorization: Bearer ${MY_KEY}'"
    )
    server = resolve_server(options)
    assert server.command[1:] == (
        *("--api-key", SECRET, f"--url=https://me:{SECRET}@host", f"Authorization: Bearer {SECRET}"),
    )
    assert SECRET not in repr(server) + repr(options) + server.label and server.hidden(f"a {SECRET}") == "a ***"
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(UserError, match="MY_KEY names an environment variable that is not set: export it"):
        resolve_server(options)


def test_key_in_a_command_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "?", "answer": "!"}\n' * 4)
    params = {"tasks": str(rows), "tools": [{"mcp": f"cat --token {SECRET}"}], "reward": "exact_match"}
    kind = load_spec("tools")
    with pytest.raises(UserError, match="mcp holds a key after --token") as error:
        kind.check_resources(kind.check_params(params))
    assert SECRET not in str(error.value)


def test_a_servers_query_is_sent_and_not_shown() -> None:
    server = resolve_server(McpOptions(mcp=f"{URL}?profile=sk-canary"))
    assert server.url == f"{URL}?profile=sk-canary"
    assert "canary" not in repr(server) + server.label


def test_keys_come_from_the_environment_and_are_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", " sk-canary \n")
    options = McpOptions.model_validate({"mcp": URL, "headers": {"authorization": "K", "X-Other": "K"}})
    server = resolve_server(options)
    assert server.headers == {"authorization": "Bearer sk-canary", "X-Other": "sk-canary"}
    assert "canary" not in repr(server) + repr(options) + options.model_dump_json()
    assert server.hidden("a sk-canary b") == "a *** b"


def test_a_relative_program_is_looked_for_where_the_command_runs(tmp_path: Path) -> None:
    (tmp_path / "serve").write_text("#!/bin/sh\n")
    (tmp_path / "serve").chmod(0o755)
    assert resolve_server(McpOptions(mcp="./serve x", cwd=str(tmp_path))).command == (f"{tmp_path}/serve", "x")
    with pytest.raises(UserError, match="no command"):
        resolve_server(McpOptions(mcp="./serve x"))


def test_the_sdk_is_imported_only_by_who_asks_for_a_server_and_its_lack_is_told(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('No module named mcp')\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from turnwise.tools.mcp.options import make_mcp_source\n"
        "assert 'mcp' not in sys.modules and 'torch' not in sys.modules\n"
        "make_mcp_source({'mcp': 'cat'})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'turnwise[mcp]'" in done.stderr.splitlines()[-1]


async def unasked(name: str, arguments: Any) -> ToolResult:
    raise AssertionError(name)


def offered(*tools: types.Tool, **options: Any) -> dict[str, McpTool]:
    return build_tools(tools, McpOptions(mcp="cat", **options), ToolRules(), unasked, label="cat")


def tool(name: str = "look", **schema: Any) -> types.Tool:
    return types.Tool(name=name, description="d" * 5000, input_schema={"type": "object", **schema})


def test_a_tool_is_told_by_its_schema_and_a_bounded_description() -> None:
    made = offered(tool(properties={"x": {"type": "integer"}, "any": True}, **{"$schema": "s", "title": "t"}))["look"]
    assert made.spec.parameters == {"type": "object", "properties": {"x": {"type": "integer"}, "any": {}}}
    assert len(made.spec.description) < 2100


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        ([tool("a b")], "none that an agent could call"),
        ([tool("<tool_call>")], "none that an agent could call"),
        ([tool(""), tool("x")], "none that an agent could call"),
        ([tool("x"), tool("x")], "two tools x"),
        ([types.Tool(name="x", input_schema={"type": "array"})], "no object"),
        ([tool(properties=[1])], "no object"),
        ([tool(properties={"a": {"type": "nonsense"}})], "no JSON schema"),
        ([tool(properties={"a": False})], "forbids its own arguments"),
        ([tool(properties={"a": {"enum": ["e" * 60_000]}})], "too long"),
    ],
)
def test_a_tool_that_cannot_be_offered_is_told_with_the_mend(listed: list[types.Tool], complaint: str) -> None:
    with pytest.raises(UserError, match=complaint) as error:
        offered(*listed)
    assert "leave it out by tools = " in str(error.value)
    assert "fine" in offered(*listed, tool("fine"), tools=("fine",))


SCHEMA = {
    "properties": {"path": {"type": "string"}, "deep": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "the argument path is missing"),
        ({"path": 1}, "path: 1 is not of type 'string'"),
        ({"path": "a", "pat": 1}, "no argument pat: there are path, deep"),
        ({"path": "a", "deep": {"n": "x"}}, "deep.n: 'x' is not of type 'integer'"),
    ],
)
def test_wrong_arguments_are_told_in_a_few_words(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ToolError) as error:
        offered(tool(**SCHEMA))["look"].check(arguments)
    assert str(error.value) == complaint


def test_a_complaint_is_short_and_a_schema_elsewhere_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", fetched.append)
    with pytest.raises(ToolError) as error:
        offered(tool(**SCHEMA))["look"].check({"path": ["x" * 100_000]})
    assert len(str(error.value)) < 300
    remote = offered(tool(properties={"a": {"$ref": "http://127.0.0.1:9/schema.json"}}))["look"]
    assert remote.check({"a": 1}) == {"a": 1} and fetched == []
    endless = {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"next": deep}
    with pytest.raises(ToolError, match="too deeply"):
        offered(tool(**endless))["look"].check(deep)


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.sampled_from(["path", "deep", "x"]), Json, max_size=3))
def test_arguments_are_given_as_they_are_or_refused(arguments: dict[str, Any]) -> None:
    try:
        assert offered(tool(**SCHEMA))["look"].check(arguments) == arguments
        assert isinstance(arguments["path"], str) and set(arguments) <= {"path", "deep"}
    except ToolError as error:
        assert 0 < len(str(error)) < 400


def shown(*content: Any, limit: int = 100, **more: Any) -> ToolResult:
    return to_tool_result(
        types.CallToolResult(content=list(content), **more), limit, lambda text: text.replace("secret", "*")
    )


def test_what_is_no_text_is_noted() -> None:
    data = base64.b64encode(b"x" * 12_345).decode()
    parts = (
        types.TextContent(text="one secret"),
        types.ImageContent(data=data, mime_type="image/png"),
        types.AudioContent(data=data[:400], mime_type="audio/wav"),
        types.ResourceLink(name="n", uri="file:///a"),
        types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///b", blob=data)),
        types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///c", text="two")),
    )
    assert shown(*parts, limit=1000).text.split("\n") == [
        "one *",
        "[image png, 12 kB]",
        "[audio wav, 300 bytes]",
        "[resource file:///a]",
        "[resource file:///b, 12 kB]",
        "[resource file:///c]",
        "two",
    ]


def test_structured_content_is_shown_where_there_is_no_text() -> None:
    assert shown(structured_content={"a": "ä"}).text == '{"a": "ä"}'
    assert shown(types.TextContent(text="t"), structured_content={"a": 1}).text == "t"
    assert shown().text == "(no output)"
    assert shown(types.TextContent(text="no"), is_error=True).failed and not shown().failed


def test_many_parts_are_bounded() -> None:
    many = shown(*(types.TextContent(text="x") for _ in range(1000)), limit=10_000)
    assert many.text.count("x") == 256 and many.text.endswith("[744 more parts]")


@given(texts=st.lists(st.text(max_size=300), max_size=5), limit=st.integers(1, 200))
def test_what_is_shown_is_bounded_and_holds_no_key(texts: list[str], limit: int) -> None:
    text = shown(*(types.TextContent(text=f"{each}secret{each}") for each in texts), limit=limit).text
    assert len(text) <= limit + 50 and "secret" not in text


@given(lines=st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=8))
def test_lines_are_whole_or_their_two_ends(lines: list[bytes]) -> None:
    rest: list[bytes] = []

    async def read() -> list[tuple[bytes, bool]]:
        stream = asyncio.StreamReader(limit=20)
        stream.feed_data(b"".join(line + b"\n" for line in lines) + b"unfinished")
        stream.feed_eof()
        return [found async for found in read_lines(stream, rest.append)]

    found = asyncio.run(read())
    assert len(found) == len(lines) and rest == [b"unfinished"]
    for (line, whole), given_line in zip(found, lines, strict=True):
        assert whole == (len(given_line) <= 20)
        assert line == given_line + b"\n" if whole else line.endswith(given_line[-1:] + b"\n")


def answered(line: str, whole: bool = True) -> Any:
    message = read_message(line.encode(), whole)
    return None if message is None else message.message


def test_a_message_that_cannot_be_used_answers_its_own_request_only() -> None:
    assert answered(json.dumps({"jsonrpc": "2.0", "id": 3, "result": {}})).result == {}
    for line in ('{"jsonrpc":"2.0","id":7,"result":"\\ud800"}', '{"result":"\\ud800","jsonrpc":"2.0","id":7}\n'):
        assert answered(line).id == 7 and answered(line).error.message == "the answer cannot be read"
        assert "larger than" in answered(line, whole=False).error.message
    for line in ('{"result": "\\ud800 \\"id\\": 7} x', "listening", "", '"id": 7', "[1]"):
        assert answered(line) is None


def test_the_last_line_of_what_was_said_is_kept_without_its_colours() -> None:
    said = OutputTail()
    assert said.last_line == ""
    for _ in range(1000):
        said.add(b"x" * 1000 + b"\n")
    said.add("\x1b[31mno luck\x1b[0m ü\x07\r\n\n  \n".encode())
    assert said.last_line == "no luck ü"
    said.add(b"^\n\nError: gone\n    at [eval]:1:7\n    at errorHandler (x.js:1)\n\nNode.js v20.20.2\n")
    assert said.last_line == "Error: gone"
    said.add(b"npm error 404 it is not in this registry.\nnpm error 404\nnpm error A complete log of this run: x\n")
    assert said.last_line == "npm error 404 it is not in this registry."
    said.add(b"y" * 10_000)
    assert said.last_line == "y" * 200
