"""Saved configurations are read back exactly."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from turnwise.algos.losses import Ppo
from turnwise.config.keys import FREE_TABLES, Key, all_keys, describe, difference, show_value
from turnwise.config.load import build, read_run, read_settings, to_toml
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.envs.registry import load_spec
from turnwise.files.run_folders import find_run_folder
from turnwise.rewards.judge.settings import JudgeSettings
from turnwise.run.configure import configure
from turnwise.run.evaluation.plan import saved_models
from turnwise.settings.options import read_options

DEPENDENT_KEYS = {
    *("rollout.max_tokens", "rollout.max_new_tokens", "reward.weights", "reward.functions"),
    *("algo.kl_target", "algo.kl_estimator", "algo.entropy_target"),
}

unicode_text = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(
    ["none", "'none'", "''none'", "null"]
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | unicode_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(unicode_text, inner, max_size=3),
    max_leaves=6,
)


def values_of(schema: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for the values that a JSON schema allows."""
    if "anyOf" in schema:
        return st.one_of([values_of(choice) for choice in schema["anyOf"]])
    if "enum" in schema or "const" in schema:
        return st.sampled_from(schema.get("enum") or [schema["const"]])
    if "prefixItems" in schema:
        return st.tuples(*map(values_of, schema["prefixItems"]))
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    floats = st.floats(
        low,
        high,
        exclude_min="exclusiveMinimum" in schema,
        exclude_max="exclusiveMaximum" in schema,
        allow_nan=False,
        allow_infinity=False,
    )
    strategies: dict[str, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "string": unicode_text,
        "object": st.dictionaries(unicode_text, plain, max_size=4),
        "array": st.lists(values_of(schema["items"]), max_size=3).map(tuple) if "items" in schema else st.nothing(),
        "integer": st.integers(low, high),
        "number": floats,
    }
    return strategies[schema["type"]]


weights = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False) | st.integers(1, 9)
mixed = st.fixed_dictionaries(
    {}, optional={"kind": unicode_text, "weight": weights, "params": st.dictionaries(unicode_text, plain, max_size=2)}
)
KINDS = {key.name: list(key.choice.table) for key in all_keys().values() if key.choice}
STRATEGIES: dict[str, Any] = {name: st.sampled_from(kinds) for name, kinds in KINDS.items() if "none" not in kinds} | {
    "algo.filter": st.sampled_from(["none", "top_p", "quarter"]),
    "algo.correction": st.sampled_from(["none", "masked"]),
    "algo.rejection": st.sampled_from(["none", "sequence"]),
    "selfplay.opponent": st.sampled_from(["none", "past"]),
    "agent": st.just("none"),
    "env.mix": st.dictionaries(unicode_text, weights | mixed, max_size=3),
}
"""Strategies of settings that are stricter than their JSON schema."""

free_keys = [key for key in all_keys().values() if key.name not in DEPENDENT_KEYS and not key.kinds]
key_and_value = st.sampled_from(free_keys).flatmap(
    lambda key: st.tuples(st.just(key), STRATEGIES[key.name] if key.name in STRATEGIES else values_of(key.schema))
)
configs = st.lists(key_and_value, max_size=12).map(lambda pairs: config_of(pairs))


def config_of(pairs: list[tuple[Key, Any]]) -> Config:
    settings: dict[str, Any] = {}
    for key, value in pairs:
        table = settings
        for part in key.section.split(".") if key.section else []:
            table = table.setdefault(part, {})
        table[key.last] = value
    if settings.get("context") == "summary":
        settings.get("rollout", {}).pop("prefix", None)  # rejected together
    return build(settings)


