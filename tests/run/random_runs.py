"""Random small runs, each left alone, then killed at random moments and resumed: both must end alike, bit for bit.

    python random_runs.py FOLDER FIRST COUNT

prints a line per run that differs, with the command that repeats it. The number of a run determines its settings and
when it is killed. A process of its own, which forks for each run: see `killed_runs`.
"""

import json
import random
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from killed_runs import Moment, ended, find_failure, fork, killed_and_resumed, training, wait

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.alarms import Alarm, AlarmState, check_alarms
from turnwise.algos.filters import FILTERS, SCORES
from turnwise.algos.losses import AGGREGATIONS, LOSSES
from turnwise.algos.normalisation import NORMALISATIONS
from turnwise.algos.off_policy import CORRECTIONS
from turnwise.config.keys import all_keys
from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.engine.cpu.kernels import optional_kernels
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.load_policy import load_policy
from turnwise.run.trial_episodes import check_replies_fit
from turnwise.run.validate import check_run
from turnwise.training import diagnostics

Settings = dict[str, Any]

ENVIRONMENTS: dict[str, Settings] = {
    "bandit": {"rollout.max_tokens": 256},
    "countdown": {"rollout.max_tokens": 300},
    "frozen_lake": {"rollout.max_tokens": 500, "env.params.max_turns": 2, "env.params.max_actions": 4},
    "sokoban": {"rollout.max_tokens": 600, "env.params.size": 5, "env.params.max_turns": 2},
    "lookup": {"rollout.max_tokens": 600, "env.params.max_turns": 2},
    "tic_tac_toe": {"rollout.max_tokens": 700, "env.params.max_turns": 5},
}
"""Environments of several kinds, with episodes that are short."""
MIXED = ("frozen_lake", "countdown")
STORED = ("clone", "preference", "dpo")
"""Advantages and losses for stored episodes."""
WARMUP_STEPS = 8

REWARDS = """\
def brief(trajectory):
    return 1.0 / (1 + sum(len(turn.action_ids) for turn in trajectory.turns))

def by_turn(trajectory):
    return [0.1 * (len(turn.action_ids) % 3) for turn in trajectory.turns]
"""


