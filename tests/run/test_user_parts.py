"""Parts of the user, FILE.py:Name with settings of their own: two steps of training through each, `src/` unchanged."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from runs_for_tests import learnt, metrics, quiet, small
from turnwise.cli.main import main
from turnwise.config.load import build, read_run
from turnwise.core.errors import UserError
from turnwise.record.run_folder import RunFolder
from turnwise.run.train import train

OWN = '''
from dataclasses import replace
from typing import ClassVar

import torch

import turnwise as tw
from turnwise.engine.engines import Native


class Scaled(tw.EstimatorSettings):
    """The advantages of algo.advantage, times a factor."""

    uses_advantage: ClassVar[bool] = True
    strength: float = 1.0

    def build(self, run):
        return ScaledAdvantages(run.on_policy, self.strength)


class ScaledAdvantages(tw.Estimator[None], tw.Part):
    name = "scaled"

    def __init__(self, on_policy, strength):
        self.on_policy, self.strength, self.estimates = on_policy, strength, 0

    async def sample(self, rollout):
        return None

    def estimate(self, rollout, sampled, learner):
        estimate = self.on_policy.estimate(rollout, sampled, learner)
        if isinstance(estimate, tw.IdleReason):
            return estimate
        self.estimates += 1
        advantages = [self.strength * values for values in estimate.advantages]
        own = {"own_strength": self.strength}
        return replace(estimate, advantages=advantages, metrics=estimate.metrics | own)

    def state(self):
        return self.estimates

    def load_state(self, state):
        self.estimates = state


class Newest(tw.SourceSettings):
    """Train on the last groups of each step."""

    count: int = 1

    def build(self, run):
        return NewestGroups(run.source, self.count)


class NewestGroups:
    def __init__(self, source, count):
        self.source, self.count = source, count

    async def groups(self, step):
        rollout = await self.source.groups(step)
        return replace(rollout, kept=rollout.kept[-self.count :])


class Centred(tw.Advantage):
    """The return minus that of the group, times a factor."""

    needs_groups: ClassVar[bool] = True
    factor: float = 1.0

    def compute(self, inputs):
        returns = (inputs.token_rewards * inputs.mask).sum(1)
        means = [returns[inputs.group_ids == group].mean() for group in inputs.group_ids]
        return self.factor * (returns - torch.stack(means))[:, None] * inputs.mask


class Weighted(tw.Loss):
    """The policy gradient, times a weight."""

    weight: float = 1.0

    def compute(self, inputs):
        return -self.weight * inputs.advantages * inputs.policy_logprobs


class Widest(tw.Filter):
    """Keep the groups whose rewards differ most."""

    count: int = 1

    def keeps(self, scores):
        return scores >= scores.sort(descending=True).values[self.count - 1]


class Bonus(tw.RewardFunction):
    """A constant for each turn."""

    size: float = 1.0

    def score(self, trajectory):
        return [self.size] * len(trajectory.turns)


class Logged(tw.EngineSettings):
    """The native engine, with a log of the versions that were published."""

    shares_weights: ClassVar[bool] = True
    log: str = ""

    def build(self, model, renderer, options):
        return LoggedEngine(Native().build(model, renderer, options), self.log)


class LoggedEngine:
    def __init__(self, engine, log):
        self.engine, self.log = engine, log

    def open(self, key):
        return self.engine.open(key)

    async def publish(self, version, weights):
        with open(self.log, "a") as file:
            file.write(f"{version} ")
        await self.engine.publish(version, weights)

    async def sleep(self):
        await self.engine.sleep()

    def stats(self):
        return self.engine.stats()


class NoGroups(tw.SourceSettings):
    def build(self, run):
        return 3


class Fails(tw.EstimatorSettings):
    def build(self, run):
        return 1 / 0
'''
TWO_STEPS = {"train__steps": 2, "eval__every": 0, "eval__episodes": 1, "checkpoint__every": 1}


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Path of a file with the user's code."""
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def run_with(folder: Path, **settings: Any) -> list[dict[str, Any]]:
    """Train two steps and return their metrics."""
    train(small(folder, **TWO_STEPS, **settings), console=quiet())
    return [row for row in metrics(folder / "run") if "train/grad_norm" in row]


