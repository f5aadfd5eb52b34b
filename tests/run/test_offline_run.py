"""`turnwise train --data`: from stored episodes to a trained model, without playing the environment."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runs_for_tests import learnt, metrics, printed, quiet, rewind, small
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.record.labels import LABELS_FILE, EpisodeKey, EpisodeLabel, Label, append_label, digest_episode
from turnwise.record.run_folder import RunFolder
from turnwise.record.trajectories import open_replay
from turnwise.report.run_report import run_context
from turnwise.run.configure import configure
from turnwise.run.sft import sft
from turnwise.run.stored_sources import FILLED
from turnwise.run.train import train

METHODS: dict[str, dict[str, Any]] = {
    "filtered_bc": {"algo__advantage": "clone", "algo__loss": "reinforce", "data__keep": "succeeded"},
    "awr": {"algo__advantage": "step_gae", "algo__loss": "awr"},
    "dpo": {"algo__advantage": "preference", "algo__loss": "dpo", "algo__aggregation": "seq-mean-token-sum"},
    "archer_offline": {
        "algo__estimator": "archer_offline",
        "algo__loss": "awr",
        "critic": "utterances",
        "critic__updates": 2,
        "critic__batch": 4,
        "critic__learning_rate": 1e-3,
    },
    "awac": {
        "algo__estimator": "awac",
        "algo__loss": "awr",
        "critic": "utterance_head",
        "critic__updates": 2,
        "critic__batch": 4,
        "algo__estimator__states": 4,
        "critic__learning_rate": 1e-3,
    },
    "off_policy_grpo": {"algo__advantage": "grpo", "algo__aggregation": "seq-mean-token-mean"},
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps of two groups of four episodes, every second of which succeeded."""
    folder = tmp_path_factory.mktemp("played")
    train(small(folder, train__steps=2, algo__advantage="grpo", algo__kl_coef=0.0, eval__every=0), console=quiet())
    for file in (folder / "run" / "trajectories").glob("step_*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            won = row["member"] % 2 == 0
            row["status"] = "succeeded" if won else "failed"
            row["turns"][-1]["turn_reward"] = float(won)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "run"


def offline(folder: Path, played: Path, method: str, **settings: Any) -> Config:
    given = {"data__sources": [str(played)], "algo__kl_coef": 0.0, "algo__entropy_coef": 0.0}
    short = {"train__steps": 2, "eval__every": 0, "eval__episodes": 1}
    return small(folder, **{**given, **short, **METHODS[method], **settings})


def test_filter_that_keeps_no_stored_group_is_reported_everywhere(tmp_path: Path, played: Path) -> None:
    """Progress, metrics, summary and report agree: two steps, each idle because of the filter."""
    console = quiet()
    filter = {"algo__filter": "absolute", "algo__filter__value": 100.0}
    summary = train(offline(tmp_path, played, "off_policy_grpo", **filter), console=console)
    assert (summary["steps"], summary["idle_steps"]) == (2, 2)
    shown = printed(console)
    assert shown.count("step 1 trained nothing: the filter kept no group") == 1 and "truncated" not in shown
    line = re.search(r"^step 2/2  success +(\S+) %  reward +(\S+)  response +(\S+) ", shown, re.MULTILINE)
    assert line is not None and float(line[1]) == 50.0 and float(line[2]) == 0.5 and float(line[3]) > 0
    rows = [row for row in metrics(tmp_path / "run") if "data/episodes" in row]
    assert [row["train/idle_reason"] for row in rows] == ["filtered", "filtered"]
    report = run_context(tmp_path / "run")
    assert dict(report["numbers"])["steps"] == "2" and "stored episodes, rolling mean" in report["learning_curve"]


@pytest.mark.parametrize("method", METHODS)
def test_method_trains_on_stored_episodes_and_resumes_exactly(tmp_path: Path, played: Path, method: str) -> None:
    config = offline(tmp_path / "whole", played, method)
    summary = train(config, console=quiet())
    assert summary["finished"]
    assert summary["episodes"] == 0
    rows = [row for row in metrics(tmp_path / "whole" / "run") if "data/episodes" in row]
    assert len(rows) == 2
    assert all(row["train/grad_norm"] > 0 for row in rows)
    rewind(tmp_path / "whole" / "run", tmp_path / "cut", step=1)
    train(offline(tmp_path / "cut", played, method), resume=True, console=quiet())
    ours, theirs = (learnt(tmp_path / name / "run", step=2) for name in ("whole", "cut"))
    assert all(ours[name].equal(theirs[name]) for name in ours)


def test_offline_run_learns_what_the_filter_keeps(tmp_path: Path, played: Path) -> None:
    run = tmp_path / "run"
    train(offline(tmp_path, played, "filtered_bc"), console=quiet())
    replay = open_replay(run / "replay", 1000)
    assert len(replay) == 8
    assert all(entry.succeeded and entry.sampled for entry in replay.entries)
    assert json.loads((run / "replay" / FILLED).read_text())["episodes"] == len(replay)


def test_text_episodes_are_scored_by_the_initial_policy(tmp_path: Path, played: Path) -> None:
    file = tmp_path / "demos.jsonl"
    rows = [
        {"messages": [{"role": "user", "content": "Pull."}, {"role": "assistant", "content": arm}], "reward": reward}
        for arm, reward in (("<answer>A</answer>", 1.0), ("<answer>B</answer>", 0.0))
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    console = quiet()
    train(offline(tmp_path, played, "dpo", data__sources=[str(file)], train__steps=1), console=console)
    replay = open_replay(tmp_path / "run" / "replay", 1000)
    assert len(replay) == 2
    assert len(replay.groups) == 1
    assert all((replay.read_logprobs(entry) < 0).all() for entry in replay.entries)
    assert "2 episodes have no log-probabilities of a sampler: those of the initial policy" in printed(console)
    assert "left out: 1 known already" in printed(console)


def refused(folder: Path, played: Path, method: str = "filtered_bc", **settings: Any) -> str:
    with pytest.raises(UserError) as error:
        train(offline(folder, played, method, **settings), console=quiet())
    assert not (folder / "run").exists()
    return str(error.value)


def change_row(played: Path, folder: Path, **changes: Any) -> Path:
    """Copy the run's first file with its second line changed, beside the names of its tokens."""
    folder.mkdir()
    for name in ("tokens.jsonl", "step_000001.jsonl"):
        (folder / name).write_bytes((played / "trajectories" / name).read_bytes())
    file = folder / "step_000001.jsonl"
    lines = file.read_text().splitlines()
    row = json.loads(lines[1])
    for name, value in changes.items():
        if name in row["turns"][0]:
            row["turns"][0][name] = value
        else:
            row[name] = value
    file.write_text("\n".join([lines[0], json.dumps(row), *lines[2:]]) + "\n")
    return file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"action_ids": [10**6, 1]}, "line 2: turn 1 has ids that are not tokens of this model"),
        ({"action_ids": ["x"]}, "line 2: turn 1 has ids that are not tokens"),
        ({"action_logprobs": [-1.0] * 999}, "line 2: turn 1 has .* sampled ids and 999 log-probabilities"),
        ({"action_logprobs": ["NaN"]}, "line 2: turn 1 has"),
        ({"turn_reward": "Infinity"}, "line 2: a reward is not finite"),
        ({"context_ids": []}, "line 2: turn 1 has no context"),
        ({"turns": [{}]}, "line 2: Not a trajectory"),
        ({"task": {"name": 3}}, "line 2: Not a trajectory"),
    ],
)
def test_damaged_row_is_named_and_nothing_is_trained(
    tmp_path: Path, played: Path, changes: dict[str, Any], message: str
) -> None:
    file = change_row(played, tmp_path / "data", **changes)
    error = refused(tmp_path, played, data__sources=[str(file)])
    assert error.startswith(str(file))
    assert re.search(message, error), error
    assert "\n" not in error


