"""Problems of a cluster are reported in one line: packages, versions, address, resources."""

import os
import signal
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from turnwise.config.load import build
from turnwise.config.resources import ClusterConfig
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.run import validate
from turnwise.run.check_settings import check_settings_fit
from turnwise.run.environment_mix import build_environment_mix
from turnwise.run.validate import CheckedRun, check_cluster

MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.59.0
    Python: 3.11.9
This process on node was started with:
    Ray: 2.60.0
    Python: 3.11.9
"""


def check(config: Config) -> None:
    check_cluster(
        config.cluster, CheckedRun(config=config, environments=build_environment_mix(config.env, config.agent))
    )


@pytest.mark.parametrize("key", ["cluster.engines", "cluster.env_workers"])
def test_state_judge_in_actors_is_reported(key: str) -> None:
    pytest.importorskip("ray")
    params = {"reasoning": "both", "state_judge": {"model": "m", "endpoint": "http://localhost:9/v1"}}
    config = build({"env": {"kind": "bandit", "params": params}}, [(key, 1)])
    with pytest.raises(UserError, match=r"env\.params has a judge, whose budget counts .* of one process"):
        check(config)


@pytest.mark.parametrize("key", ["cluster.engines", "cluster.env_workers"])
def test_missing_ray_is_reported_with_its_extra(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build({}, [("env.kind", "bandit"), (key, 1)])
    monkeypatch.setattr(validate, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"need Ray\. Run `pip install 'turnwise\[ray\]'`\.$"):
        check(config)


def test_more_learners_than_gpus_is_reported_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(validate, "resolve_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(validate, "cores", lambda: 8)
    config = build({}, [("env.kind", "bandit"), ("cluster.engines", 1), ("cluster.learners", 2)])
    with pytest.raises(UserError, match=r"need 2 x \(1 CPU, 1 GPU\), and there is room for 1: this machine has 8 CPU"):
        check(config)


def test_environment_workers_need_no_gpu_and_no_other_actor(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(validate, "resolve_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr(validate, "cores", lambda: 2)
    check(build({}, [("env.kind", "bandit"), ("cluster.env_workers", 2)]))
    message = r"^cluster\.env_workers 3 need 3 x \(1 CPU, 0 GPU\), and there is room for 2: this machine has 2 CPU"
    with pytest.raises(UserError, match=message):
        check(build({}, [("env.kind", "bandit"), ("cluster.env_workers", 3)]))


@pytest.mark.parametrize("key", ["cluster.engines", "cluster.env_workers"])
@pytest.mark.parametrize(
    "settings",
    [
        [("env.kind", "tic_tac_toe"), ("selfplay.opponent", "self")],
        [("env.kind", "agent"), ("agent.command", "python3 a.py"), ("agent.tasks", "t.jsonl")],
    ],
)
def test_episodes_of_this_process_are_not_distributed(settings: list[tuple[str, str]], key: str) -> None:
    fix = r"Set cluster\.engines and cluster\.env_workers to 0(, or set selfplay\.opponent to none)?\.$"
    with pytest.raises(UserError, match=fix):
        check_settings_fit(build({}, [*settings, (key, 1)]))


@pytest.mark.parametrize("package", ["turnwise", "torch", "ray"])
def test_actor_with_another_version_is_reported(package: str) -> None:
    pytest.importorskip("ray")
    from turnwise.cluster.session import check_versions, process_info

    here = process_info()
    check_versions(here)
    other = replace(here, host="node7", versions={**here.versions, package: "0.0.1"})
    with pytest.raises(UserError) as error:
        check_versions(other)
    assert str(error.value) == (
        f"node7 has {package} 0.0.1, and this machine has {here.versions[package]}. Install the same version."
    )


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (RuntimeError(MISMATCH), "Version mismatch: The cluster was started with: Ray: 2.59.0 Python: 3.11.9 This"),
        (ConnectionError("no answer.\nTraceback"), "Cannot start a Ray cluster on this machine: no answer."),
        (Exception("The current node timed out."), "Cannot start a Ray cluster on this machine: The current node"),
    ],
)
def test_ray_that_does_not_start_is_reported_in_one_line(
    raised: Exception, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    from turnwise.cluster.session import _connect

    def fail(**options: Any) -> None:
        raise raised

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(UserError) as error, _connect(None, advice=""):
        pass
    assert str(error.value).startswith(shown)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("address", "niceness"), [(None, "0"), ("auto", None)])
def test_actors_of_an_own_cluster_have_the_priority_of_this_process(
    address: str | None, niceness: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = pytest.importorskip("ray")
    from turnwise.cluster import session
    from turnwise.cluster.session import NICENESS, _connect

    found: list[str | None] = []
    monkeypatch.setattr(session, "find_targets", lambda **options: {})
    monkeypatch.setattr(session, "guard_against_loss", lambda targets, advice: nullcontext())
    monkeypatch.delenv(NICENESS, raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "init", lambda **options: found.append(os.environ.get(NICENESS)))
    with _connect(address, advice=""):
        assert found == [niceness]


@pytest.mark.parametrize("address", ["127.0.0.1:9", "127.0.0.1:port", "ray://10.0.0.1:10001"])
def test_address_without_a_cluster_is_reported_at_once(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    from turnwise.cluster.session import open_session

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray tries for minutes"))
    with (
        pytest.raises(UserError, match=r"cluster\.address"),
        open_session(ClusterConfig(engines=1, address=address), gpus_per_engine=0),
    ):
        pass


def test_keep_sigterm_restores_the_handler_that_ray_replaces() -> None:
    session = pytest.importorskip("turnwise.cluster.session")
    before = signal.getsignal(signal.SIGTERM)
    with session.keep_sigterm():
        signal.signal(signal.SIGTERM, lambda number, frame: None)
    assert signal.getsignal(signal.SIGTERM) is before
