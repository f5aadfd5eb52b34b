"""`turnwise sft`, from its demonstrations to a model that reinforcement learning continues with."""

import asyncio
import json
import re
import signal
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from hostile_for_tests import renderer_of
from runs_for_tests import episodes, metrics, quiet, rewind, small
from turnwise.cli.main import main
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.messages import Message, system, user
from turnwise.core.protocols import Observation
from turnwise.models.loading.model_files import is_adapter
from turnwise.record.run_folder import RunFolder
from turnwise.rollout.context import FullContext
from turnwise.run import demos
from turnwise.run.configure import configure
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix
from turnwise.run.evaluation.plan import plan_evaluation
from turnwise.run.sft import check_sft, sft
from turnwise.run.train import train
from turnwise.tools.call_formats import format_call
from turnwise.training import sft as train_sft
from turnwise.training.sft import first_observation, train_on_demonstrations

QUIZ = f"{Path(__file__).parents[2] / 'docs' / 'examples' / 'quiz.py'}:Quiz"
BASE = {"env__kind": "frozen_lake", "eval__every": 2, "rollout__max_tokens": 512, "checkpoint__every": 1}


def settings(folder: Path, **others: object) -> Config:
    given = {**BASE, "sft__demos": "solver", "sft__count": 16, "sft__batch": 4, "sft__think": False}
    return small(folder, **{**given, "sft__learning_rate": 1e-3, "eval__episodes": 2, **others})


