"""Messages before a run starts: how many rows there are, and which servers are missing."""

import json
import logging
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import mcp_scripted_server_for_tests
from endpoint_for_tests import Server, completion
from endpoint_for_tests import serving as serving_model
from judges_for_tests import JudgeServer, serving
from mcp_tools_for_tests import RAW, all_gone, read_pids
from runs_for_tests import environments_of, printed, quiet, small
from turnwise.cli.main import main
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.models.loading.model_files import GGUF_HEADER
from turnwise.models.loading.tiny import tiny_config, tiny_vlm_config
from turnwise.run import build_parts, validate
from turnwise.run import train as train_module
from turnwise.run.environment_mix import build_environment_mix, describe_rows
from turnwise.run.evaluation.arguments import RemoteModels
from turnwise.run.evaluation.evaluate import evaluate_into_folder
from turnwise.run.evaluation.plan import plan_evaluation
from turnwise.run.sft import sft
from turnwise.run.train import train
from turnwise.run.validate import CheckedRun, check_run, check_sections

NOBODY = "http://127.0.0.1:9"
SILENT = shlex.join([sys.executable, "-I", "-S", "-c", "print('usage: serve PORT')"])


@pytest.fixture(autouse=True)
def keyless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_policy(*given: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(build_parts, "load_policy_of_run", load_policy)


def tools(folder: Path, rows: tuple[int, int, int] = (3, 2, 2), **params: Any) -> dict[str, Any]:
    """Settings of `env`, over a file with so many rows to train on, to validate and to test."""
    splits = [split for split, count in zip(("train", "validation", "test"), rows, strict=True) for _ in range(count)]
    lines = [{"question": f"{number}?", "answer": "1", "split": split} for number, split in enumerate(splits)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    given = {"tasks": str(folder / "rows.jsonl"), "tools": ["python"], "reward": "exact_match", **params}
    return {"env__kind": "tools", "env__params": given}


def checked(config: Config) -> None:
    check_run(config, build_environment_mix(config.env, config.agent))


def judge(**options: Any) -> dict[str, Any]:
    return {"use": "judge", "model": "m", "rubric": "r", "cache": "verdicts", **options}


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a command that is not a server": (
        {"tools": [{"mcp": SILENT}]},
        "it printed: usage: serve PORT: run the command in a",
    ),
    "two servers whose tools have one name": (
        {"tools": [{"mcp": RAW}, {"mcp": RAW}]},
        'Two tools are called "do": rename one with name = "...", or set prefix for a server',
    ),
    "an MCP server that is not there": ({"tools": [{"mcp": f"{NOBODY}/mcp"}]}, "start that server, or correct the URL"),
    "a search server that is not there": (
        {"tools": [{"use": "search", "url": NOBODY}]},
        "start it with `turnwise search",
    ),
    "a judge that is not there": (
        {"reward": [judge(endpoint=f"{NOBODY}/v1")]},
        "no answer from http://127.0.0.1:9/",
    ),
    "a judge without its key": ({"reward": [judge()]}, "requires a key: set OPENAI_API_KEY"),
    "a judge that is not a model": ({"reward": [judge(endpoint="local", model="tinny")]}, 'did you mean "tiny"'),
}


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize("case", BROKEN)
def test_unreachable_server_is_reported_before_loading_a_model(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params, said = BROKEN[case]
    settings = tools(tmp_path, **params)
    with pytest.raises(UserError) as caught:
        train(small(tmp_path / "runs", **settings), console=quiet())
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "runs").exists(), "no folder of a run that never was"
    with pytest.raises(UserError) as caught:
        plan_evaluation(["tiny", "tools"], overrides=[("env.params", settings["env__params"])])
    assert said in str(caught.value)
    typed = [word for name, value in settings["env__params"].items() for word in (f"--env.params.{name}", toml(value))]
    assert main(["train", "tools", "--dry-run", *typed]) == 2
    assert said in capsys.readouterr().err


def test_uncallable_server_tool_is_reported_before_a_run(tmp_path: Path) -> None:
    offers = {"tools": [{"name": "a b", "inputSchema": {"type": "object"}}], "later": [], "answers": {}}
    (tmp_path / "offers.json").write_text(json.dumps(offers))
    program = mcp_scripted_server_for_tests.__file__
    command = shlex.join([sys.executable, "-I", "-S", program, str(tmp_path / "offers.json")])
    with pytest.raises(UserError, match="an agent cannot call a tool with the name 'a b'"):
        checked(small(tmp_path, **tools(tmp_path, tools=[{"mcp": command}])))


def toml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.usefixtures("no_model")
def test_check_run_asks_the_group_judge(tmp_path: Path) -> None:
    one = {name: value for name, value in judge(endpoint=f"{NOBODY}/v1").items() if name != "use"}
    with pytest.raises(UserError, match=f"the judge m: no answer from {NOBODY}/v1/chat/completions"):
        train(small(tmp_path, reward__judges=(one,)), console=quiet())