def draw_settings(rng: random.Random, rewards: Path) -> Settings:
    """Some settings for every part that carries something from one step to the next; not all draws make sense."""
    pick, maybe = rng.choice, rng.random
    given: Settings = {"seed": rng.randrange(1000), "system.threads": 1, "model.warmup_steps": WARMUP_STEPS}
    kind = pick(list(ENVIRONMENTS))
    groups, size = rng.randint(1, 3), rng.randint(1, 5)
    given |= {
        "env.kind": kind,
        "rollout.groups": groups,
        "rollout.group_size": size,
        "rollout.in_flight": pick([1, 2, 3, 5, 256]),
        "rollout.max_new_tokens": rng.randint(3, 14),
        "rollout.temperature": pick([0.7, 1.0, 1.0, 1.3]),
        "rollout.timeout_s": 3600.0,
        **ENVIRONMENTS[kind],
    }
    given |= {
        "algo.advantage": pick([name for name in ADVANTAGES if name not in STORED]),
        "algo.loss": pick([name for name in LOSSES if name not in STORED]),
        "algo.correction": pick(list(CORRECTIONS)),
        "algo.correction.level": pick(["token", "turn", "sequence", "turn_mean", "sequence_mean"]),
        "algo.old_logprobs": pick(["sampler", "learner"]),
        "algo.normalise": pick(["identity", *NORMALISATIONS]),
        "algo.normalise.over": pick(["group", "environment", "batch"]),
        "algo.aggregation": pick(list(AGGREGATIONS)),
        "algo.truncated": pick(["zero", "drop", "bootstrap"]),
        "algo.placement": pick(["turn", "trajectory"]),
        "algo.entropy_coef": pick([0.0, 0.01]),
        "algo.loss_tokens": pick(["sampled", "sampled", "answer", "think"]),
        "algo.advantage_tokens": pick(["sampled", "sampled", "answer"]),
        "algo.advantage.gamma_turn": pick([1.0, 0.9, "adaptive"]),
        "algo.advantage.lam": pick([1.0, 0.9]),
        "critic.kind": pick(["trunk", "head"]),
        "critic.warmup_steps": pick([0, 0, 1]),
        "critic.learning_rate": 1e-3,
    }
    if maybe() < 0.4:
        given |= {
            "algo.filter": pick(list(FILTERS)),
            "algo.filter.by": pick(list(SCORES)),
            "algo.filter.value": pick([0.1, 0.5, 1.0]),
            "algo.filter.count": pick([1, 2]),
            "algo.filter.largest": pick([True, False]),
            "algo.filter.scale": pick(["none", "share", "root"]),
            "algo.filter.refill": pick([0, 0, 2]),
        }
    if maybe() < 0.4:
        given |= {
            "algo.kl_coef": pick([0.01, 0.3]),
            "algo.kl_in": pick(["loss", "reward"]),
            "algo.kl_estimator": pick(["k1", "k2", "k3", "abs"]),
            "algo.kl_target": pick([None, 0.01]),
        }
    if maybe() < 0.2:
        given |= {
            "algo.action_entropy_target": pick([0.1, 5.0]),
        }
    if maybe() < 0.2:
        given |= {"algo.entropy_coef": 0.01, "algo.entropy_target": pick([0.1, 5.0])}
    if maybe() < 0.3:
        given |= {
            "lora.rank": rng.randint(1, 4),
            "lora.targets": pick([(), ("q_proj", "v_proj")]),
            "lora.alpha": pick([None, 3.0]),
        }
    if maybe() < 0.4:
        given |= draw_context(rng)
    if kind == "tic_tac_toe" and maybe() < 0.7:
        given |= {
            "selfplay.opponent": pick(["self", "past"]),
            "selfplay.random_moves": pick([0, 2]),
            "selfplay.opponent.snapshot_every": rng.randint(1, 2),
            "selfplay.opponent.snapshots": rng.randint(1, 3),
            "selfplay.opponent.ladder_games": pick([0, 2]),
        }
    if kind == "bandit" and maybe() < 0.5:
        given |= {f"env.mix.{pick(MIXED)}": pick([0.5, 1.0]), "rollout.max_tokens": 700}
    if maybe() < 0.3:
        given |= {"curriculum.pool": pick([2, 4, 8])}
    if maybe() < 0.3:
        names = rng.sample(["brief", "by_turn"], rng.randint(1, 2))
        given |= {
            "reward.functions": tuple(f"{rewards}:{name}" for name in names),
            "reward.combine": pick(["sum", "each", "process"]),
        }
    given |= {
        "train.steps": rng.randint(2, 5),
        "train.learning_rate": pick([1e-4, 1e-3, 1e-2]),
        "train.optimizer": pick(["adamw", "adamw", "muon"]),
        "train.schedule": pick(["constant", "linear", "cosine"]),
        "train.warmup_steps": pick([0, 0, 2]),
        "train.optimizer.weight_decay": pick([0.0, 0.1]),
        "train.mini_batch": rng.randint(1, groups * size),
        "train.epochs": pick([1, 1, 2]),
        "train.micro_tokens": pick([None, 300, 2000]),
        "train.recompute": pick(["auto", "on"]),
        "model.dtype": "bfloat16" if maybe() < 0.02 else "auto",
        "eval.every": pick([0, 0, 1, 2]),
        "eval.episodes": rng.randint(1, 3),
        "eval.temperature": pick([0.0, 0.5]),
        "eval.top_k": pick([0, 0, 5]),
        "checkpoint.every": rng.randint(1, 3),
        "record.trajectories": pick([1, 1, 2]),
        "diagnose.answer": pick(["none", "none", "adjust", "roll_back"]),
        "diagnose.every": pick([0, 0, 0, 2]),
    }
    if given.get("selfplay.opponent") == "self":  # else few of them would fit
        given = {name: value for name, value in given.items() if not name.startswith("curriculum.")}
        given["rollout.groups"] += given["rollout.groups"] % 2
    return {name: value for name, value in given.items() if exists(name, given)}


def exists(name: str, given: Settings) -> bool:
    """Return whether the alternative that is chosen has the setting."""
    key = all_keys().get(name)  # None for a parameter of the environment
    return key is None or not key.kinds or given.get(key.section, all_keys()[key.section].default) in key.kinds


def draw_context(rng: random.Random) -> Settings:
    mode, turns = rng.choice(["window", "turn", "summary"]), {"context.turns": rng.randint(0, 2)}
    settings: dict[str, Settings] = {
        "window": turns,
        "turn": turns,
        "summary": {"context.every": rng.choice([1, 2]), "context.summary": 6},
    }
    return {"context": mode, "context.keep_opening": rng.choice([True, False]), **settings[mode]}