def weights(run: Path, step: int = 4) -> dict[str, object]:
    folder = run / f"checkpoints/step_{step:06d}"
    return {**load_file(folder / "model.safetensors"), **load_file(folder / "learner.safetensors")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four steps, which is not changed."""
    folder = tmp_path_factory.mktemp("finished")
    assert sft(settings(folder), console=quiet())["finished"]
    return folder / "run"


def test_sft_learns_and_writes_a_complete_run_folder(tmp_path: Path) -> None:
    summary = sft(settings(tmp_path, sft__epochs=4, eval__every=8), console=quiet())
    run = tmp_path / "run"
    assert summary["finished"] and summary["steps"] == 16 and summary["demonstrations"] == 16
    rows = [row for row in metrics(run) if "train/loss" in row]
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    assert {row["eval/name"] for row in metrics(run) if "eval/name" in row} == {"before", "validation", "after"}
    assert json.loads((run / "summary.json").read_text())["demonstrations"] == 16


def test_sft_resumes_with_the_same_bits(tmp_path: Path, finished: Path) -> None:
    cut = rewind(finished, tmp_path, step=3)
    sft(settings(tmp_path), resume=True, console=quiet())
    ours, theirs = weights(finished), weights(cut)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)  # type: ignore[attr-defined]
    assert metrics(finished) == metrics(cut)
    recorded = episodes(finished)
    assert recorded == episodes(cut)
    assert {row["evaluation"] for row in recorded} >= {"before", "after"}


def test_sft_resume_runs_the_validation_that_a_stop_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"sft__count": 8, "eval__every": 1, "eval__episodes": 1, "checkpoint__every": 50}
    sft(settings(tmp_path / "whole", **short), console=quiet())

    def imitate_and_stop(*given: Any) -> tuple[float, float]:
        signal.raise_signal(signal.SIGINT)
        return train_on_demonstrations(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train_sft, "train_on_demonstrations", imitate_and_stop)
        sft(settings(tmp_path / "cut", **short), console=quiet())
    sft(settings(tmp_path / "cut", **short), resume=True, console=quiet())
    assert metrics(tmp_path / "whole" / "run") == metrics(tmp_path / "cut" / "run")


def test_sft_resume_refuses_changed_demonstrations(tmp_path: Path, finished: Path) -> None:
    rewind(finished, tmp_path, step=3)
    with pytest.raises(UserError, match=r"has changed since .* started"):
        sft(settings(tmp_path, sft__count=12), resume=True, console=quiet())


def test_training_continues_from_an_sft_run_folder(tmp_path: Path, finished: Path) -> None:
    short = BASE | {"train__steps": 1, "eval__every": 0, "eval__episodes": 1}
    train(small(tmp_path, **short, model__name=str(finished)), console=quiet())
    config = (tmp_path / "run" / "config.toml").read_text()
    assert "checkpoints/step_000004" in config  # what it began from, though the run may grow


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of reinforcement learning with some successes."""
    folder = tmp_path_factory.mktemp("played")
    train(small(folder, **BASE, eval__episodes=1), console=quiet())
    return folder / "run"


def test_sft_on_a_runs_successes_keeps_their_ids(tmp_path: Path, played: Path) -> None:
    won = [entry for entry in RunFolder.open(played).read_index() if entry["status"] == "succeeded"]
    config = settings(tmp_path / "again", sft__demos=str(played), sft__count=1000)
    if not won:
        pytest.fail("the run was to have some successes: change its seed")
    summary = sft(config, console=quiet())
    assert summary["demonstrations"] == len(won)
    said = sum(entry["tokens"] for entry in won)
    assert sum(row["train/answer_tokens"] for row in metrics(tmp_path / "again" / "run") if "train/loss" in row) == said


def test_successes_of_another_tokenizer_are_refused(
    tmp_path: Path, played: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = SimpleNamespace(get_vocab=lambda: {"a": 0})
    monkeypatch.setattr(demos, "AutoTokenizer", SimpleNamespace(from_pretrained=lambda folder: other))
    with pytest.raises(UserError, match="another tokenizer"):
        sft(settings(tmp_path / "again", sft__demos=str(played)), console=quiet())


def test_sft_trains_on_conversations_of_a_file(tmp_path: Path) -> None:
    file = talks(tmp_path, *["<answer>Up</answer>"] * 5)
    assert sft(settings(tmp_path, sft__demos=str(file)), console=quiet())["demonstrations"] == 5


def talks(folder: Path, *answers: str, opening: tuple[Message, ...] = (user("Where?"),)) -> Path:
    """A file of conversations that end with these answers."""
    file = folder / "talks.jsonl"
    before = [{"role": message.role, "content": message.content} for message in opening]
    rows = [{"messages": [*before, {"role": "assistant", "content": answer}]} for answer in answers]
    file.write_text("\n".join(map(json.dumps, rows)))
    return file


BO, PLAIN = {"name": "Bo"}, "<answer>3</answer>"


@pytest.mark.parametrize(
    ("ours", "answers", "refused"),
    [
        ("answer", (PLAIN, format_call("room", BO, "hermes")), "hermes"),
        ("hermes", (format_call("room", BO, "answer"),), "answer"),
        ("hermes", (format_call("room", BO, "llama"),), "llama"),
        ("llama", (format_call("room", BO, "mistral"),), "mistral"),
        ("hermes", (format_call("room", BO, "answer"), format_call("room", BO, "hermes")), ""),
        ("hermes", (PLAIN,), ""),
        ("hermes", ("```python\nprint(1)\n```",), ""),
    ],
)
def test_calls_in_a_style_that_the_environment_cannot_read_are_refused(
    ours: str, answers: tuple[str, ...], refused: str, tmp_path: Path
) -> None:
    file = talks(tmp_path, *answers)
    config = settings(tmp_path, env__kind="lookup", env__params={"style": ours}, sft__demos=str(file))
    expected = f'has tool calls in the style "{refused}" and none in "{ours}".* env.params.style to {refused}'
    with pytest.raises(UserError, match=expected) if refused else nullcontext():
        check_sft(config, build_environment_mix(config.env, config.agent))


def first_observation_of(config: Config) -> tuple[EnvironmentMix, Observation]:
    worlds = build_environment_mix(config.env, config.agent)
    opening = asyncio.run(first_observation(worlds.with_params))
    assert opening is not None and opening.messages[0].role == "system"
    return worlds, opening


@pytest.mark.parametrize("template", ["chatml", "tiny"])
@pytest.mark.parametrize("has_system", [True, False])
def test_conversations_of_a_file_open_as_episodes_do(template: str, has_system: bool, tmp_path: Path) -> None:
    renderer = renderer_of(template)
    config = settings(tmp_path, env__kind="lookup", env__params={"style": "hermes"})
    worlds, opening = first_observation_of(config)
    begun = opening.messages if has_system else opening.messages[1:]
    if has_system and not renderer.renders_tools:
        begun = (system(f"{begun[0].content}\n{opening.tools_in_words}"), *begun[1:])
    file = talks(tmp_path, PLAIN, opening=begun)
    config = settings(tmp_path, sft__demos=str(file), rollout__max_new_tokens=99, rollout__max_tokens=9999)
    (sample,) = demos.build_demonstrations(config, worlds, None, renderer, lambda *_: None)  # type: ignore[arg-type]
    shown = FullContext(renderer).start(opening).ids
    assert sample.ids[: len(shown)].tolist() == list(shown) and not sample.mask[: len(shown)].any()
    assert "The room of a person." in renderer.decode(shown)


def test_system_message_of_a_conversation_stays(tmp_path: Path) -> None:
    renderer = renderer_of("tiny")
    worlds, _ = first_observation_of(settings(tmp_path, env__kind="lookup"))
    file = talks(tmp_path, PLAIN, opening=(system("Be brief."), user("Where?")))
    config = settings(tmp_path, sft__demos=str(file))
    (sample,) = demos.build_demonstrations(config, worlds, None, renderer, lambda *_: None)  # type: ignore[arg-type]
    text = renderer.decode(sample.ids.tolist())
    assert "Be brief." in text and "In which room" not in text


FILE_ONLY = {"env__kind": "none", "sft__epochs": 2, "rollout__max_new_tokens": 4}


def test_sft_without_an_environment_measures_the_held_out_loss(tmp_path: Path) -> None:
    file = talks(tmp_path, *[f"<answer>Up and {number % 2}</answer>" for number in range(9)])
    console = quiet()
    summary = sft(settings(tmp_path, sft__demos=str(file), **FILE_ONLY), console=console)
    assert summary["finished"] and (summary["demonstrations"], summary["held_out"], summary["steps"]) == (8, 1, 4)
    assert summary["loss_after"] < summary["loss_before"]
    run = tmp_path / "run"
    named = [key for row in metrics(run) for key in row if key.startswith("held_out/")]
    assert named == ["held_out/before", "held_out/validation", "held_out/after"]
    assert not (run / "trajectories").exists() or not list((run / "trajectories").iterdir())
    printed = console.file.getvalue()
    assert "held-out loss after" in printed and "success" not in printed
    assert "held-out loss before" in (run / "report.html").read_text()
    with pytest.raises(UserError, match=r"was trained without an environment\. Name one"):
        plan_evaluation([str(run)])


def test_sft_without_an_environment_resumes_with_the_same_bits(tmp_path: Path) -> None:
    file = talks(tmp_path, *[f"<answer>Up and {number}</answer>" for number in range(9)])
    given = {"sft__demos": str(file), **FILE_ONLY}
    sft(settings(tmp_path / "whole", **given), console=quiet())
    stopped = sft(settings(tmp_path / "cut", train__max_minutes=1e-9, **given), console=quiet())
    assert not stopped["finished"] and stopped["steps"] < 4
    resumed = configure(resume=str(tmp_path / "cut/run"), overrides=[("train.max_minutes", 10)])
    assert sft(resumed, resume=True, console=quiet())["finished"]
    whole, cut = weights(tmp_path / "whole/run"), weights(tmp_path / "cut/run")
    assert all(bool((whole[name] == cut[name]).all()) for name in whole)
    losses = [json.loads((tmp_path / name / "run/summary.json").read_text())["loss_after"] for name in ("whole", "cut")]
    assert losses[0] == losses[1]


def test_sft_on_a_single_conversation_holds_nothing_out(tmp_path: Path) -> None:
    file = talks(tmp_path, "<answer>Up</answer>")
    summary = sft(settings(tmp_path, sft__demos=str(file), **FILE_ONLY), console=quiet())
    assert (summary["demonstrations"], summary["held_out"], summary["loss_after"]) == (1, 0, None)


@pytest.mark.parametrize(
    ("key", "kind", "problem"),
    [
        ("env.params.size", "none", "has no effect without an environment"),
        ("eval.episodes", "none", "has no effect without an environment"),
        ("rollout.max_new_tokens", "none", "has no effect without an environment"),
    ],
)
def test_setting_without_effect_on_a_file_alone_is_refused(tmp_path: Path, key: str, kind: str, problem: str) -> None:
    config = settings(tmp_path, env__kind=kind, sft__demos=str(talks(tmp_path, PLAIN)))
    with pytest.raises(UserError, match=f"{key} {problem}"):
        check_sft(config, build_environment_mix(config.env, config.agent), [key])


def test_sft_takes_the_prefix_that_its_answers_start_with(tmp_path: Path) -> None:
    config = settings(tmp_path, rollout__prefix="<answer>")
    check_sft(config, build_environment_mix(config.env, config.agent), ["rollout.prefix"])


def test_openai_calls_are_trained_in_the_style_of_the_environment(tmp_path: Path) -> None:
    call = {"function": {"name": "room", "arguments": json.dumps(BO)}}
    messages = [{"role": "user", "content": "Where?"}, {"role": "assistant", "tool_calls": [call]}]
    file = tmp_path / "talks.jsonl"
    file.write_text(json.dumps({"messages": messages}))
    given = {"env__params": {"style": "answer"}, "rollout__max_new_tokens": 99}
    config = settings(tmp_path, env__kind="lookup", sft__demos=str(file), **given)
    worlds, renderer = build_environment_mix(config.env, config.agent), renderer_of("chatml")
    check_sft(config, worlds)
    (sample,) = demos.build_demonstrations(config, worlds, None, renderer, lambda *_: None)  # type: ignore[arg-type]
    assert renderer.decode(sample.ids[sample.mask].tolist()).startswith("<call>room Bo</call>")


def test_sft_trains_an_adapter_if_set(tmp_path: Path) -> None:
    sft(settings(tmp_path, lora__rank=2), console=quiet())
    assert is_adapter(tmp_path / "run" / "checkpoints" / "step_000004")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"sft__think": True}, "rollout.max_new_tokens"),
        ({"rollout__max_tokens": 64}, "rollout.max_tokens"),
        ({"sft__demos": "nowhere"}, "nowhere"),
        ({"sft__demos": "none.jsonl"}, "does not exist"),
        ({"env__kind": QUIZ}, "Quiz has no solver. Name a run"),
        ({"context": "turn"}, "context"),
    ],
)
def test_sft_rejects_bad_input_in_one_line_and_leaves_no_folder(
    tmp_path: Path, changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        sft(settings(tmp_path / "runs", **changes), console=quiet())
    assert not list((tmp_path / "runs").glob("*"))


def test_train_and_sft_refuse_each_others_settings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="turnwise sft"):
        train(settings(tmp_path), console=quiet())
    with pytest.raises(UserError, match=r"sft\.count has no effect"):
        train(small(tmp_path, sft__count=3), console=quiet(), override_keys=["sft.count"])
    with pytest.raises(UserError, match=r"algo\.loss has no effect"):
        sft(settings(tmp_path, algo__loss="ppo"), console=quiet(), override_keys=["algo.loss"])


