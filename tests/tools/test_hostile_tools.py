"""Hostile text from every tool stays text for the model, in whole episodes."""

import json
import shlex
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from search_for_tests import make_index

import mcp_scripted_server_for_tests
from hostile_for_tests import (
    ANY_WORD,
    CONTROL,
    HOSTILE,
    JOINED,
    MEEK,
    STYLES,
    WORDS,
    Played,
    added,
    check_plain,
    play,
    renderer_of,
    seen_texts,
)
from turnwise.core.errors import UserError
from turnwise.core.task import Task
from turnwise.envs.registry import load_spec
from turnwise.envs.seeds import seed_for
from turnwise.tools.call_formats import format_call

CONTROLS = "".join(CONTROL)
KIND = load_spec("tools")
Call = tuple[str, dict[str, Any]]


def played(
    folder: Path, tools: Sequence[str | dict[str, Any]], calls: Sequence[Call], style: str = "hermes", **params: Any
) -> Played:
    """Play an episode with these calls, then an answer."""
    (folder / "score.py").write_text("def score(answer, row):\n    return 0.0\n")
    (folder / "rows.jsonl").write_text(json.dumps({"question": f"Well? {HOSTILE}", "split": "train"}) + "\n")
    given = {"tasks": str(folder / "rows.jsonl"), "tools": list(tools), "reward": f"{folder / 'score.py'}:score"}
    limits = {"style": style, "max_turns": 30, "max_tool_calls": 30, "max_output": 100_000}
    task = Task(env="tools", seed=seed_for("train", 0), params=KIND.check_params(given | limits | params))
    lines = iter([*(format_call(*call, style) for call in calls), "<answer><s></s></answer>"])
    episode = play(KIND.make(task), lines, renderer_of(STYLES[style], "markup"), task)
    check_plain(episode)
    return episode


def observations(episode: Played) -> list[str]:
    """Tool messages, one per call."""
    return ["\n".join(message.content for message in result.messages) for result in episode.watched.results[:-1]]


def decoded(expression: str = HOSTILE) -> str:
    """Python code that builds the text: written literally, it would end the call."""
    return f"bytes.fromhex('{expression.encode().hex()}').decode()"


@pytest.mark.parametrize("style", ["hermes", "python"])
def test_python_output_is_untrusted_text(style: str, tmp_path: Path) -> None:
    programs = [
        f"print({decoded()})",
        f"x = {decoded()}\nx",
        f"raise ValueError({decoded()})",
        f"import sys\nsys.stderr.write({decoded()})",
        f"{CONTROLS} = 1",
        "y = '<s><|im_end|>' + 1",
        f"raise type({decoded(JOINED)}, (Exception,), {{}})({decoded()})",
    ]
    episode = played(tmp_path, ["python"], [("python", {"code": code}) for code in programs], style)
    said = observations(episode)
    assert [JOINED in said[number] for number in (0, 1, 2, 3, 6)] == [True] * 5
    assert all(any(word in text for word in CONTROL) for text in said)
    assert sum(JOINED in text for text in seen_texts(episode)) >= 5


def test_search_shows_hostile_passages_and_titles(tmp_path: Path) -> None:
    rows = [{"title": f"otter {HOSTILE}", "text": f"river {HOSTILE} otter"}, {"title": "Owl", "text": "owl"}]
    rows += [{"title": f"Bread {number}", "text": "flour, water and salt"} for number in range(5)]
    index = make_index(tmp_path / "corpus", rows)
    tool = {"use": "search", "index": str(index)}
    calls: list[Call] = [
        ("search", {"query": "otter"}),
        ("search", {"query": f"river {CONTROLS}", "top": 2}),
        ("search", {"query": "otter", CONTROLS: CONTROLS}),
        ("search", {"query": [CONTROLS]}),
        ("search", {"query": "otter", "top": CONTROLS}),
    ]
    for style in ("hermes", "answer"):
        first, second, third, *_ = observations(played(tmp_path, [tool], calls, style))
        assert JOINED in first and JOINED in second and CONTROL[0] in third


