"""Tasks whose questions are conversations or have images: what the model sees, splits, and errors that name the row."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnwise.core.errors import UserError
from turnwise.core.messages import Message, assistant
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.random_streams import random_stream
from turnwise.envs.tools.env import Tools, ToolsRunner
from turnwise.envs.tools.task_rows import load_questions
from turnwise.pictures.image import Image
from turnwise.render.chat_rows import RowImages

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "4"},
    {"role": "user", "content": "And three?"},
]
PRICE = {"type": "function", "function": {"name": "price", "description": "The price.", "parameters": {}}}


def write(folder: Path, *rows: Mapping[str, Any]) -> Path:
    file = folder / f"rows{len(list(folder.iterdir()))}.jsonl"  # a file is read once
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def make_runner(file: Path, **params: Any) -> ToolsRunner:
    settings = {"tasks": str(file), "reward": "exact_match", **params}
    env = Tools(settings)
    Tools.check(env.params)
    return ToolsRunner(env, random_stream("start"))


def start(file: Path, **params: Any) -> Observation:
    async def run() -> Observation:
        runner = make_runner(file, **params)
        try:
            return await runner.start()
        finally:
            await runner.close()

    return asyncio.run(run())


def answer(file: Path, text: str) -> StepResult:
    async def run() -> StepResult:
        runner = make_runner(file)
        try:
            await runner.start()
            return await runner.step(assistant(text))
        finally:
            await runner.close()

    return asyncio.run(run())


def shape(messages: tuple[Message, ...]) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in messages]


@pytest.mark.parametrize("column", ["prompt", "messages", "question"])
def test_conversation_is_shown_as_it_is(column: str, tmp_path: Path) -> None:
    opening = start(write(tmp_path, {column: TALK, "answer": "7"}))
    assert shape(opening.messages) == [(row["role"], row["content"]) for row in TALK]


def test_answer_to_a_conversation_is_scored(tmp_path: Path) -> None:
    file = write(tmp_path, {"prompt": TALK, "answer": "7"})
    for text, reward in (("7", 1.0), ("8", 0.0)):
        result = answer(file, text)
        assert (result.reward, result.terminated, result.success) == (reward, True, bool(reward))


def test_conversation_follows_the_rules_of_tools(tmp_path: Path) -> None:
    tool = tmp_path / "mytools.py"
    tool.write_text('def add(first: int, second: int) -> int:\n    """Add two numbers."""\n    return first + second\n')
    opening = start(write(tmp_path, {"prompt": TALK, "answer": "7"}), tools=[f"{tool}:add"], style="answer")
    (role, rules), *rest = shape(opening.messages)
    assert role == "system" and "add" in rules and rules.endswith("\n\nBe brief.")
    assert rest == [(row["role"], row["content"]) for row in TALK[1:]]


def test_images_come_first_or_at_their_place(tmp_path: Path) -> None:
    data = [Image(np.full((1, 1, 3), shade, dtype=np.uint8)).data for shade in (0, 255)]
    for name, content in zip(("p.png", "q.png"), data, strict=True):
        (tmp_path / name).write_bytes(content)
    parts = [{"type": "image"}, {"type": "text", "text": " or "}, {"type": "image"}, {"type": "text", "text": "?"}]
    placed = [{"role": "user", "content": parts}]
    for question, expected in (("Red?", ["image", "image", "Red?"]), (placed, ["image", " or ", "image", "?"])):
        opening = start(write(tmp_path, {"prompt": question, "images": ["p.png", "q.png"], "answer": "no"}))
        (message,) = opening.messages
        assert [getattr(part, "text", "image") for part in message.parts] == expected
        assert [image.data for image in message.images] == data


def test_images_of_parquet_files_have_bytes(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data = RowImages(None, "row", tmp_path).read(PIXEL).data
    row = {"prompt": [{"role": "user", "content": "Red?"}], "images": [{"bytes": data, "path": None}], "answer": "no"}
    parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "rows.parquet")
    (message,) = (start(tmp_path / "rows.parquet")).messages
    assert message.content == "Red?" and [image.data for image in message.images] == [data]


def test_tools_of_a_row_are_shown(tmp_path: Path) -> None:
    for tools in ([PRICE], json.dumps([PRICE])):
        opening = start(write(tmp_path, {"prompt": "Price of two?", "tools": tools, "answer": "x"}))
        assert [spec.name for spec in opening.tools] == ["price"] and "price" in opening.tools_in_words


@pytest.mark.parametrize("row", [{"prompt": "Red?"}, {"prompt": "Red?", "images": [PIXEL]}, {"prompt": TALK}])
def test_shows_images_looks_at_the_rows(row: dict[str, Any], tmp_path: Path) -> None:
    settings = {"tasks": str(write(tmp_path, {**row, "answer": "no"})), "reward": "exact_match"}
    assert Tools.shows_images(Tools(settings).params) is ("images" in row)


def test_split_depends_on_the_images_and_the_whole_conversation(tmp_path: Path) -> None:
    rows = [{"prompt": "Red?", "images": [PIXEL], "split": "train"}, {"prompt": "Red?", "split": "test"}]
    rows += [{"prompt": TALK, "split": "train"}, {"prompt": TALK[1:], "split": "test"}]
    table = load_questions(str(write(tmp_path, *rows)))
    assert (table.different, table.repeated) == (4, 0)
    again = [{"prompt": TALK, "split": "train"}, {"prompt": TALK, "split": "test"}]
    file = tmp_path / "again.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in again))
    table = load_questions(str(file))
    assert (table.different, table.repeated, len(table.of_split("test"))) == (1, 1, 1)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "expected a list of messages"),
    ({"prompt": {"role": "user"}}, "prompt is a table"),
    ({"prompt": ["Hello"]}, "message 1 has no role"),
    ({"messages": TALK[:3]}, "ends with a message of the assistant"),
    ({"prompt": [{"role": "judge", "content": "x"}]}, "has the role 'judge'"),
    ({"prompt": "Red?", "images": ["missing.png"]}, "missing.png"),
    ({"prompt": "Red?", "images": ["../p.png"]}, "is not in"),
    ({"prompt": "Red?", "images": [7]}, "An image is 7"),
    ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "more parts of type image than the 0"),
    ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "images": [PIXEL, PIXEL]}, "2 images and 1 part"),
    ({"prompt": TALK[:1], "images": [PIXEL]}, "no message of the user"),
    ({"prompt": "Red?", "tools": "hammer"}, "tools must be a list"),
]


@pytest.mark.parametrize(("row", "problem"), WRONG)
def test_wrong_row_is_named_before_the_run(row: dict[str, Any], problem: str, tmp_path: Path) -> None:
    file = write(tmp_path, {"prompt": "First?", "answer": "1"}, row | {"answer": "no"})
    with pytest.raises(UserError) as error:
        make_runner(file)
    assert problem in str(error.value) and f"{file} line 2" in str(error.value) and "\n" not in str(error.value)