@given(configs)
def test_to_toml_and_read_settings_round_trip(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    path = tmp_path_factory.mktemp("config") / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    loaded = build(read_settings(path))
    assert loaded == config
    assert as_text(loaded) == as_text(config)  # 1 == 1.0 == True, but not as text


def as_text(config: Config) -> str:
    return json.dumps(config.model_dump(), sort_keys=True)


def test_to_toml_keeps_none(tmp_path: Path) -> None:
    config = build({}, [("algo.loss.dual_clip", "none"), ("env.params.max_actions", "none"), ("record.name", '"none"')])
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    loaded = build(read_settings(tmp_path / "config.toml"))
    assert (loaded.algo.loss, loaded.env.params, loaded.record.name) == (
        Ppo(dual_clip=None),
        {"max_actions": None},
        "none",
    )


def test_to_toml_writes_every_setting(tmp_path: Path) -> None:
    text = to_toml(Config())
    assert [
        key.last
        for key in all_keys().values()
        if key.name not in FREE_TABLES and not key.kinds and not key.choice and f"{key.last} = " not in text
    ] == []
    assert all(f"[{key.name}]" in text for key in all_keys().values() if key.choice)


@given(key_and_value)
def test_show_value_can_be_typed_as_an_override(pair: tuple[Key, Any]) -> None:
    key, value = pair
    assert build({}, [(key.name, show_value(value))]) == config_of([pair])


@given(configs)
def test_difference_reproduces_the_configuration(config: Config) -> None:
    assume(not any("." in name for name in (*config.env.params, *config.env.mix)))  # a dot separates tables
    changed = difference(config)
    assert build({}, [(setting.key, show_value(setting.value)) for setting in changed]) == config
    assert (not changed) == (config == Config())
    assert len([line for line in describe(config).splitlines() if " # " in line]) >= len(changed)


def test_describe_shows_value_and_default() -> None:
    text = describe(build({}, [("algo.loss.clip_high", "0.3"), ("env.params.size", "8")]))
    assert "algo.loss.clip_high = 0.3                # default 0.28" in text.splitlines()
    assert "env.params.size = 8                      # given" in text.splitlines()
    assert "algo.loss.clip_low = 0.2" in text.splitlines()
    assert text.splitlines()[:3] == ["seed = 0", "", 'env.kind = "frozen_lake"']


def test_to_toml_rejects_invalid_unicode() -> None:
    config = build({}, [("record.name", "run\udcff")])
    with pytest.raises(UserError, match="not valid Unicode"):
        to_toml(config)


def test_read_settings_reports_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"missing\.toml does not exist"):
        read_settings(tmp_path / "missing.toml")
    for content, problem in ((b"algo = [", "valid TOML"), (b"\xff\xfe", "UTF-8 text")):
        (tmp_path / "broken.toml").write_bytes(content)
        with pytest.raises(UserError, match=rf"broken\.toml is not {problem}"):
            read_settings(tmp_path / "broken.toml")


def test_find_run_accepts_a_name_or_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("runs/lake-1")
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(to_toml(build({}, [("seed", "5")])), encoding="utf-8")
    assert find_run_folder("lake-1") == find_run_folder(str(folder)) == folder
    assert read_run(str(folder))["seed"] == 5
    with pytest.raises(UserError, match=r'No run "lake-2".* did you mean "lake-1"'):
        find_run_folder("lake-2")


def test_every_setting_has_help() -> None:
    assert [key.name for key in all_keys().values() if not key.doc] == []


@pytest.mark.parametrize("judge", [{"cache": None}, {"rubric": "none"}, {"": [None, ("none",)]}])
def test_to_toml_keeps_none_in_tables_of_judges(tmp_path: Path, judge: dict[str, Any]) -> None:
    config = build({"reward": {"judges": [judge]}})
    (tmp_path / "config.toml").write_text(to_toml(config), encoding="utf-8")
    read = read_settings(tmp_path / "config.toml")["reward"]["judges"]
    assert json.dumps(read) == json.dumps([judge])