def test_foreign_tokens_are_refused(tmp_path: Path, played: Path) -> None:
    file = change_row(played, tmp_path / "data")
    names = tmp_path / "data" / "tokens.jsonl"
    first = json.loads(names.read_text().splitlines()[0])
    names.write_text(json.dumps(first | {"text": "elsewhere"}) + "\n")
    assert "is 'elsewhere' there and" in refused(tmp_path, played, data__sources=[str(file)])
    names.unlink()
    assert f"{names} is missing" in refused(tmp_path, played, data__sources=[str(file)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data__sources": ["nowhere"]}, "data.sources: nowhere does not exist"),
        ({"data__keep": 99.0}, "no episode is left to train on"),
        ({"rollout__max_tokens": 13}, "and rollout.max_tokens is 13. Set rollout.max_tokens to"),
        ({"rollout__max_staleness": 1}, "rollout.max_staleness needs episodes that are played"),
        ({"data__episodes": "evaluation", "data__keep": "all"}, None),
    ],
)
def test_settings_of_stored_episodes_are_checked(
    tmp_path: Path, played: Path, settings: dict[str, Any], message: str | None
) -> None:
    if message is None:
        train(offline(tmp_path, played, "filtered_bc", **settings), console=quiet())
        sources = {entry.source for entry in open_replay(tmp_path / "run" / "replay", 1000).entries}
        assert all("/eval_" in source for source in sources)
    else:
        assert message in refused(tmp_path, played, **settings)