def draw_moments(rng: random.Random) -> list[Moment]:
    """Draw when a run is killed: one to three times."""
    kinds = ("event", "event", "time", "time", "stop", "half", "line")
    values = {"half": lambda: rng.randint(0, 3), "line": lambda: rng.randint(0, 9)}
    chosen = [rng.choice(kinds) for _ in range(rng.randint(1, 3))]
    return [(kind, values.get(kind, rng.random)()) for kind in chosen]


def draw_case(number: int, folder: Path) -> tuple[Settings, list[Moment]]:
    """Settings that a run accepts, and the moments at which it is killed; what is refused is drawn again."""
    rng, rewards = random.Random(f"run {number}"), folder / "rewards.py"
    rewards.write_text(REWARDS)
    tokenizer = tiny_tokenizer()
    while True:
        settings = draw_settings(rng, rewards)
        try:
            config = configured(settings, folder)
            environments = build_environment_mix(config.env, config.agent)
            check_run(config, environments)
            check_replies_fit(config.rollout, environments, tokenizer)
        except UserError:
            continue
        return settings, draw_moments(rng)


def configured(settings: Settings, folder: Path) -> Config:
    return build({}, [*settings.items(), ("record.folder", str(folder)), ("record.name", "run")])


def raise_alarms(number: int) -> AbstractContextManager[object]:
    """Raise alarms at some steps of a run, so that it rolls back; real ones need more steps than these runs have."""
    rng = random.Random(f"alarms {number}")
    steps = {step for step in range(1, 6) if rng.random() < 0.4}

    def raise_some(rows: Sequence[dict[str, Any]], active: frozenset[str], settings: object) -> AlarmState:
        step = rows[-1].step
        raised = (Alarm(kind="test", step=step, message=f"at step {step}"),) if step in steps else ()
        return AlarmState(raised=raised, active=frozenset())

    return patch.object(diagnostics, check_alarms.__name__, raise_some)


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    return [name for name in ours if ours[name] != theirs[name]]


def run_case(number: int, folder: Path) -> str | None:
    """Return how the killed run differs from the uninterrupted one; None if it does not."""
    settings, moments = draw_case(number, folder)
    environment = tuple((name, value) for name, value in settings.items() if name.startswith(("env.p", "env.m")))
    warm_up(settings["env.kind"], environment)
    with raise_alarms(number) if settings["diagnose.answer"] != "none" else nullcontext():
        return compare(settings, moments, folder)


def compare(settings: Settings, moments: Sequence[Moment], folder: Path) -> str | None:
    began = time.perf_counter()
    if (status := wait(training(configured(settings, folder / "plain"), None, resume=False))) != 0:
        return f"the run left alone ended with status {status}"
    wall_s = time.perf_counter() - began
    events = json.loads((folder / "plain/events.json").read_text())
    statuses = killed_and_resumed(configured(settings, folder / "killed"), moments, len(events), wall_s)
    about = f"killed at {json.dumps(moments)} of {len(events)} events and {wall_s:.1f} s, statuses {statuses}"
    if (failure := find_failure(moments, statuses)) is not None:
        return f"{about}: {failure}"
    plain, other = (ended(folder / f"{name}/run") for name in ("plain", "killed"))
    found = differences(plain, other)
    return f"{about}: {', '.join(found)} differ" if found else None


@cache
def warm_up(kind: str, settings: tuple[tuple[str, Any], ...]) -> None:
    """Puts tiny's warm-up into the cache, so that no kill costs it again. In a child, since it computes."""
    config = build({"env": {"kind": kind}}, [*settings, ("model.warmup_steps", WARMUP_STEPS)])
    wait(fork(lambda: load_policy(config, build_environment_mix(config.env, config.agent), lambda *_: None) and None))


def main(folder: Path, first: int, count: int) -> None:
    """Exit with status 1 if a run differs."""
    optional_kernels()
    failed = 0
    for number in range(first, first + count):
        own = folder / f"case-{number}"
        shutil.rmtree(own, ignore_errors=True)
        own.mkdir(parents=True)
        problem = run_case(number, own)
        if problem is None:
            shutil.rmtree(own)
        else:
            failed += 1
            sys.stdout.write(f"run {number}: {problem}\n  repeat: python {__file__} {folder} {number} 1\n")
            sys.stdout.flush()
    sys.stdout.write(f"{count - failed} of {count} runs ended as those left alone, from number {first} on\n")
    sys.stdout.flush()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
