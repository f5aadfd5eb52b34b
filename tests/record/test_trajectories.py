import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes_for_tests import name_token
from turnwise.core.errors import UserError
from turnwise.core.images import ImageSpan
from turnwise.core.messages import ImagePart, Message, Picture, TextPart, ToolCall, assistant
from turnwise.core.task import Task
from turnwise.core.trajectory import Sampler, Span, Status, Stop, Trajectory, Turn
from turnwise.record.images import image_hashes
from turnwise.record.jsonl import MAX_ARRAY, MAX_REPR, encode_row, to_json_numbers, to_json_value
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import trajectory_from_row, trajectory_to_row

any_text = st.text(st.characters(), max_size=8)  # lone surrogates included: models sample broken bytes
numbers = st.floats(allow_nan=False)
ids = st.lists(st.integers(0, 2**31), max_size=5).map(tuple)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=5,
)
infos = st.dictionaries(any_text, json_values, max_size=3)
pictures = st.builds(
    Picture,
    rows=st.lists(st.lists(any_text, max_size=2).map(tuple), max_size=2).map(tuple),
    caption=any_text,
    info=st.dictionaries(any_text, any_text, max_size=2),
    html=any_text,
)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    parts=st.lists(
        st.builds(TextPart, text=any_text) | st.builds(ImagePart, data=st.binary(max_size=4)), max_size=3
    ).map(tuple),
    tool_calls=st.lists(st.builds(ToolCall, name=any_text, arguments=any_text, call_id=any_text), max_size=2).map(
        tuple
    ),
    call_id=any_text,
)