def test_estimator_of_the_user_trains_with_its_settings(own: str, tmp_path: Path) -> None:
    default = run_with(tmp_path / "default")
    same = run_with(tmp_path / "same", algo__estimator=f"{own}:Scaled")
    doubled = run_with(tmp_path / "doubled", algo__estimator=f"{own}:Scaled", algo__estimator__strength=2.0)
    assert same[0]["train/grad_norm"] == default[0]["train/grad_norm"]
    assert doubled[0]["train/grad_norm"] != default[0]["train/grad_norm"]
    assert [row["train/own_strength"] for row in doubled] == [2.0, 2.0]
    weights = [learnt(tmp_path / name / "run", step=2) for name in ("default", "same", "doubled")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])
    state = json.loads((tmp_path / "doubled/run/checkpoints/step_000002/state.json").read_text())
    assert state["parts"]["scaled"] == 2


def test_advantage_loss_and_filter_of_the_user_train_with_their_settings(own: str, tmp_path: Path) -> None:
    parts = {"algo__advantage": f"{own}:Centred", "algo__loss": f"{own}:Weighted", "algo__filter": f"{own}:Widest"}
    parts |= {"algo__entropy_coef": 0.0, "algo__kl_coef": 0.0, "train__mini_batch": 4}
    (plain, *_) = run_with(tmp_path / "plain", **parts)
    (larger, *_) = run_with(
        tmp_path / "larger", **parts, algo__advantage__factor=3.0, algo__loss__weight=2.0, algo__filter__count=1
    )
    assert plain["rollout/kept_groups"] == larger["rollout/kept_groups"] == 1
    assert larger["train/advantage_std"] == pytest.approx(3 * plain["train/advantage_std"])
    assert larger["train/grad_norm"] == pytest.approx(6 * plain["train/grad_norm"], rel=1e-3)
    (two, *_) = run_with(tmp_path / "two", **parts, algo__filter__count=2)
    assert two["rollout/kept_groups"] == 2
    saved = read_run(str(tmp_path / "larger/run"))["algo"]
    assert (saved["advantage"]["factor"], saved["loss"]["weight"], saved["filter"]["count"]) == (3.0, 2.0, 1)


def test_source_of_the_user_trains_with_its_settings(own: str, tmp_path: Path) -> None:
    rows = run_with(tmp_path / "one", rollout__source=f"{own}:Newest", train__mini_batch=4)
    assert [row["rollout/kept_groups"] for row in rows] == [1, 1]
    rows = run_with(tmp_path / "two", rollout__source=f"{own}:Newest", rollout__source__count=2, train__mini_batch=4)
    assert [row["rollout/kept_groups"] for row in rows] == [2, 2]


def test_engine_of_the_user_trains_with_its_settings(own: str, tmp_path: Path) -> None:
    log = tmp_path / "published.txt"
    run_with(tmp_path / "own", engine=f"{own}:Logged", engine__log=str(log))
    assert log.read_text().split() == ["0", "1", "2"]
    run_with(tmp_path / "native")
    ours, theirs = (learnt(tmp_path / name / "run", step=2) for name in ("own", "native"))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert read_run(str(tmp_path / "own/run"))["engine"]["kind"] == f"{own}:Logged"


def test_reward_class_of_the_user_trains_with_its_settings(own: str, tmp_path: Path) -> None:
    bonus = {"kind": f"{own}:Bonus", "size": 7.0}
    run_with(tmp_path, reward__functions=(bonus,))
    folder = RunFolder.open(tmp_path / "run")
    for entry in folder.read_index():
        trajectory = folder.read_trajectory(entry)
        assert trajectory["rewards"]["Bonus"] == 7.0 * len(trajectory["turns"])
    assert read_run(str(tmp_path / "run"))["reward"]["functions"] == [bonus]


