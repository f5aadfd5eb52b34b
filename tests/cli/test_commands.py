"""The command line as a person meets it: what it prints, and how it ends."""

import io
import logging
import re
import sys
from pathlib import Path

import pytest

from turnwise.cli import main as cli
from turnwise.cli.commands import COMMANDS
from turnwise.config.keys import all_keys
from turnwise.config.load import build, save_toml
from turnwise.core.errors import UserError
from turnwise.recipes import run as recipes_run


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an empty folder, and where a mistake that goes unnoticed fails the test instead of training for minutes."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "train_seeds"):
        monkeypatch.setattr(recipes_run, name, not_to_be_started)


def not_to_be_started(*args: object, **kwargs: object) -> None:
    pytest.fail("a run was started")


class Answer:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]):
    def run(*tokens: str) -> Answer:
        code = cli.main(tokens)
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run


MISTAKES = [
    ("trian", 'unknown command "trian": did you mean "train"?'),
    ("train frozn_lake", 'unknown recipe or environment "frozn_lake": did you mean "frozen_lake"?'),
    ("train", "give one of RECIPE, --from RUN and --resume RUN"),
    ("train frozen_lake --from x", "give one of RECIPE, --from RUN and --resume RUN"),
    ("train frozen_lake --algo.clip_hi 1", 'unknown key algo.clip_hi: did you mean "algo.clip_high"?'),
    ("train frozen_lake --algo.gamma 1.5", "algo.gamma = 1.5: must be a number from 0 to 1"),
    ("train frozen_lake --algo.gamma=1.5", "algo.gamma = 1.5: must be a number from 0 to 1"),
    ("train frozen_lake --algo.gamma", "--algo.gamma needs a value"),
    ("train frozen_lake --algo.gamma --dry-run", "--algo.gamma needs a value"),
    ("train frozen_lake --steps 3", "unknown option --steps: did you mean --train.steps?"),
    ("train frozen_lake --stpes=3", "unknown option --stpes: did you mean --train.steps?"),
    ("sft frozen_lake --from runs/r", "unknown option --from: did you mean --demos?"),
    ("train frozen_lake --sead 3", "unknown option --sead: did you mean --seed?"),
    ("train frozen_lake --seed", "--seed needs a value"),
    ("train frozen_lake --seed x", 'Invalid value for --seed: unable to convert "x"'),
    ("train frozen_lake --seeds 0,x", "--seeds 0,x: must be different whole numbers"),
    ("train frozen_lake --seeds 0,0", "--seeds 0,0: must be different whole numbers"),
    ("train frozen_lake --seed 1 --seed 2", "--seed is given twice: leave one out"),
    ("train frozen_lake --seed=1 --name x --seed=1", "--seed is given twice: leave one out"),
    ("train frozen_lake --seed 1 --seeds 0,1", "--seeds starts a run for each of them, so leave out --seed, or"),
    ("train --resume x --seeds 0,1", "--seeds starts a run for each of them, so leave out --resume, or"),
    ("train frozen_lake --algo.gamma 1 --algo.gamma=1", "algo.gamma is given twice: leave one out"),
    ("train frozen_lake --train.mini-batch 1 --train.mini_batch 1", "train.mini_batch is given twice"),
    ("train frozen_lake --name x --record.name y", "record.name is given twice: leave one out"),
    ("train frozen_lake --max_minutes 1 --train.max_minutes 2", "train.max_minutes is given twice"),
    ("train frozen_lake --seed=-1", "seed = -1: must be a whole number"),
    ("train frozen_lake --max_minutes 0", "train.max_minutes = 0.0: must be a number above 0, or none"),
    ("train frozen_lake again", '"again" is one argument too many'),
    ("train frozen_lake --env.params.sise 5", "env.params.sise: frozen_lake has no such parameter"),
    ("train frozen_lake --algo.advantage groo --dry-run", 'unknown algo.advantage "groo"'),
    ("train frozen_lake --model.name tny --dry-run", 'unknown model "tny": did you mean "tiny"?'),
    ("train frozen_lake --model.device gpu --dry-run", 'unknown device "gpu"'),
    ("train missing.py:Env", "no file /"),
    ("train --from nowhere", 'no run "nowhere" here or in runs/'),
    ("train --resume nowhere", 'no run "nowhere" here or in runs/'),
    ("play", "ENV is missing"),
    ("play frozen_lake --train.steps 3", "--train.steps has no effect here: this command reads env"),
    ("eval tiny bandit --train.steps 3", "--train.steps has no effect here: this command reads env, model, "),
    ("eval tiny bandit --episodes 3 --eval.episodes 4", "eval.episodes is given twice"),
    ("play lake", "unknown recipe or environment"),
    ("export runs/a", "--to is missing"),
    ("envs --algo.gamma 1", "unknown option --algo.gamma: this command takes no settings"),
    ("recipes frozn_lake", 'unknown recipe "frozn_lake": did you mean "frozen_lake"?'),
]


@pytest.mark.parametrize(("typed", "line"), MISTAKES)
def test_a_mistake_gets_one_line_on_stderr_and_exit_code_2(ask, typed: str, line: str) -> None:
    answer = ask(*typed.split())
    assert answer.code == 2
    assert answer.err.startswith(f"turnwise: {line}")
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_missing_file_is_named_by_its_whole_path(ask) -> None:
    assert f"no file {Path.cwd() / 'missing.py'}: check the path before the colon" in ask("train", "missing.py:Env").err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_usage_first(ask, name: str) -> None:
    answer = ask(name, "--help")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith(f"Usage: turnwise {name}")
    assert COMMANDS[name].help.splitlines()[0] in answer.out


