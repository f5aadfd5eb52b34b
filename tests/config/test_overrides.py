"""Dotted overrides: parsing and errors."""

import re
from typing import Any

import pytest

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.losses import AGGREGATIONS, LOSSES, Ppo
from turnwise.config.foreign_names import FOREIGN_NAMES
from turnwise.config.keys import all_keys
from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.errors import UserError


def value_of(key: str, text: str) -> Any:
    value: Any = build({}, [(key, text)])
    for part in key.replace("-", "_").split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("seed", "7", 7),
        ("algo.loss.clip_high", "0.3", 0.3),
        ("algo.loss.clip-high", "0.3", 0.3),
        ("train.learning_rate", "3e-4", 3e-4),
        ("train.steps", "1_000", 1000),
        ("sft.think", "false", False),
        ("algo.loss.dual_clip", "none", None),
        ("algo.loss.dual_clip", "null", None),
        ("train.max_minutes", "2.5", 2.5),
        ("algo.kl_estimator", "k1", "k1"),
        ("reward.weights", "0.8", (0.8,)),
        ("reward.weights", "[0.8]", (0.8,)),
        ("rollout.stop", "END, STOP", ("END", "STOP")),
        ("rollout.stop", r'["\n", "a,b"]', ("\n", "a,b")),
        ("rollout.stop", "", ()),
        ("rollout.stop", "[]", ()),
        ("record.name", "none", None),
        ("record.name", '"none"', "none"),
        ("record.name", "8", "8"),
    ],
)
def test_override_text_is_parsed_by_the_type_of_its_field(key: str, text: str, value: Any) -> None:
    assert value_of(key, text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("0.5", 0.5),
        ("true", True),
        ("True", "True"),
        ("none", None),
        ("'none'", "none"),
        ("plain words", "plain words"),
        ('"8"', "8"),
        ("[1, 2]", [1, 2]),
        ("[1, null]", [1, None]),
        ("{a = 1}", {"a": 1}),
        ('{"a": 1}', {"a": 1}),
        ("1\nother = 2", "1\nother = 2"),
        ("2024-01-01", "2024-01-01"),
        ("nan", "nan"),
        ("", ""),
        ("[" * 5000, "[" * 5000),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_override_of_an_env_parameter_is_toml_or_text(text: str, value: Any) -> None:
    params = build({}, [("env.params.size", text)]).env.params
    assert params == {"size": value}
    assert type(params["size"]) is type(value)


def test_override_of_nested_env_parameters_keeps_dashes() -> None:
    assert build({}, [("env.params.map.top-left", "3")]).env.params == {"map": {"top-left": 3}}


def test_last_override_counts_and_leaves_the_settings_unchanged() -> None:
    settings = {"algo": {"loss": {"clip_low": 0.5}}, "env": {"params": {"size": 4}}}
    config = build(settings, [("algo.loss.clip_low", "0.6"), ("env.params.size", "5"), ("algo.loss.clip_low", "0.7")])
    assert (config.algo.loss, config.env.params) == (Ppo(clip_low=0.7), {"size": 5})
    assert settings == {"algo": {"loss": {"clip_low": 0.5}}, "env": {"params": {"size": 4}}}


def test_override_value_that_is_not_text_is_unchanged() -> None:
    assert build({}, [("reward.weights", (0.5,)), ("algo.loss.dual_clip", None)]) == build(
        {"reward": {"weights": [0.5]}, "algo": {"loss": {"dual_clip": None}}}
    )


def complaint(*overrides: tuple[str, Any], settings: dict[str, Any] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        build(settings or {}, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("key", "text", "line"),
    [
        ("algo.clip_hi", "1", 'unknown key algo.clip_hi: did you mean "algo.loss.clip_high"?'),
        ("aglo.clip_high", "1", 'unknown key aglo.clip_high: did you mean "algo.loss.clip_high"?'),
        ("clip_high", "1", 'unknown key clip_high: did you mean "algo.loss.clip_high"?'),
        (
            "algo.learning_rate",
            "1",
            'unknown key algo.learning_rate: did you mean "critic.learning_rate" or "train.learning_rate" or '
            '"train.optimizer.learning_rate" or "sft.learning_rate"?',
        ),
        ("train.epoch", "1", 'unknown key train.epoch: did you mean "train.epochs"?'),
        ("zzzz", "1", "unknown key zzzz: `turnwise train --help-all` lists them"),
        ("algo", "1", "algo is a section: give one of its keys, such as algo.estimator"),
        ("train.betas", "0.9,0.99", "train.betas no longer exists. The betas of AdamW are 0.9 and 0.95."),
        ("train.steps", "0", "train.steps = 0: must be a whole number of 1 or more"),
        ("rollout.groups", "2.5", "rollout.groups = 2.5: must be a whole number of 1 or more"),
        ("train.learning_rate", "fast", "train.learning_rate = fast: must be a number above 0 and at most 1"),
        ("train.learning_rate", "inf", "train.learning_rate = inf: must be a number above 0 and at most 1"),
        ("eval.top_p", "0", "eval.top_p = 0: must be a number above 0 and at most 1"),
        ("sft.think", "maybe", "sft.think = maybe: must be true or false"),
        ("algo.old_logprobs", "x", "algo.old_logprobs = x: must be one of sampler, learner"),
        ("algo.loss.dual_clip", "0.5", "algo.loss.dual_clip = 0.5: must be a number above 1, or none"),
        (
            "rollout.stop",
            "[1, 2]",
            "rollout.stop = 1: must be a list of text; rollout.stop = 2: must be a list of text",
        ),
        ("seed", "-1", "seed = -1: must be a whole number from 0 to 9223372036854775807"),
        ("env.params", "3", "env.params = 3: must be a table of values"),
    ],
)
def test_invalid_override_gets_one_line_with_the_fix(key: str, text: str, line: str) -> None:
    assert complaint((key, text)) == line


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("beta", "unknown key beta: use algo.kl_coef (0 keeps no reference model)"),
        ("train.num_generations", "unknown key train.num_generations: use rollout.group_size (episodes per task)"),
        ("actor_rollout_ref.rollout.n", "use rollout.group_size (episodes per task)"),
        ("learning_rate", "use train.learning_rate (of the policy)"),
        ("loss_type", "use algo.aggregation (dapo is token-mean; all of DAPO is algo.preset dapo)"),
    ],
)
def test_unknown_key_of_another_library_names_the_setting_here(key: str, line: str) -> None:
    assert complaint((key, "1")).endswith(line)