@pytest.mark.parametrize(
    ("status", "complaint"),
    [
        ("401", r"the judge m: 127.0.0.1 requires a key \(401\) .*: set OPENAI_API_KEY"),
        ("404", r'the judge m: 127.0.0.1 answered 404 .*: check model = "m", and that endpoint ends in /v1'),
        ("html", r"the judge m: .* does not answer as a chat endpoint: .*: check model"),
        ("503", ""),
        ("drop", ""),
    ],
)
def test_check_run_reports_a_judge_that_cannot_answer(status: str, complaint: str, tmp_path: Path) -> None:
    model = JudgeServer(lambda messages: "")
    model.check_faults = [status]
    with serving(model) as url:
        config = small(tmp_path, **tools(tmp_path, reward=[judge(endpoint=url)]))
        if not complaint:
            checked(config)
        else:
            with pytest.raises(UserError, match=complaint):
                checked(config)
    assert len(model.checks) == 1


def test_check_sft_reports_a_judge_that_cannot_answer(tmp_path: Path) -> None:
    rows = tools(tmp_path, reward=[judge(endpoint=f"{NOBODY}/v1")])
    asked, answered = {"role": "user", "content": "1?"}, {"role": "assistant", "content": "<answer>1</answer>"}
    (tmp_path / "talks.jsonl").write_text(json.dumps({"messages": [asked, answered]}))
    with pytest.raises(UserError, match="the judge m: no answer from"):
        sft(small(tmp_path, **rows, sft__demos=str(tmp_path / "talks.jsonl")), console=quiet())


def test_servers_are_checked_once_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(validate, "QUIET_S", 0.0)
    pids, model = tmp_path / "pids", JudgeServer(lambda messages: "")
    with serving(model) as url, caplog.at_level(logging.INFO):
        given = tools(tmp_path, tools=[{"mcp": f"{RAW} {pids}"}], reward=["exact_match", judge(endpoint=url)])
        checked(small(tmp_path, **given))
    assert len(pids.read_text().splitlines()) == 1 and all_gone(read_pids(pids))
    assert (len(model.checks), model.requests) == (1, [])
    assert caplog.messages.count("waiting for the servers of tools and judges") == 1


def test_check_run_without_servers_starts_no_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_loop(*given: Any) -> None:
        raise AssertionError("somebody was asked")

    monkeypatch.setattr(validate.asyncio, "run", run_loop)
    checked(small(tmp_path))
    checked(small(tmp_path, **tools(tmp_path)))


def printed_lines(folder: Path, rows: tuple[int, int, int], **settings: Any) -> list[str]:
    config = small(folder, **tools(folder, rows), **settings)
    return describe_rows(build_environment_mix(config.env, config.agent), config)


def test_describe_rows_counts_rows_per_split(tmp_path: Path) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "few").mkdir()
    assert printed_lines(tmp_path, (1200, 15, 30), rollout__groups=8, train__mini_batch=32) == [
        "rows.jsonl: 1,200 rows to train on, 15 to validate, 30 held out"
    ]
    assert printed_lines(tmp_path / "some", (8, 30, 29), rollout__groups=8)[1:] == [
        "note: 29 held-out rows measure success only to +-17 points; 30 or more are better"
    ]
    assert printed_lines(tmp_path / "few", (7, 30, 1), rollout__groups=8, eval__split="validation")[1:] == [
        "note: a step draws rollout.groups 8 tasks from 7 rows, so some repeat"
    ]
    assert describe_rows(environments_of(small(tmp_path)), small(tmp_path)) == [], "tasks without end are not counted"


@pytest.mark.parametrize(("test", "notes"), [("assert f(2) == 4", 0), ("assert f(2) > 3", 1)])
def test_describe_rows_warns_of_tests_that_code_could_fake(test: str, notes: int, tmp_path: Path) -> None:
    config = small(tmp_path, **tools(tmp_path, (30, 30, 30), reward=[{"use": "unit_tests", "against": "answer"}]))
    file = tmp_path / "rows.jsonl"
    file.write_text(file.read_text().replace('"1"', json.dumps(test)))
    lines = describe_rows(build_environment_mix(config.env, config.agent), config)
    start = "note: the reward unit_tests has tests that submitted code could"
    assert sum(line.startswith(start) for line in lines) == notes


def test_run_prints_its_rows_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train_module.ReinforcementRun, "train", lambda self, resume: {"finished": False, "steps": 0})
    console = quiet()
    train(small(tmp_path / "runs", rollout__trial_s=0, **tools(tmp_path)), console=console)
    assert printed(console).startswith(
        "rows.jsonl: 3 rows to train on, 2 to validate, 2 held out\nnote: 2 held-out rows"
    )


