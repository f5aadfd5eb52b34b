"""Files of conversations: messages, prompt and completion, ShareGPT; calls and tools; errors that name the line."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from episodes_for_tests import renderer
from turnwise.core.errors import UserError
from turnwise.core.messages import TextPart, ToolCall
from turnwise.core.trajectory import Stop
from turnwise.data.conversations import parse_conversation, read_conversations
from turnwise.data.demonstrations import build_demonstration
from turnwise.tools.call_formats import parse_calls

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And three?"},
    {"role": "assistant", "content": "7"},
]
SHARED = [
    {"from": "system", "value": "Be brief."},
    {"from": "human", "value": "Two and two?"},
    {"from": "gpt", "value": "4"},
    {"from": "human", "value": "And three?"},
    {"from": "gpt", "value": "7"},
]
PRICE = {"name": "price", "arguments": {"item": "fig"}}
CALL = {"id": "abc", "type": "function", "function": {"name": "price", "arguments": '{"item":  "fig"}'}}
TOOL = {
    "type": "function",
    "function": {"name": "price", "description": "The price.", "parameters": {"type": "object"}},
}
TOOL_TALK = [
    {"role": "user", "content": "Price of two?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abc", "content": "7"},
    {"role": "assistant", "content": "14"},
]


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)


def picture(url: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


def write(folder: Path, *lines: object) -> Path:
    file = folder / "talks.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return file


def shape(row: dict[str, Any]) -> list[Any]:
    """Return [roles before, answer, whether it is trained] of every exchange."""
    exchanges = parse_conversation(row, "line 1", Path())
    return [[[message.role for message in each.messages], each.answer, each.trained] for each in exchanges]


WHOLE = [[["system", "user"], "4", True], [["user"], "7", True]]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": TALK}, WHOLE),
        ({"messages": TALK, "prompt": None, "source": "x"}, WHOLE),
        ({"messages": [*TALK, {"role": "user", "content": "Bye"}]}, WHOLE),
        ({"conversations": SHARED}, WHOLE),
        ({"conversations": TALK}, WHOLE),
        ({"conversations": SHARED[1:], "system": "Be brief."}, WHOLE),
        ({"conversations": SHARED, "system": ""}, WHOLE),
        ({"prompt": "Two?", "completion": "4"}, [[["user"], "4", True]]),
        ({"prompt": TALK[:2], "completion": TALK[2:3]}, [[["system", "user"], "4", True]]),
        ({"prompt": TALK[:4], "completion": TALK[4:]}, [[["system", "user"], "4", False], [["user"], "7", True]]),
        ({"prompt": TALK[:2], "completion": TALK[2:]}, WHOLE),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, TALK[2]]},
            [[["user"], "4", True]],
        ),
        ({"messages": [*TALK[:2], {**TALK[2], "weight": 0}, *TALK[3:]]}, [[*WHOLE[0][:2], False], WHOLE[1]]),
    ],
)
def test_conversation_of_each_format(row: dict[str, Any], expected: list[Any]) -> None:
    assert shape(row) == expected


def test_tool_calls_and_tools_are_read() -> None:
    first, second = parse_conversation({"messages": TOOL_TALK, "tools": [TOOL]}, "line 1", Path())
    assert first.calls == (ToolCall(name="price", arguments='{"item":  "fig"}', call_id="abc"),)
    assert (first.answer, second.answer, second.messages[0].call_id) == ("", "14", "abc")
    assert [(spec.name, spec.description) for spec in first.tools] == [("price", "The price.")]


def test_calls_of_sharegpt_are_read() -> None:
    talk = [
        {"from": "human", "value": "Price of two?"},
        {"from": "function_call", "value": json.dumps([PRICE, {"name": "stock"}])},
        {"from": "observation", "value": "7"},
        {"from": "observation", "value": "none"},
        {"from": "gpt", "value": "14"},
    ]
    first, second = parse_conversation(
        {"conversations": talk, "tools": json.dumps([TOOL["function"]])}, "line 1", Path()
    )
    assert [(call.name, json.loads(call.arguments)) for call in first.calls] == [
        ("price", {"item": "fig"}),
        ("stock", {}),
    ]
    assert [message.call_id for message in second.messages] == [call.call_id for call in first.calls]
    assert [spec.name for spec in first.tools] == ["price"]


def test_calls_use_the_hermes_format_if_the_template_has_none() -> None:
    exchanges = parse_conversation({"messages": TOOL_TALK, "tools": [TOOL]}, "line 1", Path())
    sample = build_demonstration(0, exchanges, renderer())
    trained = [renderer().parse(sample.ids[sample.turn_ids == turn].tolist(), Stop.EOS) for turn in (0, 1)]
    (call,) = parse_calls(trained[0].message.content, "hermes").calls
    assert (call.name, json.loads(call.arguments)) == ("price", {"item": "fig"})
    assert trained[1].message.content == "14"
    context = renderer().decode(sample.ids[~sample.mask].tolist())
    assert '"description": "The price."' in context and "7" in context and "fig" not in context


def test_answers_that_are_only_context_are_not_trained() -> None:
    exchanges = parse_conversation({"prompt": TALK[:4], "completion": TALK[4:]}, "line 1", Path())
    whole = build_demonstration(0, parse_conversation({"messages": TALK}, "line 1", Path()), renderer())
    sample = build_demonstration(0, exchanges, renderer())
    assert sample.ids.tolist() == whole.ids.tolist()
    assert renderer().parse(sample.ids[sample.mask].tolist(), Stop.EOS).message.content == "7"


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{", "line 2 is not valid JSON"),
        ("[" * 10_000, "line 2 is not valid JSON"),
        ("[]", "line 2 is not an object with columns. Expected messages, prompt and completion, or conversations"),
        ({"text": "Hello"}, "line 2 has only the columns text. Expected messages"),
        ({"messages": TALK, "prompt": "x"}, "line 2 has messages and prompt, so it is unclear .* Keep one of them"),
        ({"messages": TALK, "conversations": SHARED}, "line 2 has messages and conversations"),
        ({"prompt": "x", "chosen": "y"}, "line 2 has no completion. Add it, or use messages"),
        ({"completion": "x"}, "line 2 has no prompt"),
        ({"prompt": TALK[:2], "completion": "4"}, "line 2: prompt and completion must both be texts, or both be lists"),
        ({"messages": "hello"}, "line 2: expected a list of messages"),
        ({"messages": []}, "line 2: expected a list of messages"),
        ({"messages": ["hello"]}, "line 2, message 1 has no role"),
        ({"messages": [{"content": "x"}]}, "line 2, message 1 has no role. Write role and content"),
        (
            {"messages": [TALK[0], {"role": "robot", "content": "x"}]},
            "line 2, message 2 has the role 'robot'. Use one of",
        ),
        ({"messages": [{"role": ["user"], "content": "x"}]}, r"line 2, message 1 has the role \['user'\]"),
        ({"messages": [{"role": "user"}]}, "line 2, message 1 has no content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "has a part of type 'image_url'. Write"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "line 2, message 1 has a part of type None"),
        ({"messages": [picture("https://x.org/a.png")]}, "line 2, message 1: The image https.* is not fetched"),
        ({"messages": [picture("data:image/png;base64,a")]}, "An image is not a data URL with base64"),
        ({"messages": [picture("data:image/png,aaaa")]}, "An image is not a data URL with base64"),
        ({"messages": [picture("data:image/png;base64,aaaa")]}, "line 2, message 1: .* that are not a PNG, JPEG"),
        ({"messages": [picture("none.png")]}, "The image .*none.png does not exist"),
        ({"messages": [picture("../talks.jsonl")]}, "The image '../talks.jsonl' is not in .* Move it there"),
        ({"messages": [picture("/etc/hostname")]}, "The image '/etc/hostname' is not in"),
        ({"messages": [picture("a\0b")]}, "line 2, message 1: The image .* is not in"),
        ({"messages": [picture("\ud800.png")]}, "line 2, message 1: The image .* is not in"),
        ({"messages": [picture("loop.png")]}, "line 2, message 1: The image .*loop.png"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "has a part of type 'text'"),
        ({"messages": [TALK[1], picture(PIXEL) | {"role": "assistant"}]}, "message 2 has an image, and an assistant"),
        (
            {"messages": [*TALK[:2], {**TALK[2], "reasoning_content": "hm"}]},
            "message 3 has reasoning_content, .*<think>",
        ),
        (
            {"messages": [*TALK[:2], {**TALK[2], "function_call": PRICE}]},
            "message 3 has function_call.* Use tool_calls",
        ),
        ({"messages": [{**TALK[1], "tool_calls": [CALL]}]}, "message 1 has calls, and its role is user"),
        ({"messages": [TALK[1], {"role": "assistant", "tool_calls": [{"name": 3}]}]}, "message 2: a call needs a name"),
        (
            {"messages": [TALK[1], {"role": "assistant", "tool_calls": [{"name": "x", "arguments": "[1]"}]}]},
            "arguments that are a JSON object",
        ),
        ({"conversations": [SHARED[1], {"from": "function_call", "value": "price fig"}]}, "calls that are not JSON"),
        ({"messages": TALK, "tools": {"name": "x"}}, "line 2: tools must be a list"),
        ({"messages": TALK, "tools": ["x"]}, "line 2: a tool needs a name"),
        (
            {"messages": TALK, "tools": [{"name": "x", "parameters": 3}]},
            "parameters of the tool x must be a JSON schema",
        ),
        ({"messages": TALK[:2]}, "line 2 has no assistant message to train on, so there is nothing to imitate"),
        ({"prompt": TALK[:3], "completion": TALK[3:4]}, "nothing to imitate"),
        ({"messages": TALK[2:]}, "line 2: an assistant message has no message before it to answer"),
        ({"messages": [*TALK[:3], TALK[2]]}, "no message before it to answer"),
    ],
)
def test_invalid_row_is_one_line_with_its_number(tmp_path: Path, row: object, problem: str) -> None:
    (tmp_path / "loop.png").symlink_to("loop.png")
    with pytest.raises(
        UserError, match=rf"talks\.jsonl {problem}" if problem.startswith("line 2") else problem
    ) as error:
        list(read_conversations(write(tmp_path, {"messages": TALK}, row)))
    assert "talks.jsonl line 2" in str(error.value) and "\n" not in str(error.value)


def test_images_keep_their_order_among_the_texts() -> None:
    texts = [{"type": "text", "text": each} for each in ("a", "b", "c")]
    content = [*texts[:2], *picture(PIXEL)["content"], texts[2]]
    row = {"messages": [{"role": "user", "content": content}, TALK[2]]}
    (exchange,) = parse_conversation(row, "line 1", Path())
    before, image, after = exchange.messages[0].parts
    assert (before, after) == (TextPart(text="ab"), TextPart(text="c"))
    assert exchange.messages[0].images == (image,)


def test_json_lists_and_csv_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "talks.json").write_text(json.dumps([{"messages": TALK}, {"conversations": SHARED}]))
    with (tmp_path / "talks.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", "completion"], ["Two\nand two?", "4"]])
    lists = list(read_conversations(tmp_path / "talks.json"))
    assert len(lists) == 2 and lists[0] == lists[1]
    ((exchange,),) = read_conversations(tmp_path / "talks.csv")
    assert (exchange.messages[0].content, exchange.answer) == ("Two\nand two?", "4")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.jsonl", b"\xff\xfe\x00", "is not UTF-8 text"),
        ("none.jsonl", None, "does not exist"),
        ("x.json", b'{"messages": []}', "is not a JSON list of rows"),
        ("x.json", b'[{"text": "x"}]', "x.json entry 1 has only the columns text"),
        ("x.csv", b"prompt,completion\na\n", "line 2 has more or fewer values than columns"),
        ("x.txt", b"", "is not a file of conversations. Give one that ends in .jsonl, .json, .csv"),
    ],
)
def test_unreadable_file_is_one_line(tmp_path: Path, name: str, content: bytes | None, problem: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=problem):
        list(read_conversations(tmp_path / name))
