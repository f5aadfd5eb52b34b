"""Choices and their settings: as overrides, from the configurations of older runs, and from the user's files."""

import json
import re
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from runs_for_tests import metrics
from turnwise.cli.main import main
from turnwise.config.keys import all_keys
from turnwise.config.load import build, read_run, to_toml
from turnwise.config.old_names import REMOVED, RENAMED
from turnwise.core.errors import UserError
from turnwise.run.configure import configure

OLDER = Path(__file__).with_name("older_config.toml")
"""Sections of a config.toml from before algo.loss and the like had settings of their own."""


def refused(*overrides: tuple[str, Any]) -> str:
    with pytest.raises(UserError) as caught:
        build({}, overrides)
    return str(caught.value)


def test_kind_is_applied_before_its_settings_in_any_order() -> None:
    overrides = [("algo.loss.level", "turn"), ("algo.loss", "gspo"), ("algo.loss.clip_low", 0.1)]
    expected = {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.28, "dual_clip": 3.0, "level": "turn"}
    for given in (overrides, overrides[::-1], [("algo.loss.kind", "gspo"), *overrides[::2]]):
        assert build({}, given).algo.loss.model_dump() == expected


def test_another_kind_drops_the_settings_of_the_chosen_one() -> None:
    recipe = {"algo": {"loss": {"kind": "ppo", "clip_low": 0.1, "dual_clip": 5.0}}, "train": {"optimizer": "adamw"}}
    other = build(recipe, [("algo.loss", "cispo"), ("train.optimizer", "muon")])
    assert other.algo.loss.model_dump() == {"kind": "cispo", "clip_low": 0.2, "clip_high": 0.28}
    assert other.train.optimizer.kind == "muon"
    same = build(recipe, [("algo.loss", "ppo"), ("algo.loss.clip_high", 0.4)])
    assert same.algo.loss.model_dump() == {"kind": "ppo", "clip_low": 0.1, "clip_high": 0.4, "dual_clip": 5.0}


@pytest.mark.parametrize(
    ("settings", "overrides", "kind"),
    [
        ({}, [], "none"),
        ({"command": "python a.py"}, [], "command"),
        ({"success_at": 0.5}, [("agent.pass-env", "HOME"), ("agent.command", "a")], "command"),
        ({"kind": "none", "success_at": 0.5}, [("agent.function", "a.py:chat")], "function"),
        ({"kind": "function", "function": "a.py:chat"}, [("agent.function", "b.py:chat")], "function"),
    ],
)
def test_setting_that_names_an_agent_chooses_its_kind(
    settings: dict[str, Any], overrides: list[tuple[str, Any]], kind: str
) -> None:
    config = build({"agent": settings}, overrides)
    assert config.agent.kind == kind and (config.env.kind == "agent") == (kind != "none")
    assert build(config.model_dump()).agent == config.agent


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (
            [("agent.command", "a"), ("agent.function", "a.py:f")],
            "agent.command and agent.function both name the agent. Remove one of them.",
        ),
        (
            [("agent", "function"), ("agent.command", "a")],
            "agent.command contradicts agent function. Remove one of them.",
        ),
        (
            [("agent.tasks", "a.csv")],
            "agent.tasks has no effect with agent none. Remove it, or set agent.command or agent.function.",
        ),
    ],
)
def test_contradicting_settings_of_an_agent_are_refused(overrides: list[tuple[str, Any]], error: str) -> None:
    assert refused(*overrides) == error


def test_error_for_a_setting_of_other_kinds_names_them() -> None:
    assert refused(("algo.loss.share", 0.1)) == (
        "algo.loss.share has no effect with algo.loss ppo. Remove it, or choose clip_cov, kl_cov."
    )
    assert refused(("algo.loss", "reinforce"), ("algo.loss.clip_low", 0.1)) == (
        "algo.loss.clip_low has no effect with algo.loss reinforce. Remove it, or choose ppo, gspo, cispo, "
        "geo_mean, clip_cov."
    )