def test_read_saved_settings_drops_removed_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Earlier versions wrote these keys into every file that they saved. Values that all runs have now need no note."""
    old = to_toml(build({"env": {"kind": "bandit"}})).replace("[system]", "[system]\ndeterministic = true")
    old = old.replace("[rollout]", "[rollout]\ntop_p = 0.9\ntop_k = 0").replace(
        "[train]", "[train]\nbetas = [0.9, 0.95]"
    )
    run, models = tmp_path / "run", tmp_path / "evaluation" / "models"
    for file in (run / "config.toml", models / "tiny.toml"):
        file.parent.mkdir(parents=True)
        file.write_text(old)
    assert configure(start_from=str(run)).env.kind == "bandit"
    with pytest.raises(UserError, match="was made by an older version"):
        configure(resume=str(run))
    plan = {"models": [{"name": "tiny", "label": "tiny", "source": "tiny"}]}
    assert saved_models(models.parent, plan)[0].config.env.kind == "bandit"
    notes = [record.getMessage() for record in caplog.records]
    assert notes == [
        f"note: ignored settings that no longer exist in {file}: rollout.top_p"
        for file in (run / "config.toml", models / "tiny.toml")
    ]


@pytest.mark.parametrize(
    ("provenance", "writer"),
    [('{"turnwise": "9.1.0"}', r"turnwise 9\.1\.0 wrote it"), ("{", "An unknown version of turnwise wrote it")],
)
def test_unknown_key_of_a_run_names_the_file_and_its_version(tmp_path: Path, provenance: str, writer: str) -> None:
    newer = to_toml(build({"env": {"kind": "bandit"}})).replace("[algo]", "[algo]\nwarp = 3")
    (tmp_path / "config.toml").write_text(newer)
    (tmp_path / "provenance.json").write_text(provenance)
    message = (
        rf"config\.toml has the setting algo\.warp, which turnwise \S+ does not know\. {writer}\. Use that version"
    )
    with pytest.raises(UserError, match=message):
        configure(resume=str(tmp_path))


def test_removed_keys_in_a_users_file_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('env.kind = "bandit"\n[system]\ndeterministic = true\n')
    with pytest.raises(UserError, match=r"system\.deterministic no longer exists\. Equal seeds"):
        configure(str(tmp_path / "mine.toml"))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            '[train]\nsteps = "8"',
            "train.steps is a text in quotes: must be a whole number of 1 or more, without quotes",
        ),
        ('[algo.loss]\nclip_high = "0.3"', "algo.loss.clip_high is a text in quotes: must be a number"),
        ('[sft]\nthink = "true"', "sft.think is a text in quotes: must be true or false"),
        (
            '[reward]\nfunctions = ["a.py:f"]\nweights = [0.9, "0.95"]',
            "reward.weights.1 is a text in quotes: must be a list of a number",
        ),
    ],
)
def test_quoted_numbers_in_a_file_are_errors(text: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(text)
    settings = read_settings(tmp_path / "own.toml")
    with pytest.raises(UserError) as caught:
        build(settings)
    assert str(caught.value).startswith(complaint)


def test_overrides_stay_text_that_is_parsed(tmp_path: Path) -> None:
    settings = {"train": {"steps": "8"}, "reward": {"weights": ["0.9"]}}
    config = build(settings, [("train.steps", "9"), ("reward.weights", "0.8")])
    assert config.train.steps == 9 and config.reward.weights == (0.8,)


def test_check_params_rejects_quoted_numbers() -> None:
    spec = load_spec("frozen_lake")
    assert spec.check_params({"size": 6})["size"] == 6
    with pytest.raises(UserError, match=r"^env\.params\.size is a text in quotes: give the value without quotes\.$"):
        spec.check_params({"size": "6"})


def test_read_options_rejects_quoted_numbers() -> None:
    judge = {"model": "m", "rubric": "r"}
    assert read_options(JudgeSettings, judge | {"max_tokens": 8}, "a judge").max_tokens == 8
    for options in ({"max_tokens": "8"}, {"scale": [0, "1"]}):
        with pytest.raises(UserError, match=r"^a judge, (max_tokens|scale\.1): give the value without quotes\.$"):
            read_options(JudgeSettings, judge | options, "a judge")