@pytest.mark.parametrize("name", FOREIGN_NAMES)
def test_foreign_names_are_unknown_here_and_lead_to_settings(name: str) -> None:
    setting, note = FOREIGN_NAMES[name]
    assert setting in all_keys() and name not in all_keys()
    assert 0 < len(note) < 80 and all(word in all_keys() for word in re.findall(r"\b(?:algo|rollout|train)\.\w+", note))


def test_foreign_values_lead_to_values_here() -> None:
    """In notes such as `sequence is gspo`."""
    ours = {"algo.advantage": ADVANTAGES, "algo.loss": LOSSES, "algo.aggregation": AGGREGATIONS}
    named = [
        (setting, value)
        for setting, note in FOREIGN_NAMES.values()
        if setting in ours
        for value in re.findall(r"(?:^|, )\w+ is ([\w-]+)", note)
    ]
    assert len(named) == 6
    assert [pair for pair in named if pair[1] not in ours[pair[0]]] == []


def test_unknown_key_in_a_file_suggests_the_closest() -> None:
    assert (
        complaint(settings={"algo": {"clip_hi": 0.3}})
        == 'unknown key algo.clip_hi: did you mean "algo.loss.clip_high"?'
    )
    assert complaint(settings={"alog": {}}) == 'unknown key alog: did you mean "algo"?'
    assert complaint(settings={"rolout": {"groups": 4}}) == 'unknown key rolout: did you mean "rollout"?'


def test_table_instead_of_a_list_of_tables_shows_the_syntax() -> None:
    message = complaint(settings={"reward": {"judges": {"model": "m", "rubric": "r"}}})
    assert message.startswith("reward.judges is a list of tables: write [[reward.judges]] with two brackets")
    assert complaint(settings={"algo": 3}) == "algo = 3: must be a section of settings"


def test_check_across_fields_names_the_fix() -> None:
    assert complaint(("rollout.max_tokens", "64")).startswith("rollout.max_new_tokens must be below")


def test_many_problems_give_one_line() -> None:
    wrong = {**dict.fromkeys(("kl_coef", "entropy_coef"), -1), "loss": {"clip_low": -1}, "kl_in": 3, "truncated": 3}
    line = complaint(settings={"algo": wrong})
    assert line.startswith("algo.loss.clip_low = -1: must be a number of 0 or more; algo.entropy_coef = -1: must")
    assert line.endswith("; and 2 more")


def test_long_value_is_shortened_in_the_message() -> None:
    assert len(complaint(("train.steps", "x" * 10_000))) < 200


def test_override_inside_a_value_is_rejected() -> None:
    settings = {"env": {"params": {"size": 4}}}
    assert complaint(("env.params.size.x", "1"), settings=settings) == (
        "env.params.size.x cannot be set: env.params.size is a value, not a table."
    )


@pytest.mark.parametrize("value", [object(), float("nan"), (1, 2), {1: 2}, [object()], {"a": {"b": b"x"}}])
def test_env_parameters_that_toml_cannot_store_are_rejected(value: Any) -> None:
    assert complaint(settings={"env": {"params": {"size": value}}}).startswith("env.params.size = ")


def test_build_without_settings_gives_the_defaults() -> None:
    assert build({}) == Config()
