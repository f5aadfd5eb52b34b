"""Splitting dotted options from the other tokens."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwise.cli.parsing import UNDOTTED, split_overrides
from turnwise.config.keys import all_keys
from turnwise.core.errors import UserError


def test_split_overrides_separates_dotted_options() -> None:
    tokens = ["train", "frozen_lake", "--algo.loss.clip_high", "0.28", "--seed", "3", "--train.steps=50", "--dry-run"]
    rest, overrides = split_overrides(tokens)
    assert rest == ["train", "frozen_lake", "--seed", "3", "--dry-run"]
    assert overrides == [("algo.loss.clip_high", "0.28"), ("train.steps", "50")]


def test_split_overrides_accepts_negative_numbers_and_equals_signs() -> None:
    tokens = ["--env.params.a", "-1", "my.env.py:Class", "--env.params.b=x=--y", "--env.params.c", "a=b.c"]
    assert split_overrides(tokens) == (
        ["my.env.py:Class"],
        [("env.params.a", "-1"), ("env.params.b", "x=--y"), ("env.params.c", "a=b.c")],
    )


def test_split_overrides_ignores_dots_in_values() -> None:
    assert split_overrides(["--name=a.b", "--to", "x.y"]) == (["--name=a.b", "--to", "x.y"], [])


@pytest.mark.parametrize("tokens", [["--algo.advantage.gamma"], ["--algo.advantage.gamma", "--seed", "3"]])
def test_split_overrides_requires_a_value(tokens: list[str]) -> None:
    with pytest.raises(UserError, match=r"--algo\.advantage\.gamma needs a value"):
        split_overrides(tokens)


def test_split_overrides_stops_at_two_dashes() -> None:
    assert split_overrides(["--a.b", "1", "--", "--c.d", "2"]) == (["--", "--c.d", "2"], [("a.b", "1")])


keys = st.sampled_from(["algo.advantage.gamma", "train.steps", "env.params.size", "env.params.a.b-c"])
texts = st.text().filter(lambda text: not text.startswith("--"))
others = st.sampled_from(["train", "--seed", "3", "--dry-run", "file.py:Class", "--name=x.y"])


@given(st.lists(st.tuples(keys, texts) | others, max_size=6))
def test_split_overrides_treats_both_forms_alike(items: list[tuple[str, str] | str]) -> None:
    expected = [item for item in items if isinstance(item, tuple)]
    rest = [item for item in items if isinstance(item, str)]
    spaced = [token for item in items for token in ((f"--{item[0]}", item[1]) if isinstance(item, tuple) else (item,))]
    joined = [f"--{item[0]}={item[1]}" if isinstance(item, tuple) else item for item in items]
    assert split_overrides(spaced) == split_overrides(joined) == (rest, expected)


def test_split_overrides_takes_choices_without_a_section() -> None:
    choices = {key.name for key in all_keys().values() if key.choice is not None and not key.section}
    assert choices == set(UNDOTTED)
    tokens = ["doctor", "--agent", "agent.toml"]  # an option of its own
    assert split_overrides(tokens) == (tokens, [])
    tokens = ["train", "--engine", "vllm", "bandit", "--context=turn", "--seed", "3"]
    assert split_overrides(tokens) == (["train", "bandit", "--seed", "3"], [("engine", "vllm"), ("context", "turn")])