def evaluated(folder: Path, rows: tuple[int, int, int], episodes: int) -> tuple[int, str]:
    """Return the number of episodes and the printed text."""
    server, console = Server(lambda request: completion("<answer>1</answer>")), quiet()
    params = tools(folder, rows)["env__params"]
    with serving_model(server) as url:
        overrides = [("env.params", params), ("eval.episodes", episodes)]
        asked = plan_evaluation(["tools"], remote=RemoteModels(url=url, models=("m",)), overrides=overrides)
        evaluate_into_folder(asked, folder / "out", console=console)
    return len(server.requests), printed(console)


def test_evaluation_reports_fewer_rows_than_requested(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    played, said = evaluated(tmp_path / "a", (1, 1, 5), episodes=256)
    assert played == 5
    note = "The test split of rows.jsonl has 5 tasks, fewer than eval.episodes 256. All of them are used."
    assert note in said
    played, said = evaluated(tmp_path / "b", (1, 1, 5), episodes=5)
    assert played == 5 and "has 5 tasks" not in said


def test_missing_task_of_a_file_is_refused(tmp_path: Path) -> None:
    overrides = [("env.params", tools(tmp_path)["env__params"])]
    assert len(plan_evaluation(["tiny", "tools"], overrides=overrides, seeds="0,1").seeds) == 2
    with pytest.raises(UserError, match=r"seeds 2: The test split of rows.jsonl has 2 tasks, counted from 0"):
        plan_evaluation(["tiny", "tools"], overrides=overrides, seeds="1-2")


def test_eval_accepts_a_toml_file_as_environment(tmp_path: Path) -> None:
    params = tools(tmp_path)["env__params"]
    lines = [f"{name} = {json.dumps(value)}" for name, value in params.items()]
    (tmp_path / "own.toml").write_text("\n".join(['[env]\nkind = "tools"', *lines]))
    asked = plan_evaluation(["tiny", "own.toml"])
    assert asked.spec.name == "tools" and [each.source for each in asked.models] == ["tiny"]


@pytest.mark.parametrize(
    ("changes", "module", "message"),
    [
        (
            {"record__pictures_every": 1},
            "PIL",
            r"record\.pictures_every needs .*\. Run `pip install 'turnwise\[pictures\]'`",
        ),
        ({"lora__rank": 4}, "peft", r"lora\.rank needs .*'turnwise\[lora\]'"),
    ],
)
def test_check_run_names_a_missing_package(
    changes: dict[str, object], module: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(tmp_path, **changes)
    check_run(config, build_environment_mix(config.env, config.agent))
    monkeypatch.setattr(validate, "find_spec", lambda name: None if name == module else object())
    with pytest.raises(UserError, match=message):
        check_run(config, build_environment_mix(config.env, config.agent))


@pytest.mark.parametrize("is_there", [True, False])
def test_dry_run_asks_the_hub_for_a_model(
    is_there: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def ask(name: str) -> bool:
        asked.append(name)
        if not is_there:
            raise UserError(f'no model "{name}" on the Hugging Face hub')
        return True

    monkeypatch.setattr(validate, "is_hub_available", ask)
    assert main(["train", "bandit", "--model.name", "someone/7b", "--dry-run"]) == (0 if is_there else 2)
    assert asked == ["someone/7b"]
    expected = "checked: someone/7b is on the Hugging Face hub" if is_there else 'no model "someone/7b"'
    assert expected in capsys.readouterr().err
    assert main(["train", "bandit", "--dry-run"]) == 0 and len(asked) == 1


@pytest.mark.parametrize("env", ["frozen_lake", "svg_reconstruction"])
def test_text_only_model_given_images_is_one_line_before_any_work(env: str, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    params = {"observation": "image"} if env == "frozen_lake" else {}
    advice = "Choose a vision-language model, such as --model.name tiny_vlm"
    with pytest.raises(UserError, match=f"shows images, and the model tiny reads text only. {advice}") as caught:
        train(small(tmp_path, env__kind=env, env__params=params, record__name="blind"), console=quiet())
    assert ("observation text" in str(caught.value)) == bool(params) and "\n" not in str(caught.value)
    assert not (tmp_path / "blind").exists()


@pytest.mark.parametrize(("judge", "refused"), [("tiny", True), ("tiny_vlm", False)])
def test_text_only_local_judge_given_images_is_refused(judge: str, refused: bool, tmp_path: Path) -> None:
    """Else it is found when the judge is first asked, after the warm-up."""
    settings = {"model": judge, "endpoint": "local", "cache": str(tmp_path)}
    params = {"observation": "image", "reasoning": "both", "state_judge": settings}
    config = small(tmp_path, env__kind="web_shop", env__params=params, model__name="tiny_vlm")
    problem = "web_shop shows images, and the judge tiny reads text only.*in env.params.state_judge"
    with pytest.raises(UserError, match=problem) if refused else nullcontext():
        checked(config)


def model_folder(folder: Path, config: Any) -> str:
    """A model without weights."""
    config.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("model", ["tiny", "smollm2-135m", "folder", "model.gguf"])
def test_dry_run_refuses_images_for_a_text_only_model(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.gguf").write_bytes(GGUF_HEADER.pack(b"GGUF", 3, 1, 1) + bytes(8))
    name = model_folder(tmp_path / "text", tiny_config()) if model == "folder" else model
    command = ["train", "frozen_lake", "--env.params.observation", "image", "--model.name", name, "--dry-run"]
    assert main(command) == 2
    error = capsys.readouterr().err
    assert f"frozen_lake shows images, and the model {name} reads text only." in error and error.count("\n") == 1
    assert "or set env.params.observation text." in error


@pytest.mark.parametrize("model", ["tiny_vlm", "smollm2-135m-vision", "folder"])
def test_dry_run_accepts_images_for_a_vision_language_model(model: str, tmp_path: Path) -> None:
    name = model_folder(tmp_path / "images", tiny_vlm_config()) if model == "folder" else model
    command = ["train", "frozen_lake", "--env.params.observation", "image", "--model.name", name, "--dry-run"]
    assert main(command) == 0


def test_refused_images_of_a_mix_name_its_setting(tmp_path: Path) -> None:
    lake = {"kind": "frozen_lake", "params": {"observation": "image"}}
    with pytest.raises(UserError, match=r"^lake shows images, .* or set env\.mix\.lake\.params\.observation text\.$"):
        checked(small(tmp_path, env__mix={"lake": lake}))


LAKE = {"kind": "frozen_lake", "params": {"reasoning": "world_modelling"}}


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        (
            {"algo__loss_tokens": "prediction"},
            r'^algo\.loss_tokens "prediction": .*reasoning to world_modelling or both',
        ),
        ({"algo__advantage_tokens": "answer+observation"}, r"^algo\.advantage_tokens .*reasoning to grounding or both"),
        ({"algo__loss_tokens": "reasoning"}, "env.params.reasoning to grounding or world_modelling or both, or change"),
        ({"algo__loss_tokens": "observation", "env__params": {"reasoning": "world_modelling"}}, "<observation>"),
        ({"algo__loss_tokens": "observation", "env__mix": {"lake": LAKE}}, "no prompt of the run asks"),
    ],
)
def test_mask_of_a_section_that_no_prompt_asks_for_is_refused(
    settings: dict[str, Any], fix: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=fix):
        checked(small(tmp_path, **{"env__kind": "frozen_lake", **settings}))


OWN = """
import turnwise as tw


class Asks(tw.TextEnv):
    def reset(self, rng):
        return "Write <think><prediction>what follows</prediction></think>."

    def step(self, action):
        return tw.won()
"""


@pytest.mark.parametrize(
    "settings",
    [
        {"env__params": {"reasoning": "both"}},
        {"env__mix": {"lake": LAKE}},
        {"rollout__prefix": "<think><prediction>"},
        {"data__sources": ("runs/old",)},
        {"env__kind": "asks.py:Asks"},
        {"env__mix": {"own": {"kind": "asks.py:Asks"}}},
        {"algo__loss_tokens": "think+answer"},
        {"algo__loss_tokens": "rules.py:prediction"},
    ],
)
def test_mask_of_a_section_that_replies_may_have_is_accepted(settings: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "asks.py").write_text(OWN)
    config = small(tmp_path, **{"env__kind": "frozen_lake", "algo__loss_tokens": "prediction", **settings})
    check_sections(config.algo, CheckedRun(config=config, environments=build_environment_mix(config.env, config.agent)))


def test_mask_of_a_section_is_accepted_where_the_task_has_the_prompt(tmp_path: Path) -> None:
    config = small(tmp_path, **tools(tmp_path), algo__loss_tokens="prediction")
    check_sections(config.algo, CheckedRun(config=config, environments=build_environment_mix(config.env, config.agent)))


def test_prefix_that_begins_the_answer_is_refused_with_reasoning(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'^rollout\.prefix "<answer>" begins the answer, .*params\.reasoning both\.'):
        checked(small(tmp_path, env__kind="frozen_lake", env__params={"reasoning": "both"}, rollout__prefix="<answer>"))
    for prefix in ("", "<think><observation>", "<think><observation>ice</observation></think><answer>"):
        checked(small(tmp_path, env__kind="frozen_lake", env__params={"reasoning": "both"}, rollout__prefix=prefix))
    checked(small(tmp_path, env__kind="frozen_lake", rollout__prefix="<answer>"))
