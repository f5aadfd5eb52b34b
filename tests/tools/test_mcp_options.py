"""MCP options, tool schemas, answers and messages. No server process is needed."""

import asyncio
import base64
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec
from turnwise.pictures.image import Image
from turnwise.tools.mcp.factory import make_mcp_source
from turnwise.tools.mcp.messages import read_lines, read_message
from turnwise.tools.mcp.options import McpOptions, resolve_server
from turnwise.tools.mcp.tools import MAX_IMAGES, McpTool, build_tools, to_tool_result
from turnwise.tools.process_tree import OutputTail
from turnwise.tools.tool import ToolError, ToolResult, ToolRules

URL = "http://127.0.0.1:1/mcp"
SECRET = "sk-canary-typed-into-a-recipe"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mcp": "no-such-program-here --x"}, "there is no command no-such-program-here: install it"),
        ({"mcp": "cat 'half"}, "close its quotes"),
        ({"mcp": " "}, "give a command line or a URL"),
        ({"mcp": "cat", "shard": True}, 'did you mean "shared"?'),
        ({"mcp": "cat", "timeout_s": 0}, "timeout_s"),
        ({"mcp": "cat", "timeout_s": float("inf")}, "timeout_s"),
        ({"mcp": "cat", "retries": -1}, "retries"),
        ({"mcp": "cat", "headers": {"A": "B"}}, "pass a command's keys with env"),
        ({"mcp": "cat", "cwd": "/no/such/folder"}, "cwd is not a folder"),
        ({"mcp": "cat", "env": {"KEY": "NOT_SET_ANYWHERE"}}, "env.KEY names an environment variable that is not set"),
        ({"mcp": "cat", "env": {"KEY": SECRET}}, "env.KEY must be the name of an environment variable"),
        ({"mcp": "cat", "env": SECRET}, "env"),
        ({"mcp": "cat", "max_output": [SECRET]}, "max_output"),
        ({"mcp": URL, "env": {"A": "B"}}, "env is for servers that are started by a command"),
        ({"mcp": URL, "headers": {"Authorization": f"Bearer {SECRET}"}}, "must be the name"),
        ({"mcp": URL, "headers": {"X-Key": "sk_canary"}}, "names an environment variable that is not set"),
        ({"mcp": f"https://me:{SECRET}@host/mcp"}, "mcp contains a password"),
        ({"mcp": f"{URL}?api_key={SECRET}"}, "mcp contains a key after its ?"),
        ({"mcp": f"http:///mcp?token={SECRET}"}, "mcp must be a URL such as http://HOST:PORT/mcp"),
        ({}, "mcp"),
    ],
)
def test_option_error_is_one_line_without_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        make_mcp_source(options)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert SECRET not in str(error.value) and "sk_canary" not in str(error.value)


