"""The form of a new run: its schema, its checks, and the command lines that it starts."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from turnwise.cli import main as cli
from turnwise.config.keys import all_keys, settings_of
from turnwise.config.load import build, to_toml
from turnwise.config.schema import Config
from turnwise.envs.catalogue import CATALOGUE
from turnwise.envs.registry import load_spec
from turnwise.record.run_folder import RunFolder
from turnwise.studio import form
from turnwise.studio.form import check_request, configure_request, describe_form, type_value
from turnwise.studio.requests import RunRequest

ENVIRONMENT = """
import turnwise as tw

class Guess(tw.TextEnv):
    \"\"\"Guess.\"\"\"
    max_turns = {turns}
    def reset(self, rng): return "guess"
    def step(self, action): return tw.won("yes")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_run(name: str, **settings: Any) -> Path:
    overrides = [(key.replace("__", "."), value) for key, value in settings.items()]
    path = Path("runs") / name
    RunFolder.create(path, to_toml(build({}, overrides))).close()
    return path


REQUESTS: list[dict[str, Any]] = [
    {"target": "frozen_lake"},
    {"target": "bandit", "settings": {"algo.loss": "gspo", "algo.loss.clip_high": "0.3", "seed": "7"}},
    {"target": "bandit", "settings": {"algo.advantage.kind": "gae", "rollout.stop": "a,b", "train.max_minutes": "2"}},
    {"target": "frozen_lake", "settings": {"env.params.size": "5", "record.name": "mine", "rollout.prefix": "--x"}},
    {"target": "connect_four", "like": "frozen_lake", "settings": {"engine": "native", "context": "full"}},
    {"command": "sft", "target": "sokoban", "settings": {"sft.count": "64", "sft.demos": "solver"}},
    {"command": "sft", "target": "frozen_lake"},
    {"start_from": "runs/parent", "settings": {"train.learning_rate": "0.003", "train.micro_tokens": "none"}},
    {"resume": "runs/parent", "settings": {"train.max_minutes": "5"}},
]


@pytest.mark.parametrize("given", REQUESTS)
def test_command_line_starts_the_run_that_was_checked(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    write_run("parent", env__kind="bandit", train__learning_rate=0.01)
    request, started = RunRequest(**given), list[Config]()

    def start(config: Config, **options: Any) -> None:
        assert options["resume"] == bool(request.resume)
        started.append(config)

    monkeypatch.setattr("turnwise.run.train.train", start)
    monkeypatch.setattr("turnwise.run.sft.sft", start)
    cli.run(request.spell())
    assert started == [configure_request(request)]
    for name, text in request.settings.items():
        assert check_request(request)["settings"][name.removesuffix(".kind")]["value"].strip('[]"') != "", (name, text)


def test_values_can_be_typed_again() -> None:
    """The form shows all values as text; typed again they give the same run."""
    configs = [configure_request(RunRequest(target=name)) for name in ("bandit", "sokoban", "math_code", "web_shop")]
    for config in configs:
        texts = {each.key: type_value(each.value) for each in settings_of(config)}
        assert build({}, list(texts.items())) == config


@pytest.mark.parametrize("value", ["none", "Null", '"quoted"', "'x'", "[1]", "", "a b", "1e-3", "漢字 🙂"])
def test_texts_that_look_like_something_else_can_be_typed_again(value: str) -> None:
    config = build({}, [("rollout.prefix", type_value(value)), ("env.params.note", json.dumps(value))])
    assert config.rollout.prefix == value
    assert build({"sft": {"demos": value}}).sft == build({}, [("sft.demos", type_value(value))]).sft


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"target": "frozen_laek"}, 'did you mean "frozen_lake"?'),
        (
            {"target": "bandit", "settings": {"train.stepz": "3"}},
            'unknown key train.stepz: did you mean "train.steps"?',
        ),
        (
            {"target": "bandit", "settings": {"train.steps": "0"}},
            "train.steps = 0: must be a whole number of 1 or more",
        ),
        ({"target": "bandit", "settings": {"algo.loss": "ppo2"}}, 'Unknown algo.loss "ppo2"'),
        ({"target": "bandit", "settings": {"model.name": "tny"}}, 'Unknown model "tny": did you mean "tiny"?'),
        ({"target": "bandit", "settings": {"record.name": "a/b"}}, "record.name 'a/b' is not a folder name"),
        ({"target": "bandit", "settings": {"record.name": "parent"}}, "already contains a run"),
        ({"target": "bandit", "settings": {"data.sources": "nowhere"}}, "data.sources: nowhere does not exist"),
        ({"start_from": "runs/parent", "settings": {"env.params.sizee": "3"}}, "sizee"),
        ({"resume": "runs/parent", "settings": {"train.steps": "5"}}, "keeps its own settings when it is resumed"),
    ],
)
def test_errors_are_those_of_the_command_line(given: dict[str, Any], message: str) -> None:
    write_run("parent", env__kind="bandit")
    error = check_request(RunRequest(**given))["error"]
    assert message in error
    assert "\n" not in error


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"target": "bandit", "resume": "x"},
        {"target": "--help"},
        {"target": "-"},
        {"start_from": "--resume"},
        {"target": "bandit", "weights": True},
        {"target": "a\nb"},
        {"target": "bandit", "settings": {"train.steps 5 --resume x": "1"}},
        {"target": "bandit", "command": "serve"},
    ],
)
def test_requests_that_would_be_other_commands_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RunRequest(**given)