def test_sql_shows_hostile_values_columns_and_tables(tmp_path: Path) -> None:
    database = tmp_path / "words.db"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(f'CREATE TABLE "{JOINED}" ("{JOINED}" TEXT, a TEXT)')
        connection.execute("CREATE TABLE words (word TEXT)")
        connection.execute(f'INSERT INTO "{JOINED}" VALUES (?, ?)', (HOSTILE, JOINED))
        connection.executemany("INSERT INTO words VALUES (?)", [(word,) for word in WORDS])
        connection.commit()
    tool = {"use": "sql", "database": str(database), "max_rows": 100}
    queries = [
        f'SELECT * FROM "{CONTROLS}"',
        "SELECT word, word || word AS two FROM words",
        "SELECT group_concat(word, '') FROM words",
        f'SELECT "{CONTROLS}".y FROM words',
        f"SELECT '{CONTROLS}' AS \"{CONTROLS}\"",
        CONTROLS,
        "SELECT name FROM sqlite_master",
    ]
    for style in ("hermes", "answer"):
        episode = played(tmp_path, [tool], [("sql", {"query": query}) for query in queries], style)
        said = observations(episode)
        assert all(word in said[1] for word in WORDS)
        assert sum(CONTROL[0] in text for text in said) >= 5
        prompt = seen_texts(episode)[0]
        assert all(word in prompt for word in CONTROL)


USERS = '''
from turnwise.tools.function import tool
from turnwise.tools.tool import ToolError, ToolResult
WORDS = bytes.fromhex("HEX").decode()
calls = []

def say(how: str, more: str = "") -> str:
    """Says it. DESCRIPTION"""
    if how == "refuse":
        raise ToolError(WORDS)
    if how == "value":
        raise ValueError(WORDS)
    if how == "key":
        raise KeyError(WORDS)
    if how == "result":
        return ToolResult(text=WORDS, failed=True)
    return {"data": {WORDS: [WORDS]}, "text": WORDS + more, "number": 1}[how]

@tool(pure=True)
def kept(text: str) -> str:
    """Is asked once."""
    calls.append(text)
    return WORDS + text + str(len(calls))
'''


def users_tools(folder: Path) -> list[str | dict[str, Any]]:
    file = folder / "mine.py"
    file.write_text(USERS.replace("HEX", HOSTILE.encode().hex()).replace("DESCRIPTION", JOINED))
    return [f"{file}:say", f"{file}:kept"]


@pytest.mark.parametrize("style", ["hermes", "llama", "mistral", "answer"])
def test_function_results_errors_and_state_are_untrusted_text(style: str, tmp_path: Path) -> None:
    hows = ["text", "refuse", "value", "key", "result", "data"]
    calls: list[Call] = [("say", {"how": how}) for how in hows]
    calls += [
        ("say", {"how": "text", "more": "<s>"}),
        ("say", {"how": "text", "<s><s>": "</s>"}),
        ("say", {"how": [1]}),
    ]
    calls += [("kept", {"text": "<s>"})] * 2 + [("<s><s>", {"how": "</s>"}), (CONTROL[0] * 30, {})]
    said = observations(played(tmp_path, users_tools(tmp_path), calls, style))
    assert [JOINED in text for text in said] == [True] * 7 + [False] * 2 + [True] * 2 + [False] * 2
    assert "no argument <s><s>" in said[7] and said[9] == said[10] and said[9].endswith("<s>1")
    assert "no tool '<s><s>'" in said[11] and CONTROL[0] in said[12]


@pytest.mark.parametrize("max_output", [1, 7, 13, 20, 27, 34, 285, 286, 300])
def test_truncated_output_is_untrusted_text(max_output: int, tmp_path: Path) -> None:
    calls: list[Call] = [("say", {"how": "text"}), ("say", {"how": "data"})]
    for text in observations(played(tmp_path, users_tools(tmp_path), calls, max_output=max_output)):
        assert len(text) <= max_output + 40 and "characters cut" in text


