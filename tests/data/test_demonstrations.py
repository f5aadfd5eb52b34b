import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from episodes_for_tests import renderer
from turnwise.core.errors import UserError
from turnwise.core.messages import system, user
from turnwise.core.trajectory import Stop
from turnwise.data.demonstrations import Exchange, build_demonstration, read_conversations

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "<answer>4</answer>"},
    {"role": "user", "content": "And three?"},
    {"role": "assistant", "content": "<answer>7</answer>"},
]


def write(folder: Path, *lines: object) -> Path:
    file = folder / "talks.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return file


def test_demonstration_trains_answers_and_their_ends_only() -> None:
    exchanges = [
        Exchange(messages=(system("Be brief."), user("Two?")), answer="<answer>4</answer>"),
        Exchange(messages=(user("Three?"),), answer="<answer>7</answer>"),
    ]
    sample = build_demonstration(3, exchanges, renderer())
    assert sample.trajectory == 3
    trained = [sample.ids[sample.turn_ids == turn].tolist() for turn in (0, 1)]
    assert [renderer().parse(ids, Stop.EOS).message.content for ids in trained] == [
        "<answer>4</answer>",
        "<answer>7</answer>",
    ]
    assert all(ids[-1] in renderer().stop_ids for ids in trained)
    assert (sample.mask == (sample.turn_ids >= 0)).all()
    shown = renderer().decode(sample.ids[~sample.mask].tolist())
    assert "Two?" in shown and "Three?" in shown and "4" not in shown


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=4))
def test_demonstration_keeps_any_answer_exactly(answers: list[str]) -> None:
    exchanges = [Exchange(messages=(user("?"),), answer=answer) for answer in answers]
    sample = build_demonstration(0, exchanges, renderer())
    for turn, answer in enumerate(answers):
        ids = sample.ids[sample.turn_ids == turn].tolist()
        assert renderer().parse(ids, Stop.EOS).message.content == answer


def test_read_conversations_splits_turns(tmp_path: Path) -> None:
    (exchanges,) = read_conversations(write(tmp_path, {"messages": TALK}, "", "  "))
    assert [each.answer for each in exchanges] == ["<answer>4</answer>", "<answer>7</answer>"]
    assert [[message.role for message in each.messages] for each in exchanges] == [["system", "user"], ["user"]]


def test_read_conversations_drops_text_after_the_last_answer(tmp_path: Path) -> None:
    (exchanges,) = read_conversations(write(tmp_path, {"messages": [*TALK, {"role": "user", "content": "Bye"}]}))
    assert len(exchanges) == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not a conversation"),
        ("[]", "not a conversation"),
        ({"messages": [{"role": "user"}]}, "not a conversation"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [1]}]}, "text content"),
        ({"messages": TALK[:2]}, "nothing to imitate"),
        ({"messages": TALK[2:]}, "no message before it"),
    ],
)
def test_read_conversations_names_an_invalid_line(tmp_path: Path, line: object, problem: str) -> None:
    file = write(tmp_path, {"messages": TALK}, line)
    with pytest.raises(UserError, match=f"line 2.*{problem}"):
        list(read_conversations(file))


def test_read_conversations_rejects_a_binary_file(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\x00")
    for file, problem in (("x.jsonl", "is not UTF-8 text"), ("none.jsonl", "does not exist")):
        with pytest.raises(UserError, match=problem):
            list(read_conversations(tmp_path / file))
