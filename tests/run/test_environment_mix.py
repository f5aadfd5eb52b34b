"""Runs on several environments, and runs whose tasks are drawn by how they fared."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from runs_for_tests import environments_of, episodes, learnt, metrics, printed, quiet, rewind, small
from turnwise.config.load import build, read_settings, to_toml
from turnwise.core.errors import Outage, UserError
from turnwise.core.task import Task
from turnwise.envs.bandit.env import Bandit
from turnwise.envs.param_setting import param_setting
from turnwise.envs.registry import spec_of
from turnwise.envs.seeds import seed_for
from turnwise.run.environment_mix import build_environment_mix, build_task_source
from turnwise.run.train import train
from turnwise.training.checkpoints import read_state

MIX = {"env__mix": {"frozen_lake": 1.0, "large": {"kind": "frozen_lake", "weight": 2.0, "params": {"size": 5}}}}
ROOMY = {"rollout__max_tokens": 512, "rollout__groups": 8, "rollout__group_size": 2, "train__mini_batch": 8}


def test_mix_draws_by_weight_and_reports_by_environment(tmp_path: Path) -> None:
    config = small(tmp_path, **MIX, **ROOMY, train__steps=1, eval__every=0, model__warmup_steps=5)
    train(config, console=quiet())
    run = tmp_path / "run"
    played = [row["environment"] for row in episodes(run, only_training=True)]
    assert set(played) == {"bandit", "frozen_lake", "large"}
    rows = [row for row in metrics(run) if "rollout/success" in row]
    for row in rows:
        names = [name.rpartition("/")[2] for name in row if name.startswith("rollout/episodes/")]
        shares = [row[f"rollout/episodes/{name}"] * row[f"rollout/success/{name}"] for name in names]
        if names:
            assert sum(shares) / row["rollout/episodes"] == pytest.approx(row["rollout/success"])
    after = next(row for row in metrics(run) if row.get("eval/name") == "after")
    assert {"eval/success/bandit", "eval/success/frozen_lake", "eval/success/large"} <= after.keys()


def test_mix_settings_are_read_from_toml(tmp_path: Path) -> None:
    file = tmp_path / "mix.toml"
    file.write_text(to_toml(small(Path("x"), **MIX)))
    again = environments_of(build(read_settings(file)))
    assert (
        again.entries == environments_of(small(Path("x"), **MIX)).entries and again.name == "bandit+frozen_lake+large"
    )


@pytest.mark.parametrize(
    ("mix", "problem"),
    [
        ({"frozen_lake": 0}, "weight above 0"),
        ({"frozen_lake": {"wait": 1}}, "kind, weight and params"),
        ({"frozen_lake": "much"}, "weight"),
    ],
)
def test_invalid_mix_is_a_one_line_error(mix: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        small(Path("x"), env__mix=mix)


def test_mix_rejects_unknown_environments_parameters_and_duplicates(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='did you mean "frozen_lake"'):
        environments_of(small(tmp_path, env__mix={"frozen_lak": 1}))
    with pytest.raises(UserError, match="no such parameter"):
        environments_of(small(tmp_path, env__mix={"frozen_lake": {"params": {"sise": 4}}}))
    with pytest.raises(UserError, match=r"already the name of env.kind"):
        environments_of(small(tmp_path, env__mix={"bandit": 1}))


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"reasoning": "both"}, r"env\.mix\.shop\.params\.reasoning both: .* --env\.mix\.shop\.params\.state_judge '"),
        ({"state_judge": {"model": "m"}}, r"env\.mix\.shop\.params\.state_judge has no effect"),
        ({"reasoning": "both", "state_judge": {}}, r"env\.mix\.shop\.params\.state_judge lacks"),
        ({"per_pag": 3}, r"env\.mix\.shop\.params\.per_pag: shop has no such parameter"),
        ({"per_page": "3"}, r"env\.mix\.shop\.params\.per_page is a text in quotes"),
    ],
)
def test_errors_in_a_mix_name_the_setting_of_the_mix(tmp_path: Path, params: dict[str, object], problem: str) -> None:
    config = small(tmp_path, env__mix={"shop": {"kind": "web_shop", "params": params}})
    with pytest.raises(UserError, match=problem) as caught:
        build_environment_mix(config.env, config.agent)
    assert "env.params" not in str(caught.value)


def test_errors_of_episodes_in_a_mix_name_the_setting_of_the_mix(tmp_path: Path) -> None:
    class Needy(Bandit):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            if self.max_turns > 1:
                raise UserError(f"lower {param_setting('max_turns')}")

    cities = {"kind": "guess_city", "params": {"max_turns": 2}}
    environments = environments_of(small(tmp_path, env__mix={"cities": cities, "needy": {"kind": "bandit"}}))
    specs = {**environments.specs, "needy": replace(environments.specs["needy"], cls=Needy)}
    environments = replace(environments, specs=specs)

    def play(env: str, **params: object) -> None:
        asyncio.run(environments.make(Task(env=env, seed=seed_for("train", 0), params=params)).start())

    with pytest.raises(
        UserError, match=r"raise env\.mix\.cities\.params\.max_turns or lower env\.mix\.cities\.params\.num"
    ):
        play("cities", max_turns=2)
    with pytest.raises(UserError, match=r"^lower env\.mix\.needy\.params\.max_turns$"):
        play("needy", max_turns=2)
    with pytest.raises(UserError, match=r"^env\.mix\.cities\.params\.size: "):
        play("cities", size=1)
    with pytest.raises(UserError, match=r"^env\.params\.size: "):
        play("bandit", size=1)


def test_outage_in_an_episode_of_a_mix_stays_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reset(env: Bandit, rng: object) -> str:
        raise Outage("the judge is gone")

    monkeypatch.setattr(Bandit, "reset", reset)
    environments = environments_of(small(tmp_path, env__kind="frozen_lake", env__mix={"bandit": 1.0}))
    with pytest.raises(Outage):
        asyncio.run(environments.make(Task(env="bandit", seed=0)).start())


def test_mix_may_be_set_on_the_command_line() -> None:
    typed = [("env.mix.sokoban", "2"), ("env.mix.big.kind", "frozen_lake"), ("env.mix.big.params.size", "6")]
    worlds = environments_of(build({"env": {"kind": "bandit"}}, typed)).entries
    assert [(world.env, world.weight) for world in worlds] == [("bandit", 1.0), ("sokoban", 2.0), ("big", 1.0)]
    assert worlds[2].params["size"] == 6


CURRICULUM = {"curriculum__pool": 8, "train__steps": 3, "checkpoint__every": 1}


def test_curriculum_run_records_success_and_resumes_with_the_same_bits(tmp_path: Path) -> None:
    train(small(tmp_path, **CURRICULUM), console=quiet())
    run = tmp_path / "run"
    seeds = {(row["environment"], row["seed"]) for row in episodes(run, only_training=True)}
    state = read_state(run / "checkpoints" / "step_000003")
    assert len(seeds) <= 8 and {f"{env}:{seed}" for env, seed in seeds} == set(state.parts["curriculum"])
    assert all(0 <= won <= tries for won, tries in state.parts["curriculum"].values())
    assert [row["curriculum/measured"] for row in metrics(run) if "rollout/success" in row][-1] == len(seeds)

    cut = rewind(run, tmp_path / "cut", step=2)
    train(small(cut.parent, **CURRICULUM), resume=True, console=quiet())
    ours, theirs = learnt(run), learnt(cut)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert episodes(run) == episodes(cut)


class Rows(Bandit):
    """A bandit whose tasks are the rows of a table."""

    @classmethod
    def size(cls, params: object, split: str) -> int:
        return 30


def test_curriculum_draws_and_measures_rows_of_a_file(tmp_path: Path) -> None:
    config, console = small(tmp_path, **CURRICULUM, env__kind="rows", eval__every=0, model__warmup_steps=2), quiet()
    train(config, spec=spec_of(Rows), console=console)
    assert "note: curriculum.pool 8 trains on 8 of 30 rows" in printed(console)
    rows = {row["seed"] for row in episodes(tmp_path / "run", only_training=True)}
    worlds = build_environment_mix(config.env, config.agent, spec_of(Rows))
    pool = {task.seed for task in build_task_source(config, worlds).draw(0, 8)}
    assert rows <= pool and len(pool) == 8
    state = read_state(tmp_path / "run" / "checkpoints" / "step_000003")
    assert set(state.parts["curriculum"]) == {f"{worlds.name}:{row}" for row in rows}
    last = [row for row in metrics(tmp_path / "run") if "rollout/success" in row][-1]
    assert last["curriculum/measured"] == len(rows)


def test_curriculum_pool_smaller_than_a_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"curriculum\.pool 1 has fewer"):
        train(small(tmp_path, curriculum__pool=1), console=quiet())