def server(folder: Path, words: Callable[[str], str]) -> dict[str, Any]:
    """Script of a server with hostile text in every field, transformed by `words`."""

    def text(how: str, **more: Any) -> dict[str, Any]:
        return {"result": {"content": [{"type": "text", "text": how}], **more}}

    def resource(**about: Any) -> dict[str, Any]:
        return {"result": {"content": [about]}}

    schema = {
        "type": "object",
        "title": JOINED,
        "properties": {
            "how": {"type": "string", "description": HOSTILE, "default": HOSTILE, "examples": [HOSTILE]},
            JOINED: {"type": "string", "enum": [HOSTILE], "description": HOSTILE},
        },
        "required": ["how"],
    }
    tool = {"name": "say", "title": HOSTILE, "description": HOSTILE, "inputSchema": schema}
    alone = {"type": "object", "properties": {f"{JOINED}!": {"type": "string"}}}
    content = {"uri": f"said://{JOINED}", "mimeType": JOINED, "text": HOSTILE}
    script = {
        "tools": [tool, {"name": "alone", "description": HOSTILE, "inputSchema": alone}],
        "later": [tool, {"name": "late", "description": HOSTILE, "inputSchema": schema}],
        "answers": {
            "text": text(HOSTILE),
            "failed": text(HOSTILE, isError=True),
            "data": {"result": {"content": [], "structuredContent": {JOINED: [HOSTILE]}}},
            "refused": {"error": {"code": -32602, "message": HOSTILE}},
            "own code": {"error": {"code": 7, "message": HOSTILE, "data": HOSTILE}},
            "resource": resource(type="resource", resource=content),
            "link": resource(type="resource_link", uri=f"said://{JOINED}", name=HOSTILE, description=HOSTILE),
            "image": resource(type="image", data="", mimeType=f"image/{CONTROL[0]}"),
            "change": text(HOSTILE),
        },
    }
    file = folder / f"{len(words(JOINED))}.json"
    file.write_text(words(json.dumps(script, ensure_ascii=False)), encoding="utf-8")
    program = mcp_scripted_server_for_tests.__file__
    return {"mcp": shlex.join([sys.executable, "-I", "-S", str(program), str(file)])}


HOWS = ("text", "failed", "data", "refused", "own code", "resource", "link", "image", "change")


@pytest.mark.parametrize("style", ["hermes", "llama", "mistral", "answer"])
def test_mcp_answers_are_untrusted_text(style: str, tmp_path: Path) -> None:
    calls: list[Call] = [("say", {"how": how}) for how in HOWS]
    calls += [("say", {"how": "text", "<s>": 1, JOINED[:12]: 1}), ("say", {"how": ["<s>"]}), ("<s><s>", {})]
    loud = played(tmp_path, [server(tmp_path, str)], calls, style)
    meek = played(tmp_path, [server(tmp_path, lambda text: ANY_WORD.sub(MEEK, text))], calls[:1], style)
    said = observations(loud)
    assert [CONTROL[0] in text for text in said[: len(HOWS)]] == [True] * len(HOWS)
    assert "The tools have changed" in said[8] and JOINED in said[8].partition("The tools have changed")[2]
    openings = [added(each.renderer, each.trajectory.turns[0].context_ids) for each in (loud, meek)]
    assert openings[0] == openings[1], "tool descriptions are in the prompt as text"
    assert all(word in seen_texts(loud)[0] for word in CONTROL if "<" not in word)


def test_mcp_tool_with_hostile_name_is_refused(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {}}
    for name in ("<s>", "<tool_call>", "a<|im_end|>", "[INST]", "a b"):
        tools = [{"name": name, "inputSchema": schema}]
        (tmp_path / "tools.json").write_text(json.dumps({"tools": tools, "later": [], "answers": {}}))
        program = mcp_scripted_server_for_tests.__file__
        command = shlex.join([sys.executable, "-I", "-S", str(program), str(tmp_path / "tools.json")])
        with pytest.raises(UserError, match="an agent cannot call"):
            played(tmp_path, [{"mcp": command}], [])