samplers = st.builds(Sampler, temperature=st.floats(0, 2), top_p=st.floats(0.1, 1), top_k=st.integers(0, 50))


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    action_ids = draw(ids)
    return Turn(
        context_ids=draw(ids),
        extends=draw(st.booleans()),
        action_ids=action_ids,
        action_logprobs=tuple(draw(numbers) for _ in action_ids),
        temperature=draw(numbers),
        policy_versions=draw(st.sampled_from([(), tuple(draw(st.integers(0, 10**9)) for _ in action_ids)])),
        spans=tuple(draw(st.lists(st.builds(Span, name=any_text, start=st.integers(), end=st.integers()), max_size=2))),
        message=draw(messages),
        stop=draw(st.sampled_from(Stop)),
        reward=draw(numbers),
        invalid=draw(st.booleans()),
        info=draw(infos),
        picture=draw(st.none() | pictures),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    drawn = tuple(draw(st.lists(turns(), max_size=3)))
    return Trajectory(
        task=draw(
            st.builds(
                Task,
                env=any_text,
                seed=st.integers(0, 2**63),
                split=st.sampled_from(["train", "validation", "test"]),
                params=infos,
            )
        ),
        member=draw(st.integers(0, 99)),
        attempt=draw(st.integers(0, 3)),
        turns=drawn,
        status=draw(st.sampled_from(Status)),
        turn_rewards=tuple(draw(numbers) for _ in drawn),
        rewards=draw(st.dictionaries(any_text, numbers, max_size=2)),
        timings=draw(st.dictionaries(any_text, numbers, max_size=2)),
        sampler=draw(st.none() | samplers),
    )


def simple_turn(tokens: int = 3, **changes: object) -> Turn:
    turn = Turn(
        context_ids=(1, 2),
        extends=False,
        action_ids=tuple(range(tokens)),
        action_logprobs=tuple(-0.1 * token for token in range(tokens)),
        temperature=1.0,
        policy_versions=(4,) * tokens,
        spans=(),
        message=assistant("hi"),
        stop=Stop.EOS,
        reward=1.0,
    )
    return replace(turn, **changes)


def simple(*turns_: Turn) -> Trajectory:
    return Trajectory(
        task=Task(env="bandit", seed=5),
        member=2,
        attempt=1,
        turns=turns_,
        status=Status.SUCCEEDED,
        turn_rewards=tuple(turn.reward - 0.25 for turn in turns_),
    )


@given(trajectory=trajectories())
def test_trajectory_row_round_trips_exactly(trajectory: Trajectory) -> None:
    row = trajectory_to_row(trajectory, step=3, group=1, decode=str)
    assert trajectory_from_row(json.loads(encode_row(row))) == trajectory


@given(values=st.lists(st.floats(), max_size=6))
def test_trajectory_row_round_trips_any_float(values: list[float]) -> None:
    text = json.dumps(to_json_numbers(values), allow_nan=False)
    assert list(map(repr, map(float, json.loads(text)))) == list(map(repr, values))


@pytest.mark.parametrize(
    ("sampler", "is_exact", "described"),
    [
        (Sampler(temperature=1.0), True, "at temperature 1"),
        (Sampler(temperature=0.7), True, "at temperature 0.7"),
        (Sampler(temperature=0.0), False, "greedily"),
        (Sampler(temperature=1.0, top_p=0.9), False, "at temperature 1 with top-p 0.9"),
        (Sampler(temperature=1.0, top_p=0.9, top_k=20), False, "at temperature 1 with top-p 0.9 and top-k 20"),
        (Sampler(temperature=1.0, top_k=20), False, "at temperature 1 with top-k 20"),
    ],
)
def test_sampler_is_exact_without_greedy_top_p_and_top_k(sampler: Sampler, is_exact: bool, described: str) -> None:
    assert sampler.is_exact is is_exact
    assert sampler.describe() == described


def test_trajectory_row_refers_to_images_by_hash() -> None:
    spans = (ImageSpan(hash="ab" * 16, start=1, end=3), ImageSpan(hash="cd" * 16, start=3, end=5))
    trajectory = simple(simple_turn(images=spans), simple_turn())
    row = json.loads(encode_row(trajectory_to_row(trajectory, step=1, group=0, decode=str)))
    assert row["turns"][0]["images"][0] == {"hash": "ab" * 16, "start": 1, "end": 3}
    assert "images" not in row["turns"][1], "rows of text episodes stay as they were"
    assert trajectory_from_row(row) == trajectory
    assert image_hashes(row["turns"][0]) == ["ab" * 16, "cd" * 16]


@pytest.mark.parametrize(
    "images", [None, 3, [3], [{}], [{"hash": 5}], [{"hash": "../../secret"}], [{"hash": "A" * 32}]]
)
def test_image_hashes_ignores_invalid_values(images: object) -> None:
    assert image_hashes({"images": images}) == []


def test_trajectory_row_has_the_trained_values() -> None:
    trajectory = simple(simple_turn(3, info={"distance": 2}), simple_turn(2, invalid=True, extends=True))
    row = trajectory_to_row(
        trajectory, step=12, group=4, decode=str, columns={"advantages": [[0.5, 0.5, 0.5], [-0.1, 0.2]]}
    )
    assert (row["step"], row["group"], row["member"], row["attempt"]) == (12, 4, 2, 1)
    assert (row["status"], row["reward"], row["tokens"]) == ("succeeded", 1.5, 5)
    assert [turn["advantages"] for turn in row["turns"]] == [[0.5, 0.5, 0.5], [-0.1, 0.2]]
    assert [turn["turn_reward"] for turn in row["turns"]] == [0.75, 0.75]
    assert [turn["reward"] for turn in row["turns"]] == [1.0, 1.0]
    assert [turn["invalid"] for turn in row["turns"]] == [False, True]
    assert row["turns"][0]["info"] == {"distance": 2}


@pytest.mark.parametrize("advantages", [[[0.5, 0.5]], [[0.5]], [[0.5, 0.5, 0.5], []], []])
def test_trajectory_row_refuses_columns_of_other_lengths(advantages: list[list[float]]) -> None:
    with pytest.raises(ValueError):
        trajectory_to_row(simple(simple_turn(3)), step=0, group=0, decode=str, columns={"advantages": advantages})


@pytest.mark.parametrize("broken", [{}, {"turns": [{}]}, {"status": "sleeping"}, {"task": 3}, {"rewards": None}])
def test_trajectory_from_row_explains_an_invalid_row(broken: dict[str, object]) -> None:
    row = trajectory_to_row(simple(simple_turn()), step=0, group=0, decode=str)
    with pytest.raises(UserError, match="Not a trajectory"):
        trajectory_from_row({**row, **broken} if broken else {})


def test_to_json_value_accepts_any_info() -> None:
    deep: object = "bottom"
    for _ in range(5000):
        deep = [deep]
    looped: dict[str, object] = {}
    looped["self"] = looped
    hostile = {
        "set": {1},
        "bytes": b"\xff",
        "array": np.eye(2),
        "scalar": np.int64(3),
        "flag": np.bool_(True),
        "half": np.float32(0.5),
        "image": np.zeros(MAX_ARRAY + 1),
        "nan": math.nan,
        "huge": 10**6000,
        10**6000: "key",
        3: (1, 2),
        "deep": deep,
        "looped": looped,
        "long": object.__new__(type("Long", (), {"__repr__": lambda _: "y" * 10**6})),
    }
    row = trajectory_to_row(simple(simple_turn(info=hostile)), step=0, group=0, decode=str)
    info = json.loads(encode_row(row))["turns"][0]["info"]
    assert (info["array"], info["scalar"], info["flag"]) == ([[1.0, 0.0], [0.0, 1.0]], 3, True)
    assert (info["half"], info["nan"], info["3"]) == (0.5, "NaN", [1, 2])
    assert len(info["huge"]) == len(info["long"]) == MAX_REPR
    assert len(info["image"]) <= MAX_REPR


@given(value=json_values)
def test_to_json_value_keeps_json_values(value: object) -> None:
    assert to_json_value(value) == value


def test_run_folder_round_trips_256_trajectories(tmp_path: Path) -> None:
    members = [simple(*[simple_turn(33)] * 6) for _ in range(256)]
    rows = [
        trajectory_to_row(member, step=0, group=0, decode=str, columns={"advantages": [[0.1] * 33] * 6})
        for member in members
    ]
    with RunFolder.create(tmp_path, "") as folder:
        folder.write_trajectories(0, rows, name_token)
        entry = folder.read_index()[255]
        assert trajectory_from_row(folder.read_trajectory(entry)) == members[255]
