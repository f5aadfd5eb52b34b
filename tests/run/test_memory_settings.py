"""Settings of memory reach what they are about, and a plan is printed before anything is bought."""

from pathlib import Path
from typing import Any

import pytest
import torch

from learners_for_tests import learn, make_learner, random_groups, settings_of, weights
from runs_for_tests import quiet, small
from turnwise.cli.main import main
from turnwise.config.load import build
from turnwise.core.errors import UserError
from turnwise.engine.native.engine import NativeEngine
from turnwise.models.layers import Recomputed, decoder_layers
from turnwise.models.memory.estimate import GIB
from turnwise.record.run_folder import RunFolder
from turnwise.run import resources
from turnwise.run.memory_report import report_plan
from turnwise.run.resources import memory_plan, memory_request
from turnwise.run.sft import sft
from turnwise.run.train import train


def settled(**given: str) -> Any:
    return build({}, [(name.replace("__", "."), value) for name, value in given.items()])


def test_memory_plan_on_cpu_only_follows_the_settings() -> None:
    plan = memory_plan(settled(), make_learner(settings_of()).model)
    assert (plan.optimizer_on_host, plan.recompute, plan.releases_cache, plan.pages) == (False, False, False, None)
    asked = {"train__optimizer_state": "host", "train__recompute": "on", "system__keep_cache": "off"}
    config = settled(**asked, train__micro_tokens="5000")
    plan = memory_plan(config, make_learner(settings_of()).model)
    assert (plan.optimizer_on_host, plan.recompute, plan.releases_cache, plan.micro_tokens) == (True, True, True, 5000)


def test_memory_request_follows_the_settings() -> None:
    plain = memory_request(settled())
    assert (plain.optimizer_on_host, plain.recompute, plain.releases_cache, plain.micro_tokens) == (
        None,
        None,
        None,
        None,
    )
    assert (plain.critic, plain.reference, plain.muon, plain.engines) == (False, False, False, 1)
    given = memory_request(settled(train__optimizer_state="device", train__recompute="off", system__keep_cache="on"))
    assert (given.optimizer_on_host, given.recompute, given.releases_cache) == (False, False, False)
    other = {"algo__advantage": "gae", "algo__kl_coef": "0.1", "train__optimizer": "muon", "selfplay__opponent": "past"}
    more = memory_request(settled(**other))
    assert (more.critic, more.reference, more.muon, more.engines) == (True, True, True, 2)
    assert not memory_request(settled(algo__advantage="gae", critic__kind="head")).critic
    archer = {"algo__estimator": "archer", "algo__advantage": "gae", "critic": "utterances"}
    kinds = ("utterances", "utterance_head")
    requests = [memory_request(settled(**archer | {"critic": kind})) for kind in kinds]
    assert [(each.critic, each.reference) for each in requests] == [(True, True), (False, False)]
    imitating = memory_request(settled(**other), sft=True)
    assert (imitating.critic, imitating.reference, imitating.muon, imitating.engines) == (False, False, False, 1)


@pytest.mark.parametrize("critic", ["no critic", "trunk"])
def test_learner_is_identical_with_offload_and_recompute(critic: str) -> None:
    found = []
    for given in ({}, {"train__optimizer_state": "host", "train__recompute": "on"}):
        config = settings_of(critic, **given)
        learner = make_learner(config)
        for step in range(2):
            learn(learner, random_groups(step), config, step)
        found.append((learner, weights(learner.model)))
    (_, plain), (other, ours) = found
    assert other.optimizer.masters.on_host
    assert critic == "no critic" or other.critic_optimizer.masters.on_host
    assert [isinstance(layer, Recomputed) for layer in decoder_layers(other.model)] == [True, True, False]
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def test_run_releases_the_kv_cache_before_each_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[int]()

    async def sleep(engine: NativeEngine) -> None:
        slept.append(engine.policy_version)

    monkeypatch.setattr(NativeEngine, "sleep", sleep)
    short = {"train__steps": 2, "eval__every": 0, "eval__episodes": 1}
    train(small(tmp_path, **short), console=quiet())
    assert slept == []
    train(small(tmp_path / "other", **short, system__keep_cache="off"), console=quiet())
    assert slept == [0, 1]
    steps = [row for row in RunFolder.open(tmp_path / "other" / "run").read_metrics() if "rollout/episodes" in row]
    assert [row["time/capture_s"] for row in steps] == [0.0, 0.0]


def test_sft_releases_the_kv_cache_before_each_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[int]()

    async def sleep(engine: NativeEngine) -> None:
        slept.append(1)

    monkeypatch.setattr(NativeEngine, "sleep", sleep)
    settings = {"sft__demos": "solver", "sft__count": 4, "sft__batch": 2, "model__warmup_steps": 0}
    given = {"train__optimizer_state": "host", "train__recompute": "on", "system__keep_cache": "off"}
    sft(small(tmp_path, **settings, **given), console=quiet())
    assert len(slept) == 2


def test_report_plan_lists_memory_per_phase_and_host() -> None:
    report = report_plan("Qwen/Qwen2.5-1.5B-Instruct", None, 24, [])
    rows = {name: cells for name, *cells in report.rows}
    assert rows["float32 master weights"] == ["", "", "5.75"]
    assert rows["parameters"] == ["2.88", "2.88", ""]
    assert rows["available"][:2] == ["24.00", "24.00"]
    columns = [
        [float(cells[column] or 0) for name, cells in rows.items() if name not in ("total", "available")]
        for column in range(3)
    ]
    for column, total in zip(columns, rows["total"], strict=True):
        assert sum(column) == pytest.approx(float(total), abs=0.06)
    assert "optimizer states on the host" in report.lines[1]
    kept = report_plan(None, "qwen2.5-1.5b", 80, [("train.optimizer_state", "device"), ("lora.rank", "16")])
    assert "1,562M parameters, 18M of them trained (1.18%)" in kept.lines[0]
    assert "optimizer states on the device" in kept.lines[1]


def test_report_plan_needs_a_model_and_a_memory_size(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="Name a model or a shape"):
        report_plan(None, None, 24, [])
    with pytest.raises(UserError, match="Name a model or a shape"):
        report_plan("tiny", "qwen2.5-7b", 24, [])
    with pytest.raises(UserError, match="not the size of a GPU"):
        report_plan("tiny", None, -1, [])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="such as 24"):
        report_plan("tiny", None, None, [])


def test_doctor_prints_the_memory_plan(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--plan", "--shape", "qwen2.5-7b", "--gpu-memory", "80", "--lora.rank", "16"]) == 0
    out = capsys.readouterr().out
    assert "KV cache" in out and "40M of them trained" in out
    assert main(["doctor", "--plan", "--shape", "qwen2.5-7b", "--gpu-memory", "8"]) == 2
    assert "lora.rank 16" in capsys.readouterr().err
    assert main(["doctor", "--lora.rank", "16"]) == 2
    assert "add --plan" in capsys.readouterr().err


def test_device_memory_is_free_plus_reserved_up_to_the_allowed_share(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = 1.0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 30 * GIB)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: share)
    device = torch.device("cuda")
    assert resources.device_memory(device) == 130 * GIB + resources.CUDA_CONTEXT
    share = 0.1
    assert resources.device_memory(device) == 14 * GIB + resources.CUDA_CONTEXT
