"""Output and exit codes of the commands."""

import io
import logging
import re
import sys
from pathlib import Path

import pytest

from turnwise.cli import main as cli
from turnwise.cli.commands import COMMANDS
from turnwise.cli.train import COMMON_SETTINGS
from turnwise.config.keys import all_keys, show_value
from turnwise.config.load import build, to_toml
from turnwise.core.errors import UserError
from turnwise.run import sft as run_sft
from turnwise.run import train as run_train


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder. A command that starts a run fails its test."""
    monkeypatch.chdir(tmp_path)
    for name in ("train", "train_seeds"):
        monkeypatch.setattr(run_train, name, refuse_to_train)


def refuse_to_train(*args: object, **kwargs: object) -> None:
    pytest.fail("a run was started")


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str]):
    def run(*tokens: str) -> Outcome:
        code = cli.main(tokens)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


ERRORS = [
    ("trian", 'Unknown command "trian": did you mean "train"?'),
    ("train frozn_lake", 'Unknown recipe or environment "frozn_lake": did you mean "frozen_lake"?'),
    ("train", "Give one of: a recipe"),
    ("train frozen_lake --from x", "Give one of: a recipe"),
    ("train frozen_lake --algo.clip_hi 1", 'unknown key algo.clip_hi: did you mean "algo.loss.clip_high"?'),
    ("train frozen_lake --algo.advantage.gamma 1.5", "algo.advantage.gamma = 1.5: must be a number from 0 to 1"),
    ("train frozen_lake --algo.advantage.gamma=1.5", "algo.advantage.gamma = 1.5: must be a number from 0 to 1"),
    ("train frozen_lake --algo.advantage.gamma", "--algo.advantage.gamma needs a value"),
    ("train frozen_lake --algo.advantage.gamma --dry-run", "--algo.advantage.gamma needs a value"),
    ("train frozen_lake --steps 3", "Unknown option --steps: did you mean --train.steps?"),
    ("train frozen_lake --stpes=3", "Unknown option --stpes: did you mean --train.steps?"),
    ("train frozen_lake --beta 0", "Unknown option --beta: use --algo.kl_coef (0 keeps no reference model)"),
    ("train frozen_lake --use-vllm=true", "Unknown option --use-vllm: use --engine (vllm)"),
    ("train frozen_lake --rollout.n 8", "unknown key rollout.n: use rollout.group_size (episodes per task)"),
    ("train frozen_lake --algo.loss dapo --dry-run", 'Unknown algo.loss "dapo": DAPO is several settings: set '),
    ("sft frozen_lake --from runs/r", "Unknown option --from: did you mean --demos?"),
    ("train frozen_lake --sead 3", "Unknown option --sead: did you mean --seed?"),
    ("train frozen_lake --seed", "--seed needs a value"),
    ("train frozen_lake --seed x", 'Invalid value for --seed: unable to convert "x"'),
    ("train frozen_lake --seeds 0,x", "seeds 0,x: must be distinct whole numbers"),
    ("train frozen_lake --seeds 0,0", "seeds 0,0: must be distinct whole numbers"),
    ("train frozen_lake --seed 1 --seed 2", "--seed is given twice: remove one of them"),
    ("train frozen_lake --seed=1 --name x --seed=1", "--seed is given twice: remove one of them"),
    ("train frozen_lake --seed 1 --seeds 0,1", "--seeds starts one run per seed and cannot be combined with --seed: "),
    ("train --resume x --seeds 0,1", "--seeds starts one run per seed and cannot be combined with --resume: "),
    (
        "train frozen_lake --algo.advantage.gamma 1 --algo.advantage.gamma=1",
        "algo.advantage.gamma is given twice: remove one of them",
    ),
    ("train frozen_lake --train.mini-batch 1 --train.mini_batch 1", "train.mini_batch is given twice"),
    ("train frozen_lake --name x --record.name y", "record.name is given twice: remove one of them"),
    ("train frozen_lake --max-minutes 1 --train.max_minutes 2", "train.max_minutes is given twice"),
    ("train frozen_lake --seed=-1", "seed = -1: must be a whole number"),
    ("train frozen_lake --max-minutes 0", "train.max_minutes = 0.0: must be a number above 0, or none"),
    ("train frozen_lake again", 'Unexpected argument "again": see `turnwise train --help`'),
    ("train frozen_lake --env.params.sise 5", "env.params.sise: frozen_lake has no such parameter"),
    ("train frozen_lake --algo.advantage ppo --dry-run", 'Unknown algo.advantage "ppo": PPO is a loss'),
    ("train frozen_lake --algo.advantage groo --dry-run", 'Unknown algo.advantage "groo"'),
    ("train frozen_lake --model.name tny --dry-run", 'Unknown model "tny": did you mean "tiny"?'),
    ("train frozen_lake --model.device gpu --dry-run", 'Unknown model.device "gpu"'),
    ("train bandit --name a/b --dry-run", "record.name 'a/b' is not a folder name. Remove /; record.folder sets"),
    ("train bandit --name a/b --seeds 0,1 --dry-run", "record.name 'a/b-seed0' is not a folder name."),
    ("train --from nowhere", 'No run "nowhere" here or in runs/'),
    ("train --resume nowhere", 'No run "nowhere" here or in runs/'),
    ("frozen_lake", 'Unknown command "frozen_lake": did you mean `turnwise train frozen_lake`?'),
    ("train frozen_lake train.steps=3", 'Unexpected argument "train.steps=3": write --train.steps=3'),
    ("play frozen_lake --model x", "Unknown option --model: use --model.name (a name, a folder or a run)"),
    ("train frozen_lake --lr 0.1", "Unknown option --lr: use --train.learning_rate (of the policy)"),
    ("train frozen_lake --max-minute 1", "Unknown option --max-minute: did you mean --max-minutes?"),
    ("merge runs/a --to b", "Unknown option --to: did you mean --into?"),
    ("export runs/a --into b", "Unknown option --into: did you mean --to?"),
    ("cluster plan math_code --num-gpus 8", "Unknown option --num-gpus: did you mean --gpus?"),
    ("serve --port 99999", "Port 99999 is not a port: give one from 1024 to 65535, or 0 for any free port"),
    ("serve --port -1", "Port -1 is not a port"),
    ("view --port 99999", "Port 99999 is not a port"),
    ("search index --serve --port 99999", "Port 99999 is not a port"),
    ("play", "ENV is missing"),
    ("play frozen_lake --train.steps 3", "--train.steps has no effect here: this command reads only env"),
    ("eval tiny bandit --train.steps 3", "--train.steps has no effect here: this command reads only env, model, "),
    ("eval tiny bandit --episodes 3 --eval.episodes 4", "eval.episodes is given twice"),
    ("play lake", "Unknown recipe or environment"),
    ("export runs/a", "--to is missing"),
    ("envs --algo.advantage.gamma 1", "Unknown option --algo.advantage.gamma: this command takes no settings"),
    ("recipes frozn_lake", 'Unknown recipe "frozn_lake": did you mean "frozen_lake"?'),
]


@pytest.mark.parametrize(("typed", "line"), ERRORS)
def test_wrong_input_prints_one_line_and_exits_with_2(run_cli, typed: str, line: str) -> None:
    outcome = run_cli(*typed.split())
    assert outcome.code == 2
    assert outcome.err.startswith(f"turnwise: {line}")
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_resume_with_settings_prints_both_commands(run_cli) -> None:
    run = Path("runs/cut")
    run.mkdir(parents=True)
    (run / "config.toml").write_text(to_toml(build({"env": {"kind": "bandit"}})))
    outcome = run_cli("train", "--resume", "cut", "--algo.kl_coef", "0.1", "--name", "my run")
    assert outcome.code == 2
    assert "Remove algo.kl_coef: `turnwise train --resume runs/cut`, or start a new run" in outcome.err
    assert "`turnwise train --from runs/cut --algo.kl_coef 0.1 --record.name 'my run'`" in outcome.err


def test_list_parameters_of_environments_are_separated_by_commas(run_cli) -> None:
    Path("rows.csv").write_text("question,answer\n" + "1 + 1?,2\n" * 60)
    tools = f"{TOOLS.removeprefix('train ')} rows.csv --env.params.tools"
    for command in ("train", "eval tiny"):
        outcome = run_cli(*command.split(), *tools.split(), "python,serch")
        assert outcome.code == 2 and "serch" in outcome.err and "must be a list" not in outcome.err


def test_csv_without_rows_is_not_told_to_be_json(run_cli) -> None:
    Path("rows.csv").write_text("question,answer\n")
    outcome = run_cli(*f"{TOOLS} rows.csv --dry-run".split())
    assert outcome.code == 2
    assert "rows.csv has no rows below the line with the names of its columns: add some" in outcome.err


def test_dry_run_rejects_data_without_episodes(run_cli) -> None:
    Path("rows.csv").write_text("question,answer\n")
    outcome = run_cli("train", "bandit", "--data", "rows.csv", "--dry-run")
    assert outcome.code == 2
    assert "rows.csv has no episodes. Add some, or remove it." in outcome.err


TOOLS = "train tools --env.params.reward exact_match --env.params.tasks"
MISSING = [
    "train missing.toml",
    "train missing.py:Env",
    "train bandit --model.chat_template missing.jinja --dry-run",
    "train bandit --reward.functions missing.py:f --dry-run",
    "sft bandit --demos missing.jsonl",
    f"{TOOLS} missing.jsonl --env.params.tools python --dry-run",
    f"{TOOLS} here.jsonl --env.params.tools missing.py:f --dry-run",
    f"{TOOLS} here.jsonl --env.params.tools [{{use='sql',database='missing.db'}}] --dry-run",
    f"{TOOLS} here.jsonl --env.params.tools [{{use='search',index='missing'}}] --dry-run",
    "index missing --to x",
    "search missing words",
]


@pytest.mark.parametrize("typed", MISSING)
def test_missing_file_does_not_exist(run_cli, typed: str) -> None:
    Path("here.jsonl").write_text('{"question": "1?", "answer": "1"}\n' * 30)
    outcome = run_cli(*typed.replace("tools python", 'tools ["python"]').split())
    assert outcome.code == 2 and outcome.err.count("\n") == 1
    assert "missing" in outcome.err.partition(" does not exist")[0].rpartition(" ")[2], outcome.err


def test_missing_file_error_gives_the_whole_path(run_cli) -> None:
    assert (
        f"{Path.cwd() / 'missing.py'} does not exist: check the path before the colon"
        in run_cli("train", "missing.py:Env").err
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_starts_with_usage(run_cli, name: str) -> None:
    outcome = run_cli(name, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"Usage: turnwise {name}")
    assert COMMANDS[name].help.splitlines()[0] in outcome.out


def test_help_lists_examples_then_all_commands(run_cli) -> None:
    for tokens in ((), ("--help",)):
        outcome = run_cli(*tokens)
        assert outcome.code == 0
        assert outcome.out.index("turnwise train frozen_lake") < outcome.out.index("Inspect")
        assert all(command.help.splitlines()[0] in outcome.out for command in COMMANDS.values())
        assert max(len(line) for line in outcome.out.splitlines()) <= 80


def test_train_help_lists_common_settings(run_cli) -> None:
    out = run_cli("train", "--help").out
    for part in ("--train.steps", "--model.name", "--help-all", "--dry-run", "--resume RUN", "--seeds"):
        assert part in out


def test_common_settings_equal_the_schema() -> None:
    keys = {key.option: (show_value(key.default), key.doc) for key in all_keys().values()}
    assert {option: keys[option] for option in COMMON_SETTINGS} == COMMON_SETTINGS


def test_help_all_lists_every_setting_once(run_cli) -> None:
    blocks = re.split(r"^(?=--)", run_cli("train", "--help-all").out, flags=re.MULTILINE)
    for key in all_keys().values():
        named = [block for block in blocks if block.startswith((f"--{key.name} ", f"--{key.name}.NAME "))]
        assert len(named) == 1
        assert f"{' '.join(key.doc.split())} ({key.allowed})" in " ".join(named[0].split())


@pytest.mark.parametrize(("columns", "widest"), [(None, 100), ("60", 60)])
def test_help_all_wraps_when_piped(run_cli, monkeypatch: pytest.MonkeyPatch, columns: str | None, widest: int) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    assert widest - 10 < max(map(len, run_cli("train", "--help-all").out.splitlines()[:-1])) <= widest


def test_dry_run_prints_all_settings_and_writes_nothing(run_cli, tmp_path: Path) -> None:
    outcome = run_cli(
        "train", "frozen_lake", "--dry-run", "--algo.loss.clip_low", "0.1", "--seed", "3", "--name", "mine"
    )
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert "algo.loss.clip_low = 0.1                 # default 0.2" in lines
    assert "seed = 3                                 # default 0" in lines
    assert 'record.name = "mine"                     # default none' in lines
    assert 'env.kind = "frozen_lake"' in lines
    assert list(tmp_path.iterdir()) == []


def test_from_takes_the_settings_of_a_run_except_its_name(run_cli, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "lake-1"
    run.mkdir(parents=True)
    (run / "config.toml").write_text(
        to_toml(build({}, [("train.steps", "7"), ("record.name", "lake-1"), ("seed", "5")])), encoding="utf-8"
    )
    lines = run_cli("train", "--from", "lake-1", "--seed", "6", "--dry-run").out.splitlines()
    assert any(line.startswith("train.steps = 7 ") for line in lines)
    assert any(line.startswith("seed = 6 ") for line in lines)
    assert "record.name = none" in lines


def test_sft_suggests_to_train_on_the_same_task(run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its settings, the run would train on text what was demonstrated with images."""
    monkeypatch.setattr(run_sft._SftRun, "train", lambda run, resume: {"steps": 0, "finished": True})
    settings = "--env.params.observation image --rollout.max_new_tokens 20"
    outcome = run_cli(
        "sft", "frozen_lake", *settings.split(), "--name", "r", "--model.name", "tiny_vlm", "--count", "9"
    )
    assert outcome.code == 0
    assert f"train frozen_lake {settings} --model.name runs/r" in " ".join(outcome.out.split())