def test_help_lists_all_commands_under_examples(ask) -> None:
    for tokens in ((), ("--help",)):
        answer = ask(*tokens)
        assert answer.code == 0
        assert answer.out.index("turnwise train frozen_lake") < answer.out.index("Look around")
        assert all(command.help.splitlines()[0] in answer.out for command in COMMANDS.values())
        assert max(len(line) for line in answer.out.splitlines()) <= 80


def test_train_help_names_the_most_used_settings_and_where_the_others_are(ask) -> None:
    out = ask("train", "--help").out
    for part in ("--train.steps", "--model.name", "--help-all", "--dry-run", "--resume RUN", "--seeds"):
        assert part in out


def test_help_all_lists_every_setting_once(ask) -> None:
    blocks = re.split(r"^(?=--)", ask("train", "--help-all").out, flags=re.MULTILINE)
    for key in all_keys().values():
        named = [block for block in blocks if block.startswith((f"--{key.name} ", f"--{key.name}.NAME "))]
        assert len(named) == 1
        assert f"{key.doc} ({key.allowed})" in " ".join(named[0].split())


@pytest.mark.parametrize(("columns", "widest"), [(None, 100), ("60", 60)])
def test_help_all_wraps_when_piped(ask, monkeypatch: pytest.MonkeyPatch, columns: str | None, widest: int) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert widest - 10 < max(map(len, ask("train", "--help-all").out.splitlines()[:-1])) <= widest


def test_a_dry_run_prints_every_setting_and_starts_nothing(ask, tmp_path: Path) -> None:
    answer = ask("train", "frozen_lake", "--dry-run", "--algo.clip_low", "0.1", "--seed", "3", "--name", "mine")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert "algo.clip_low = 0.1                      # default 0.2" in lines
    assert "seed = 3                                 # default 0" in lines
    assert 'record.name = "mine"                     # default none' in lines
    assert 'env.kind = "frozen_lake"' in lines
    assert list(tmp_path.iterdir()) == []


def test_from_takes_a_runs_settings_but_not_its_name(ask, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "lake-1"
    run.mkdir(parents=True)
    save_toml(build({}, [("train.steps", "7"), ("record.name", "lake-1"), ("seed", "5")]), run / "config.toml")
    lines = ask("train", "--from", "lake-1", "--seed", "6", "--dry-run").out.splitlines()
    assert any(line.startswith("train.steps = 7 ") for line in lines)
    assert any(line.startswith("seed = 6 ") for line in lines)
    assert "record.name = none" in lines


def test_envs_and_recipes_and_models_list_what_there_is(ask) -> None:
    assert [line.split()[0] for line in ask("envs").out.splitlines()[1:4]] == ["bandit", "frozen_lake", "sokoban"]
    recipes = [line.split()[0] for line in ask("recipes").out.splitlines() if line.strip()]
    assert {"bandit", "frozen_lake", "sokoban"} <= set(recipes)
    assert ask("models").out.splitlines()[1].startswith("tiny ")
    assert "--env.params.size" in ask("envs", "frozen_lake").out
    assert 'kind = "sokoban"' in ask("recipes", "sokoban").out


def test_brackets_in_what_is_listed_are_printed_as_they_are(ask, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import pydantic\n"
        "import turnwise as tw\n"
        "class Mine(tw.TextEnv):\n"
        '    """Say [bold]yes[/] or [no]."""\n'
        "    class Params(pydantic.BaseModel):\n"
        "        size: int = pydantic.Field(3, description='One of [red]3[/red] [4].')\n"
        "    def reset(self, rng): return 'yes?'\n"
        "    def step(self, action): return tw.won() if action == 'yes' else tw.lost()\n"
    )
    out = ask("envs", "mine.py:Mine").out
    assert "Mine: Say [bold]yes[/] or [no]." in out
    assert "One of [red]3[/red] [4]." in out


def test_play_lets_a_person_play(ask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import turnwise as tw\n"
        "class Mine(tw.TextEnv):\n"
        '    """Say yes."""\n'
        "    def reset(self, rng): return 'yes?'\n"
        "    def step(self, action): return tw.won() if action == 'yes' else tw.lost()\n"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    answer = ask("play", "mine.py:Mine")
    assert answer.code == 0
    assert "yes?" in answer.out
    assert "Won." in answer.out


def test_doctor_tells_what_is_here(ask) -> None:
    answer = ask("doctor")
    assert answer.code == 0
    names = [line.split("  ")[0] for line in answer.out.splitlines()]
    for name in ("python", "torch", "transformers", "cores", "memory", "threads", "gpu", "runs folder", "cache folder"):
        assert name in names


def test_version(ask) -> None:
    assert ask("--version").out.startswith("turnwise 0.")


def raising(error: BaseException):
    def run(tokens: object) -> None:
        raise error

    return run


def test_a_user_error_is_one_line_whatever_its_text_is(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", raising(UserError("first\n  second")))
    answer = ask("train")
    assert (answer.code, answer.err) == (2, "turnwise: first second\n")


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", raising(KeyboardInterrupt("stopped; go on with: turnwise train --resume x")))
    answer = ask("train")
    assert (answer.code, answer.err) == (130, "turnwise: stopped; go on with: turnwise train --resume x\n")
    monkeypatch.setattr(cli, "run", raising(KeyboardInterrupt()))
    assert ask("train").err == "turnwise: stopped\n"


def test_an_unexpected_exception_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", raising(ZeroDivisionError("oops")))
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])


def test_what_the_library_logs_reaches_the_person_who_waits(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes"]) == 0
    capsys.readouterr()
    logging.getLogger("turnwise.models.loading.smollm2").info("downloading %s", "a model")
    assert capsys.readouterr().err == "downloading a model\n"