def test_episodes_without_reward_can_only_be_imitated(tmp_path: Path, played: Path) -> None:
    file = tmp_path / "demos.jsonl"
    messages = [{"role": "user", "content": "Pull."}, {"role": "assistant", "content": "<answer>A</answer>"}]
    file.write_text(json.dumps({"messages": messages}) + "\n")
    assert "line 1 has no reward, which algo.advantage step_gae needs" in refused(
        tmp_path, played, "awr", data__sources=[str(file)]
    )
    assert train(offline(tmp_path, played, "filtered_bc", data__sources=[str(file)], train__steps=1), console=quiet())


def test_offline_run_is_refused_as_a_data_source(tmp_path: Path, played: Path) -> None:
    train(offline(tmp_path / "first", played, "filtered_bc", train__steps=1), console=quiet())
    first = tmp_path / "first" / "run"
    assert "was itself trained on stored episodes" in refused(tmp_path, played, data__sources=[str(first)])


def test_imitation_without_stored_episodes_is_refused(tmp_path: Path, played: Path) -> None:
    assert "Name stored episodes (data.sources)" in refused(tmp_path, played, data__sources=[])


def test_presets_of_stored_episodes_set_their_correction(played: Path) -> None:
    chosen = {
        name: configure("bandit", overrides=[("data.sources", str(played)), ("algo.preset", name)]).algo
        for name in ("bc", "filtered_bc", "awr", "dpo", "archer_offline", "awac", "off_policy_grpo")
    }
    assert {(algo.correction.kind, algo.old_logprobs) for algo in chosen.values()} == {("none", "sampler")}
    plain = configure("bandit", overrides=[("data.sources", str(played))])
    assert (plain.algo.correction.kind, plain.algo.old_logprobs) == ("truncated", "learner")
    assert plain.data.sources == (str(played.resolve()),)
    assert RunFolder.open(played).read_index()


def label_episodes(run: Path) -> int:
    """Label the members with even numbers good and the others bad; return the number of good ones."""
    folder, good = RunFolder.open(run), 0
    for entry in folder.read_index():
        with folder.trajectories_path(entry["step"]).open("rb") as file:
            file.seek(entry["offset"])
            digest = digest_episode(file.read(entry["length"]))
        label = Label.BAD if entry["member"] % 2 else Label.GOOD
        good += label is Label.GOOD
        append_label(run, EpisodeLabel(key=EpisodeKey.of(entry), label=label, digest=digest))
    return good


def test_labels_are_preferences_and_demonstrations(tmp_path: Path) -> None:
    """The labels alternate, whatever the rewards were."""
    console = quiet()
    played = small(tmp_path, record__name="played", train__steps=1, algo__advantage="grpo", algo__kl_coef=0.0)
    train(played, console=quiet())
    run = tmp_path / "played"
    good, file = label_episodes(run), str(run / LABELS_FILE)
    settings = METHODS["dpo"] | {"data__sources": (file,), "eval__every": 0, "train__steps": 1}
    train(small(tmp_path, record__name="dpo", model__name=str(run), **settings), console=console)
    assert f"{2 * good} episodes with the log-probabilities" in printed(console)
    (row,) = [each for each in metrics(tmp_path / "dpo") if "train/loss" in each or "data/reward" in each]
    assert row["data/success"] == 0.5 and row["data/reward"] == 0.0
    demonstrated = small(tmp_path, record__name="sft", model__name=str(run), sft__demos=file, sft__batch=2)
    summary = sft(demonstrated, console=quiet())
    assert summary["demonstrations"] == good