def test_envs_recipes_and_models_list_their_entries(run_cli) -> None:
    assert [line.split()[0] for line in run_cli("envs").out.splitlines()[1:4]] == ["bandit", "frozen_lake", "sokoban"]
    recipes = [line.split()[0] for line in run_cli("recipes").out.splitlines() if line.strip()]
    assert {"bandit", "frozen_lake", "sokoban"} <= set(recipes)
    assert run_cli("models").out.splitlines()[1].startswith("tiny ")
    assert "--env.params.size" in run_cli("envs", "frozen_lake").out
    assert 'kind = "sokoban"' in run_cli("recipes", "sokoban").out


def test_tables_print_brackets_literally(run_cli, tmp_path: Path) -> None:
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
    out = run_cli("envs", "mine.py:Mine").out
    assert "Mine: Say [bold]yes[/] or [no]." in out
    assert "One of [red]3[/red] [4]." in out


def test_play_reads_actions_from_stdin(run_cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import turnwise as tw\n"
        "class Mine(tw.TextEnv):\n"
        '    """Say yes."""\n'
        "    def reset(self, rng): return 'yes?'\n"
        "    def step(self, action): return tw.won() if action == 'yes' else tw.lost()\n"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    outcome = run_cli("play", "mine.py:Mine")
    assert outcome.code == 0
    assert "yes?" in outcome.out
    assert "Won." in outcome.out


def test_doctor_lists_its_checks(run_cli, monkeypatch) -> None:
    monkeypatch.setattr("turnwise.run.doctor.sandbox_report", lambda: ["sandbox: not tried"])  # takes seconds
    outcome = run_cli("doctor")
    assert outcome.code == 0
    names = [line.split("  ")[0] for line in outcome.out.splitlines()]
    for name in ("python", "torch", "transformers", "cores", "memory", "threads", "gpu", "runs folder", "cache folder"):
        assert name in names


def test_version_prints_the_version(run_cli) -> None:
    assert re.fullmatch(r"turnwise \d+\.\d+\S*\n", run_cli("--version").out)


def test_full_version_prints_one_line_per_package(run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turnwise.run.versions.sandbox_report", lambda: ["sandbox: not tried"])  # takes seconds
    lines = run_cli("--version", "--full").out.splitlines()
    assert {"turnwise", "python", "torch", "gpu"} <= {line.split()[0] for line in lines}


def test_version_refuses_other_options(run_cli) -> None:
    outcome = run_cli("--version", "--ful")
    assert (outcome.code, outcome.err) == (2, "turnwise: Unexpected --ful: --version takes only --full\n")


def raising(error: BaseException):
    def run(tokens: object) -> None:
        raise error

    return run


def test_user_error_is_printed_on_one_line(run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", raising(UserError("first\n  second")))
    outcome = run_cli("train")
    assert (outcome.code, outcome.err) == (2, "turnwise: first second\n")


def test_ctrl_c_exits_with_130_and_prints_how_to_resume(run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", raising(KeyboardInterrupt("stopped; go on with: turnwise train --resume x")))
    outcome = run_cli("train")
    assert (outcome.code, outcome.err) == (130, "turnwise: stopped; go on with: turnwise train --resume x\n")
    monkeypatch.setattr(cli, "run", raising(KeyboardInterrupt()))
    assert run_cli("train").err == "turnwise: stopped\n"


def test_unexpected_exception_propagates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "run", raising(ZeroDivisionError("oops")))
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])


def test_library_log_messages_are_printed_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes"]) == 0
    capsys.readouterr()
    logging.getLogger("turnwise.models.loading.smollm2").info("downloading %s", "a model")
    assert capsys.readouterr().err == "downloading a model\n"