def test_value_error_describes_the_setting_of_the_chosen_kind() -> None:
    """gigpo and turn_gae have a setting of the same name, with other values."""
    allowed = {"gigpo": "a number from 0 to 1", "turn_gae": 'a number from 0 to 1, or "adaptive"'}
    for kind, values in allowed.items():
        error = refused(("algo.advantage", kind), ("algo.advantage.gamma_turn", "x"))
        assert error == f"algo.advantage.gamma_turn = x: must be {values}"


@pytest.mark.parametrize("old", RENAMED)
def test_old_name_gets_the_new_one(old: str) -> None:
    assert RENAMED[old] in all_keys() and old not in all_keys()
    assert refused((old, "1")) == f"unknown key {old}: it is now {RENAMED[old]}"


@pytest.mark.parametrize("name", REMOVED)
def test_removed_setting_gets_what_happens_now(name: str) -> None:
    assert name not in all_keys()
    assert refused((name, "1")) == f"{name} no longer exists. {REMOVED[name][1]}"
    assert all(
        word in all_keys() for word in re.findall(r"(?:algo|train|eval|diagnose)\.[a-z_.]*[a-z_]", REMOVED[name][1])
    )


def migrated(folder: Path, **changes: str | float) -> dict[str, Any]:
    """Return the settings that a run gets from the older file, with some lines changed."""
    lines = OLDER.read_text(encoding="utf-8").splitlines()
    for name, value in changes.items():
        index = next(number for number, line in enumerate(lines) if line.startswith(f"{name} = "))  # that of algo
        lines[index] = f"{name} = {json.dumps(value)}"
    (folder / "config.toml").write_text("\n".join(lines), encoding="utf-8")
    config = build(read_run(str(folder)))
    (folder / "config.toml").write_text(to_toml(config), encoding="utf-8")
    assert build(read_run(str(folder))) == config
    return config.model_dump()


def test_older_run_is_read_with_the_same_meaning(tmp_path: Path) -> None:
    settings = migrated(tmp_path)
    algo, train = settings["algo"], settings["train"]
    assert algo["estimator"] == {"kind": "on_policy"}
    assert algo["loss"] == {"kind": "gspo", "clip_low": 0.1, "clip_high": 0.28, "dual_clip": None, "level": "turn"}
    assert algo["advantage"] == {
        "kind": "turn_gae",
        "gamma_turn": 0.9,
        "lam_turn": 0.8,
        "whiten": "token",
    }
    assert algo["filter"] == {
        "kind": "top_count",
        "by": "entropy",
        "scale": "root",
        "largest": True,
        "keep_zero": False,
        "count": 3,
    }
    assert algo["correction"] == {
        "kind": "masked",
        "level": "turn",
        "bounds": (0.0, 3.0),
    }
    assert algo["rejection"] == {
        "kind": "sequence",
        "statistic": "k2",
        "bounds": (0.0, 5.0),
        "pool": "max",
    }
    assert algo["normalise"] == {"kind": "mean_std", "over": "batch"}
    assert algo["aggregation"] == {"kind": "seq-mean-token-sum-norm", "constant_length": 200}
    assert (settings["critic"]["value_clip"], settings["critic"]["value_coef"]) == (0.3, 0.7)
    assert train["optimizer"] == {"kind": "muon", "weight_decay": 0.1, "learning_rate": 0.01}
    assert train["schedule"] == {"kind": "cosine", "final_share": 0.2}
    assert algo["old_logprobs"] == "learner" and algo["preset"] is None