COMMANDS_WITH_KEY = [
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


@pytest.mark.parametrize("command", COMMANDS_WITH_KEY)
def test_command_with_key_is_refused_without_repeating_it(command: str) -> None:
    with pytest.raises(UserError, match=r"^mcp contains a key.*, which would be saved: export it, and name") as error:
        make_mcp_source({"mcp": command})
    message = str(error.value)
    assert "\n" not in message and SECRET not in message and command.rpartition(" ")[2] not in message


COMMANDS_WITHOUT_KEY = [
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


@pytest.mark.parametrize("command", COMMANDS_WITHOUT_KEY)
def test_command_without_key_is_accepted(command: str) -> None:
    assert resolve_server(McpOptions(mcp=command)).command[1:] == tuple(shlex.split(command)[1:])


def test_placeholder_in_command_is_replaced_by_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", SECRET)
    options = McpOptions(
        mcp="cat --api-key ${MY_KEY} --url=https://me:${MY_KEY}@host 'Authorization: Bearer ${MY_KEY}'"
    )
    server = resolve_server(options)
    assert server.command[1:] == (
        *("--api-key", SECRET, f"--url=https://me:{SECRET}@host", f"Authorization: Bearer {SECRET}"),
    )
    assert SECRET not in repr(server) + repr(options) + server.label and server.redact(f"a {SECRET}") == "a ***"
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(UserError, match="MY_KEY names an environment variable that is not set: export it"):
        resolve_server(options)


def test_key_in_command_is_refused_by_env_spec(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"question": "?", "answer": "!"}\n' * 4)
    params = {"tasks": str(rows), "tools": [{"mcp": f"cat --token {SECRET}"}], "reward": "exact_match"}
    spec = load_spec("tools")
    with pytest.raises(UserError, match="mcp contains a key after --token") as error:
        spec.check_resources(spec.check_params(params))
    assert SECRET not in str(error.value)


def test_url_query_is_sent_but_not_convert() -> None:
    server = resolve_server(McpOptions(mcp=f"{URL}?profile=sk-canary"))
    assert server.url == f"{URL}?profile=sk-canary"
    assert "canary" not in repr(server) + server.label


def test_header_keys_come_from_environment_and_stay_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", " sk-canary \n")
    options = McpOptions.model_validate({"mcp": URL, "headers": {"authorization": "K", "X-Other": "K"}})
    server = resolve_server(options)
    assert server.headers == {"authorization": "Bearer sk-canary", "X-Other": "sk-canary"}
    assert "canary" not in repr(server) + repr(options) + options.model_dump_json()
    assert server.redact("a sk-canary b") == "a *** b"


def test_relative_program_is_resolved_in_cwd(tmp_path: Path) -> None:
    (tmp_path / "serve").write_text("#!/bin/sh\n")
    (tmp_path / "serve").chmod(0o755)
    assert resolve_server(McpOptions(mcp="./serve x", cwd=str(tmp_path))).command == (f"{tmp_path}/serve", "x")
    with pytest.raises(UserError, match="no command"):
        resolve_server(McpOptions(mcp="./serve x"))


def test_missing_sdk_is_reported_only_when_a_server_is_requested(tmp_path: Path) -> None:
    (tmp_path / "mcp.py").write_text("raise ImportError('No module named mcp')\n")
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from turnwise.tools.mcp.factory import make_mcp_source\n"
        "assert 'mcp' not in sys.modules and 'torch' not in sys.modules\n"
        "make_mcp_source({'mcp': 'cat'})\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "pip install 'turnwise[mcp]'" in done.stderr.splitlines()[-1]


async def fail_on_call(name: str, arguments: Any) -> ToolResult:
    raise AssertionError(name)


def build(*tools: types.Tool, **options: Any) -> dict[str, McpTool]:
    return build_tools(tools, McpOptions(mcp="cat", **options), ToolRules(), fail_on_call, label="cat")


def tool(name: str = "look", **schema: Any) -> types.Tool:
    return types.Tool(name=name, description="d" * 5000, input_schema={"type": "object", **schema})


def test_tool_spec_has_schema_and_bounded_description() -> None:
    made = build(tool(properties={"x": {"type": "integer"}, "any": True}, **{"$schema": "s", "title": "t"}))["look"]
    assert made.spec.parameters == {"type": "object", "properties": {"x": {"type": "integer"}, "any": {}}}
    assert len(made.spec.description) < 2100


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ([tool("a b")], "an agent cannot call"),
        ([tool("<tool_call>")], "an agent cannot call"),
        ([tool(""), tool("x")], "an agent cannot call"),
        ([tool("x"), tool("x")], "two tools called x"),
        ([types.Tool(name="x", input_schema={"type": "array"})], "not an object"),
        ([tool(properties=[1])], "not an object"),
        ([tool(properties={"a": {"type": "nonsense"}})], "not a valid JSON schema"),
        ([tool(properties={"a": False})], "forbids its own arguments"),
        ([tool(properties={"a": {"enum": ["e" * 60_000]}})], "too long"),
    ],
)
def test_unusable_tool_is_an_error_with_a_fix(listed: list[types.Tool], message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        build(*listed)
    assert "in tools = [" in str(error.value)
    assert "fine" in build(*listed, tool("fine"), tools=("fine",))


SCHEMA = {
    "properties": {"path": {"type": "string"}, "deep": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    "required": ["path"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "the argument path is missing"),
        ({"path": 1}, "path: 1 is not of type 'string'"),
        ({"path": "a", "pat": 1}, "no argument pat: there are path, deep"),
        ({"path": "a", "deep": {"n": "x"}}, "deep.n: 'x' is not of type 'integer'"),
    ],
)
def test_wrong_arguments_are_described_briefly(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError) as error:
        build(tool(**SCHEMA))["look"].check(arguments)
    assert str(error.value) == message


def test_argument_check_is_bounded_and_fetches_no_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", fetched.append)
    with pytest.raises(ToolError) as error:
        build(tool(**SCHEMA))["look"].check({"path": ["x" * 100_000]})
    assert len(str(error.value)) < 300
    remote = build(tool(properties={"a": {"$ref": "http://127.0.0.1:9/schema.json"}}))["look"]
    assert remote.check({"a": 1}) == {"a": 1} and fetched == []
    endless = {"$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}, "$ref": "#/$defs/node"}
    deep: dict[str, Any] = {}
    for _ in range(3000):
        deep = {"next": deep}
    with pytest.raises(ToolError, match="too deeply"):
        build(tool(**endless))["look"].check(deep)


Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(arguments=st.dictionaries(st.sampled_from(["path", "deep", "x"]), Json, max_size=3))
def test_arguments_pass_unchanged_or_are_refused(arguments: dict[str, Any]) -> None:
    try:
        assert build(tool(**SCHEMA))["look"].check(arguments) == arguments
        assert isinstance(arguments["path"], str) and set(arguments) <= {"path", "deep"}
    except ToolError as error:
        assert 0 < len(str(error)) < 400


def convert(*content: Any, limit: int = 100, with_images: bool = False, **fields: Any) -> ToolResult:
    result = types.CallToolResult(content=list(content), **fields)
    return to_tool_result(result, limit, lambda text: text.replace("secret", "*"), with_images=with_images)


def image_content(data: bytes) -> types.ImageContent:
    return types.ImageContent(data=base64.b64encode(data).decode(), mime_type="image/png")


def test_images_are_shown_on_request_and_broken_ones_become_notes() -> None:
    pytest.importorskip("PIL")
    png = Image(np.zeros((2, 2, 3), np.uint8)).data
    parts = (types.TextContent(text="seen"), image_content(png), image_content(b"broken"), image_content(png))
    shown = convert(*parts, with_images=True)
    assert [image.data for image in shown.images] == [png, png]
    assert shown.text.split("\n") == ["seen", "[image png, 6 bytes]"]
    assert convert(*parts).images == ()
    not_base64 = types.ImageContent(data="?", mime_type="image/png")
    assert convert(not_base64, with_images=True).text == "[image png, 0 bytes]"
    many = convert(*[image_content(png)] * 20, limit=1000, with_images=True)
    assert (len(many.images), len(many.text.split("\n"))) == (MAX_IMAGES, 20 - MAX_IMAGES)


def test_images_and_resources_become_notes() -> None:
    data = base64.b64encode(b"x" * 12_345).decode()
    parts = (
        types.TextContent(text="one secret"),
        types.ImageContent(data=data, mime_type="image/png"),
        types.AudioContent(data=data[:400], mime_type="audio/wav"),
        types.ResourceLink(name="n", uri="file:///a"),
        types.EmbeddedResource(resource=types.BlobResourceContents(uri="file:///b", blob=data)),
        types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///c", text="two")),
    )
    assert convert(*parts, limit=1000).text.split("\n") == [
        "one *",
        "[image png, 12 kB]",
        "[audio wav, 300 bytes]",
        "[resource file:///a]",
        "[resource file:///b, 12 kB]",
        "[resource file:///c]",
        "two",
    ]


def test_structured_content_is_shown_if_there_is_no_text() -> None:
    assert convert(structured_content={"a": "ä"}).text == '{"a": "ä"}'
    assert convert(types.TextContent(text="t"), structured_content={"a": 1}).text == "t"
    assert convert().text == "(no output)"
    assert convert(types.TextContent(text="no"), is_error=True).failed and not convert().failed


def test_number_of_parts_is_bounded() -> None:
    many = convert(*(types.TextContent(text="x") for _ in range(1000)), limit=10_000)
    assert many.text.count("x") == 256 and many.text.endswith("[744 more parts]")


@given(texts=st.lists(st.text(max_size=300), max_size=5), limit=st.integers(1, 200))
def test_result_text_is_bounded_and_redacted(texts: list[str], limit: int) -> None:
    text = convert(*(types.TextContent(text=f"{each}secret{each}") for each in texts), limit=limit).text
    assert len(text) <= limit + 50 and "secret" not in text


@given(lines=st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=8))
def test_read_lines_keeps_both_ends_of_long_lines(lines: list[bytes]) -> None:
    rest: list[bytes] = []

    async def read_all() -> list[tuple[bytes, bool]]:
        stream = asyncio.StreamReader(limit=20)
        stream.feed_data(b"".join(line + b"\n" for line in lines) + b"unfinished")
        stream.feed_eof()
        return [line async for line in read_lines(stream, rest.append)]

    read = asyncio.run(read_all())
    assert len(read) == len(lines) and rest == [b"unfinished"]
    for (line, complete), original in zip(read, lines, strict=True):
        assert complete == (len(original) <= 20)
        assert line == original + b"\n" if complete else line.endswith(original[-1:] + b"\n")


def parse(line: str, complete: bool = True) -> Any:
    message = read_message(line.encode(), complete)
    return None if message is None else message.message


def test_unusable_message_answers_only_its_request() -> None:
    assert parse(json.dumps({"jsonrpc": "2.0", "id": 3, "result": {}})).result == {}
    for line in ('{"jsonrpc":"2.0","id":7,"result":"\\ud800"}', '{"result":"\\ud800","jsonrpc":"2.0","id":7}\n'):
        assert parse(line).id == 7 and parse(line).error.message == "the answer cannot be read"
        assert "larger than" in parse(line, complete=False).error.message
    for line in ('{"result": "\\ud800 \\"id\\": 7} x', "listening", "", '"id": 7', "[1]"):
        assert parse(line) is None


def test_output_tail_keeps_last_error_line_without_colours() -> None:
    tail = OutputTail()
    assert tail.last_line == ""
    for _ in range(1000):
        tail.add(b"x" * 1000 + b"\n")
    tail.add("\x1b[31mno memory\x1b[0m ü\x07\r\n\n  \n".encode())
    assert tail.last_line == "no memory ü"
    tail.add(b"^\n\nError: gone\n    at [eval]:1:7\n    at errorHandler (x.js:1)\n\nNode.js v20.20.2\n")
    assert tail.last_line == "Error: gone"
    tail.add(b"npm error 404 it is not in this registry.\nnpm error 404\nnpm error A complete log of this run: x\n")
    assert tail.last_line == "npm error 404 it is not in this registry."
    tail.add(b"y" * 10_000)
    assert tail.last_line == "y" * 200
