"""Actions from JSON schemas, and the tasks of a server's splits."""

import random

import pytest

from turnwise.core.errors import UserError
from turnwise.core.messages import TextPart
from turnwise.envs.adapters.openenv.actions import ActionSpec, has_tools
from turnwise.envs.adapters.openenv.facts import TaskSet, assign_splits
from turnwise.envs.adapters.openenv.observations import describe_observation, read_parts


def spec(required: list[str], **fields: object) -> ActionSpec:
    return ActionSpec.from_schema({"properties": {"metadata": {}, **fields}, "required": required})


MOVE = {"$ref": "#/$defs/Move", "description": "Direction"}


def test_action_of_one_choice_is_its_name() -> None:
    action = ActionSpec.from_schema(
        {
            "properties": {"move": MOVE},
            "required": ["move"],
            "$defs": {"Move": {"enum": ["Up", "Down"], "type": "string"}},
        }
    )
    assert action.read("up") == {"move": "Up"} and action.read('{"move": "Down"}') == {"move": "Down"}
    assert action.random(random.Random(0), []) in ("Up", "Down") and not action.is_text
    assert action.describe().startswith('Action: (move: "Up"|"Down")\n- move: Direction\nAnswer: <answer>MOVE</answer>')
    with pytest.raises(ValueError):
        action.read("left")


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [("integer", "7", 7), ("number", "0.5", 0.5), ("boolean", "True", True), ("string", "7", "7")],
)
def test_action_of_one_scalar_is_its_value(kind: str, answer: str, value: object) -> None:
    action = spec(["x"], x={"type": kind}, note={"type": "string"})
    assert action.read(answer) == {"x": value}
    assert action.read('{"x": 1, "note": "n"}') == {"x": 1, "note": "n"}


@pytest.mark.parametrize(
    ("kind", "answer"), [("integer", "1.5"), ("number", "nan"), ("number", "1e999"), ("boolean", "2")]
)
def test_action_of_one_scalar_rejects_other_types(kind: str, answer: str) -> None:
    with pytest.raises(ValueError):
        spec(["x"], x={"type": kind}).read(answer)


def test_action_of_several_fields_is_an_object() -> None:
    action = spec(["x", "y"], x={"type": "integer"}, y={"type": "array"})
    assert 'Answer: <answer>{"x": 1, "y": []}</answer>' in action.describe()
    assert action.read('{"x": 2, "y": [1]}') == {"x": 2, "y": [1]}
    for wrong, reason in [
        ("2", "not a JSON object"),
        ('{"x": 1, "z": 2}', "unknown fields: z"),
        ("[" * 99_999, "JSON"),
    ]:
        with pytest.raises(ValueError, match=reason):
            action.read(wrong)


def test_action_schema_tells_tools_from_fields() -> None:
    assert has_tools({"properties": {"metadata": {}}}) and has_tools({})
    assert has_tools({"properties": {"type": {"const": "call_tool"}, "tool_name": {}}})
    assert not has_tools({"properties": {"type": {"enum": ["buy", "sell"]}}})


def test_observation_shows_its_fields() -> None:
    assert describe_observation({"text": "Hi\x07", "metadata": {"a": 1}, "error": None}, 99) == "Hi"
    assert describe_observation({"board": [1, 2], "turn": "x"}, 99) == "board: [1, 2]\nturn: x"
    assert list(read_parts([{"type": "text", "text": "a"}, "b"], 9)) == [TextPart(text="a"), TextPart(text="b")]


def split(counts: dict[str, int], kinds: dict[str, str] | None = None, **chosen: str) -> dict[str, tuple[str, int]]:
    tasks = assign_splits(counts, kinds or {name: name for name in counts}, chosen, "URL")
    return {ours: (found.split, found.size) for ours, found in tasks.items()}


def test_splits_of_a_server_become_ours_by_their_type() -> None:
    counts = {"train": 5, "dev": 3, "test": 2}
    kinds = {"train": "train", "validation": "dev", "test": "test"}
    assert split(counts, kinds) == {"train": ("train", 5), "validation": ("dev", 3), "test": ("test", 2)}


@pytest.mark.parametrize(("total", "sizes"), [(100, (80, 10, 10)), (25, (21, 2, 2)), (10, (8, 1, 1)), (3, (3, 0, 0))])
def test_splits_that_are_missing_come_from_training_without_overlap(total: int, sizes: tuple[int, ...]) -> None:
    tasks = assign_splits({"train": total}, {"train": "train"}, {}, "URL")
    assert tuple(found.size for found in tasks.values()) == sizes
    indices = [found.index(number) for found in tasks.values() for number in range(found.size)]
    assert sorted(indices) == sorted(set(indices)) and max(indices) < total and len(indices) == total


def test_splits_that_one_server_split_would_serve_twice_are_refused() -> None:
    with pytest.raises(UserError, match="can be used once"):
        split({"train": 5, "test": 2}, validation="test")
    with pytest.raises(UserError, match="has the splits train"):
        split({"train": 5}, validation="dev")
    with pytest.raises(UserError, match="no training tasks"):
        split({"test": 5})


def test_task_set_numbers_its_tasks() -> None:
    tasks = TaskSet(split="train", count=21, residues=(0, 9))
    assert [tasks.index(number) for number in range(tasks.size)] == [0, 9, 10, 19, 20]