@pytest.mark.parametrize(
    ("changes", "choice", "expected"),
    [
        ({"loss": "awr"}, "loss", {"kind": "awr", "beta": 0.5}),
        ({"loss": "dpo"}, "loss", {"kind": "dpo", "beta": 0.2, "sft_coef": 0.0}),
        ({"advantage": "gae"}, "advantage", {"kind": "gae", "gamma": 1.0, "lam": 1.0, "whiten": True}),
        (
            {"correction": "truncated", "correction_pool": "mean", "correction_low": 0.5},
            "correction",
            {"kind": "truncated", "normalise": False, "level": "turn_mean", "bounds": (0.5, 3.0)},
        ),
        ({"loss": "gpg"}, "loss", {"kind": "reinforce"}),
        ({"loss": "kl_cov"}, "loss", {"kind": "kl_cov", "share": 2e-4}),
        ({"reject": "none"}, "rejection", {"kind": "veto"}),
        ({"reject": "none", "reject_veto": 0.0}, "rejection", {"kind": "none"}),
        ({"filter": "none"}, "filter", {"kind": "none"}),
        ({"correction": "decoupled"}, "correction", {"kind": "decoupled", "normalise": False}),
        (
            {"advantage": "gigpo", "step_weight": 0.5},
            "advantage",
            {"kind": "gigpo", "gamma_turn": 0.9, "by_std": True},
        ),
    ],
    ids=str,
)
def test_alternative_of_an_older_run_gets_its_own_settings(
    changes: dict[str, Any], choice: str, expected: dict[str, Any], tmp_path: Path
) -> None:
    assert migrated(tmp_path, **changes)["algo"][choice] == expected


CRITIC = {
    "kind": "utterances",
    "learning_rate": 1e-5,
    "warmup_steps": 0,
    "updates": 5,
    "batch": 32,
    "target_rate": 0.1,
}


@pytest.mark.parametrize(
    ("method", "own"),
    [
        ("archer", {"states": 48, "replay": 500, "correction": "returns"}),
        ("archer_offline", {"expectile": 0.7}),
        ("awac", {"states": 48}),
    ],
)
def test_archer_settings_of_an_older_run_go_to_estimator_and_critic(
    method: str, own: dict[str, Any], tmp_path: Path
) -> None:
    settings = migrated(tmp_path, method=method)
    algo = settings["algo"]
    assert algo["estimator"] == {"kind": method, "gamma_turn": 0.9, "whiten": True, **own}
    assert settings["critic"] == CRITIC
    assert algo["advantage"]["kind"] == "turn_gae"


def test_older_settings_that_were_joined_keep_their_meaning(tmp_path: Path) -> None:
    """Settings of versions that had two names for one choice, for an agent and for an environment."""
    both = """
        [agent]
        command = "{command}"
        timeout_s = 5.0
        on_timeout = "truncate"
        on_crash = "fail"
        [diagnose]
        information_every = 0
        gradients_every = 4
        rollbacks = 2
        [rollout.retry]
        kind = "unsolved"
        rounds = 2
        temperature = 1.3
        [algo]
        estimator = "awac"
        [algo.exploration]
        kind = "action_entropy"
        coef = 0.1
        target = 0.6
        [algo.advantage]
        kind = "turn_gae"
        whiten = false
        whiten_over = "token"
        [algo.correction]
        kind = "truncated"
        level = "sequence"
        pool = "mean"
        low = 0.5
        high = 3.0
        [critic]
        kind = "utterances"
        encoder = "policy"
        [lora]
        rank = 4
        part = "vision"
        [context]
        kind = "summary"
        tokens = 64
        by = "model"
    """
    for env, command, limit in (("agent", "python a.py", 5.0), ("frozen_lake", "none", 600.0)):
        text = f'[env]\nkind = "{env}"\n{dedent(both).format(command=command)}'
        (tmp_path / "config.toml").write_text(text, encoding="utf-8")
        config = build(read_run(str(tmp_path)))
        assert (config.rollout.timeout_s, config.agent.train_on) == (limit, ("timeout", "crash"))
        assert (config.diagnose.every, config.critic.kind) == (4, "utterance_head")
        assert (config.diagnose.answer, config.rollout.retry_unsolved) == ("roll_back", 2)
        assert config.algo.action_entropy_target == 0.6
        assert (config.model.train_vision, config.context.model_dump()["summary"]) == ("only", 64)
        assert config.algo.advantage.model_dump()["whiten"] is False
        correction = {"kind": "truncated", "normalise": False, "level": "sequence_mean", "bounds": (0.5, 3.0)}
        assert config.algo.correction.model_dump() == correction