def test_user_parts_are_chosen_on_the_command_line(own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = {
        "--algo.estimator": "own.py:Scaled",
        "--algo.estimator.strength": "3",
        "--rollout.source": "own.py:Newest",
        "--rollout.source.count": "2",
        "--engine.kind": "own.py:Logged",
        "--engine.log": "published.txt",
        "--reward.functions": '[{kind = "own.py:Bonus", size = 0.5}]',
        "--train.steps": "1",
        "--rollout.groups": "2",
        "--rollout.group_size": "2",
        "--train.mini_batch": "2",
        "--eval.episodes": "1",
        "--model.warmup_steps": "15",
        "--name": "cli",
    }
    assert main(["train", "bandit", *(word for pair in options.items() for word in pair)]) == 0
    config = build(read_run("runs/cli"), load_code=True)
    assert config.algo.estimator.model_dump() == {"kind": f"{own}:Scaled", "strength": 3.0}
    assert config.engine.kind == f"{own}:Logged"
    assert config.rollout.source.model_dump() == {"kind": f"{own}:Newest", "count": 2}
    assert [each.model_dump() for each in config.reward.functions] == [{"kind": f"{own}:Bonus", "size": 0.5}]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algo__estimator": "own.py:Bonus"}, r"algo\.estimator .*not derived from tw\.EstimatorSettings"),
        ({"rollout__source": "own.py:Scaled"}, r"rollout\.source .*not derived from tw\.SourceSettings"),
        ({"engine": "own.py:Scaled"}, r"engine .*not derived from tw\.EngineSettings"),
        ({"reward__functions": ("own.py:Scaled",)}, r"reward\.functions .*not derived from tw\.RewardFunction"),
        ({"reward__functions": ("brief",)}, r'reward\.functions "brief" is not FILE\.py:name'),
        ({"algo__estimator": "own.py:Scaled", "algo__estimator__power": 2}, r"unknown key algo\.estimator\.power"),
        ({"reward__functions": ({"kind": "own.py:Bonus", "size": "x"},)}, r"reward\.functions\.size = x"),
    ],
)
def test_user_part_that_does_not_fit_is_refused(
    own: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        small(tmp_path, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rollout__source": "NoGroups"}, r"build returned int, which has no method groups"),
        ({"algo__estimator": "Fails"}, r"algo\.estimator Fails failed: .*ZeroDivisionError"),
    ],
)
def test_user_part_that_cannot_be_built_is_refused(
    own: str, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        run_with(tmp_path, **{name: f"{own}:{value}" for name, value in settings.items()})


def test_source_of_the_user_excludes_rollouts_ahead(own: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"rollout\.source .*rollout\.max_staleness 1 runs rollouts and updates"):
        run_with(tmp_path, rollout__source=f"{own}:Newest", rollout__max_staleness=1)


@pytest.mark.parametrize(
    ("option", "base", "method"),
    [
        ("--algo.estimator", "EstimatorSettings", "build"),
        ("--rollout.source", "SourceSettings", "build"),
        ("--engine", "EngineSettings", "build"),
        ("--algo.advantage", "Advantage", "compute"),
        ("--reward.functions", "RewardFunction", "score"),
    ],
)
def test_part_without_its_method_is_one_line_before_the_run(
    option: str,
    base: str,
    method: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.py").write_text(f"import turnwise as tw\n\n\nclass Empty(tw.{base}):\n    pass\n")
    value = '["empty.py:Empty"]' if option == "--reward.functions" else "empty.py:Empty"
    assert main(["train", "bandit", option, value]) == 2
    errors = capsys.readouterr().err
    assert f'empty.py:Empty" has no {method}: define it.' in errors and len(errors.splitlines()) == 1
    assert not Path("runs").exists()