def test_values_cannot_become_options() -> None:
    words = RunRequest(target="bandit", settings={"rollout.prefix": "--resume"}).spell()
    assert words == ["train", "bandit", "--rollout.prefix=--resume"]


def test_form_has_every_setting_with_its_bounds_and_choices() -> None:
    described = describe_form()
    settings = {each["name"]: each for each in described["settings"]}
    assert list(settings) == list(all_keys())
    steps, rate, loss = settings["train.steps"], settings["train.learning_rate"], settings["algo.loss"]
    assert (steps["types"], steps["bounds"], steps["section"]) == (["integer"], {"min": 1}, "train")
    assert rate["bounds"] == {"above": 0.0, "max": 1.0}
    assert loss["is_choice"]
    assert loss["takes_own"]
    assert {"ppo", "gspo", "dpo"} <= set(loss["names"])
    assert settings["algo.loss.sft_coef"]["kinds"] == ["dpo"]
    assert settings["train.optimizer_state"]["names"] == ["auto", "device", "host"]
    assert settings["record.name"]["optional"]
    assert settings["env.params"]["is_free"]
    assert all(each["doc"] for each in (*described["sections"], *described["settings"]))
    assert "frozen_lake" in [each["name"] for each in described["recipes"]]
    assert "dapo" in [each["name"] for each in described["methods"]]
    json.dumps(described, allow_nan=False)


def test_check_returns_all_values_and_the_parameters_of_the_environment() -> None:
    request = RunRequest(target="frozen_lake", settings={"algo.loss": "gspo", "env.params.size": "6"})
    checked = check_request(request)
    assert checked["settings"]["algo.loss"] == {"value": "gspo", "changed": True}
    assert checked["settings"]["env.params.size"]["value"] == "6"
    assert "algo.loss.dual_clip" not in checked["settings"] or "gspo" in all_keys()["algo.loss.dual_clip"].kinds
    params = {each["name"].removeprefix("env.params."): each for each in checked["params"]}
    assert (params["size"]["types"], params["size"]["default"], params["slippery"]["default"]) == (
        ["integer"],
        "4",
        "false",
    )
    assert params["size"]["doc"] and params["size"]["allowed"] == "a whole number from 4 to 8"
    assert (params["max_actions"]["optional"], params["max_actions"]["default"]) == (True, "10")
    assert params["reasoning"]["names"] == ["free", "grounding", "world_modelling", "both"]


def test_parameters_of_every_environment_can_be_typed_again() -> None:
    for name in CATALOGUE:
        spec = load_spec(name)
        config = build({}, [("env.kind", name)])
        params = form._list_params(config)
        assert [each["name"] for each in params] == [f"env.params.{each.name}" for each in spec.parameters()]
        typed = build({}, [(each["name"], each["default"]) for each in params if each["default"]]).env.params
        required = dict.fromkeys(spec.required_params, "x")
        assert spec.params_model.model_validate({**typed, **required}) == spec.params_model.model_validate(required)


def test_code_of_the_user_is_loaded_anew_in_another_process(here: Path) -> None:
    """The studio would keep the first version of the file, and end with it if it exits."""
    request = RunRequest(target="guess.py:Guess")
    for turns in (3, 4):
        (here / "guess.py").write_text(ENVIRONMENT.format(turns=turns))
        checked = check_request(request)
        assert checked["settings"]["env.kind"]["value"].endswith("guess.py:Guess")
        limit = next(each for each in checked["params"] if each["name"] == "env.params.max_turns")
        assert limit["default"] == str(turns)
    assert not any(getattr(module, "__file__", "") == str(here / "guess.py") for module in sys.modules.values())


def test_code_of_the_user_that_fails_or_hangs_is_an_error(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    request = RunRequest(target="bad.py:Bad")
    (here / "bad.py").write_text("import os\nos._exit(3)\n")
    assert check_request(request)["error"].startswith("Checking the settings failed")
    (here / "bad.py").write_text("1 / 0\n")
    assert "division by zero" in check_request(request)["error"]
    (here / "bad.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(form, "CHECK_S", 3.0)
    assert "took longer than 3 s" in check_request(request)["error"]


def test_runs_that_name_code_are_checked_in_another_process(here: Path) -> None:
    run = write_run("own", env__kind=str(here / "guess.py:Guess"))
    assert form._runs_code(RunRequest(start_from=str(run)))
    assert not form._runs_code(RunRequest(start_from=str(write_run("plain", env__kind="bandit"))))
    (here / "mine.toml").write_text('[env]\nkind = "guess.py:Guess"\n')
    assert form._runs_code(RunRequest(target="mine.toml"))
    assert form._runs_code(RunRequest(target="bandit", settings={"algo.loss": "loss.py:mine"}))