def test_sft_command_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my lake.toml").write_text('env.kind = "frozen_lake"\n')
    command = ["sft", f"{tmp_path}/my lake.toml", "--count", "4", "--name", "run", f"--record.folder={tmp_path}"]
    assert main([*command, "--eval.episodes", "4", "--model.warmup_steps", "15", "--system.threads", "1"]) == 0
    following = f"turnwise train '{tmp_path}/my lake.toml' --model.name"
    assert following in capsys.readouterr().out
    assert main(["sft", "--resume", str(tmp_path / "run")]) == 2
    expected = rf"is finished\. To train its model: `turnwise train frozen_lake --model\.name {tmp_path}/run`"
    assert re.search(expected, capsys.readouterr().err)


def test_sft_command_takes_a_file_without_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = talks(tmp_path, *["<answer>Up</answer>"] * 4)
    command = ["sft", "--data", str(file), "--name", "run", f"--record.folder={tmp_path}", "--system.threads", "1"]
    assert main(command) == 0
    assert "held-out loss after" in capsys.readouterr().out
    for words, problem in (
        (["sft"], "Name a recipe or an environment, or give --data FILE"),
        (["sft", "--data", str(file), "--demos", "solver"], "remove one of them"),
        (["sft", "--data", "talks.txt"], "file that ends in .jsonl, .json, .csv"),
        (["train", "--from", str(tmp_path / "run")], "turnwise sft"),
    ):
        assert main(words) == 2
        assert problem in capsys.readouterr().err