OWN = """
    from typing import ClassVar

    import torch
    import turnwise as tw

    class Scaled(tw.Loss):
        scale: float = 1.0
        dual_clip: float | None = None

        def compute(self, inputs):
            ratio = (inputs.policy_logprobs - inputs.old_logprobs).exp()
            metrics = {"own_scale": torch.full_like(ratio, self.scale), "own_advantage": inputs.advantages}
            return tw.LossResult(token_loss=-self.scale * ratio * inputs.advantages, metrics=metrics)

    class Shifted(tw.Advantage):
        needs_groups: ClassVar[bool] = True
        shift: float

        def compute(self, inputs):
            return torch.where(inputs.mask, self.shift, 0.0)

    class Last(tw.Filter):
        count: int = 1

        def keeps(self, scores):
            return torch.arange(len(scores)) >= len(scores) - self.count
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(dedent(OWN), encoding="utf-8")
    return tmp_path / "own.py"


def test_own_loss_advantage_and_filter_train_with_their_settings(own: Path, tmp_path: Path) -> None:
    small = ["--model.warmup_steps=2", "--rollout.groups=3", "--rollout.group_size=4", "--train.mini_batch=12"]
    small += ["--train.steps=2", "--eval.episodes=2", "--rollout.max_new_tokens=12"]
    chosen = [f"--algo.loss={own}:Scaled", "--algo.loss.scale=0.5", "--algo.advantage.shift=0.25"]
    chosen += [f"--algo.advantage={own}:Shifted", "--algo.filter.count=2", f"--algo.filter={own}:Last"]
    assert main(["train", "bandit", "--name=run", f"--record.folder={tmp_path}", *small, *chosen]) == 0
    rows = [row for row in metrics(tmp_path / "run") if "rollout/success" in row]
    assert [row["train/own_scale"] for row in rows] == [0.5, 0.5]
    assert [row["train/own_advantage"] for row in rows] == pytest.approx([0.25, 0.25])
    assert [row["rollout/kept_share"] for row in rows] == pytest.approx([2 / 3, 2 / 3])
    again = configure(start_from=str(tmp_path / "run")).algo
    assert again.loss.model_dump() == {"kind": f"{own}:Scaled", "scale": 0.5, "dual_clip": None}
    assert again.filter.model_dump()["count"] == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"advantage": "Shifted"}, "needs algo.advantage.shift. Give it."),
        ({"loss": "Scaled", "loss.scael": "1"}, 'unknown key algo.loss.scael: did you mean "algo.loss.scale"?'),
        ({"loss": "Scaled", "loss.scale": "much"}, "algo.loss.scale = much: input should be a valid number"),
        ({"loss": "Scaled", "loss.clip_low": "0.1"}, "algo.loss.clip_low has no effect with algo.loss "),
        ({"loss": "Last"}, "is a class that is not derived from tw.Loss. Derive it."),
        (
            {"advantage": "Shifted", "advantage.shift": "1", "rollout.group_size": "1"},
            "own.py:Shifted compares the members of a group, and rollout.group_size is 1",
        ),
    ],
    ids=str,
)
def test_mistake_in_settings_of_an_own_class_is_one_line(
    settings: dict[str, str], message: str, own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        f"--{name}={value}"
        if "." in name and not name.startswith(("loss", "advantage"))
        else f"--algo.{name}={value if '.' in name else f'{own}:{value}'}"
        for name, value in settings.items()
    ]
    assert main(["train", "bandit", "--dry-run", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
