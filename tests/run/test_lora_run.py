"""Reinforcement learning on an adapter: the base stays, and the adapter that the run began with is the reference."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from runs_for_tests import metrics, quiet, rewind, small
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.models.loading.load import load_model
from turnwise.models.loading.lora import base_model_of
from turnwise.models.loading.model_files import is_adapter
from turnwise.run.evaluation.evaluate import evaluate_into_folder
from turnwise.run.evaluation.plan import plan_evaluation
from turnwise.run.export import export, merge
from turnwise.run.train import train

LAST = "checkpoints/step_000003"
IDS = torch.tensor([[5, 6, 7, 8]])


def settings(folder: Path, **others: object) -> Config:
    given = {"lora__rank": 4, "algo__kl_coef": 0.1, "train__steps": 3, "checkpoint__every": 1}
    return small(folder, **{**given, **others})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, which is not changed. It makes no second copy of the model."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turnwise.run.build_learner.copy_model", lambda _: pytest.fail("a second copy of the model"))
        train(settings(folder), console=quiet())
    return folder / "run"


def test_lora_run_trains_the_adapter_only_with_kl_to_the_base(run: Path) -> None:
    checkpoint = run / LAST
    assert is_adapter(checkpoint) and not (checkpoint / "model.safetensors").exists()
    rows = [row for row in metrics(run) if "train/kl" in row]
    assert rows[0]["train/kl"] < 1e-3 and rows[-1]["train/kl"] > 2 * rows[0]["train/kl"]
    base = load_model(base_model_of(checkpoint)).model
    trained = load_model(str(checkpoint)).model
    for name, parameter in base.named_parameters():
        own = dict(trained.named_parameters())
        assert parameter.equal(own.get(name, own.get(name.replace(".weight", ".base_layer.weight"))))
    weights = load_file(checkpoint / "adapter_model.safetensors")
    assert any(value.abs().sum() > 0 for name, value in weights.items() if "lora_B" in name)


def test_lora_run_resumes_with_the_same_bits(tmp_path: Path, run: Path) -> None:
    cut = rewind(run, tmp_path, step=2)
    train(settings(tmp_path), resume=True, console=quiet())
    for file in ("adapter_model.safetensors", "learner.safetensors"):
        ours, theirs = (load_file(each / LAST / file) for each in (run, cut))
        assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)


def test_lora_run_is_evaluated_exported_and_merged(tmp_path: Path, run: Path) -> None:
    results = evaluate_into_folder(plan_evaluation([str(run)]), tmp_path / "eval", console=quiet())
    assert results.evaluations[0].episodes > 0
    export(str(run), tmp_path / "exported")
    merge(str(run), tmp_path / "merged")
    adapted = load_model(str(run / "checkpoints" / "step_000003")).model(IDS).logits
    for folder in ("exported", "merged"):
        plain = AutoModelForCausalLM.from_pretrained(tmp_path / folder)(IDS).logits
        torch.testing.assert_close(plain, adapted, atol=1e-4, rtol=1e-4)


def test_adapter_is_trained_further_without_a_second_one(tmp_path: Path, run: Path) -> None:
    adapter = str(run / LAST)
    with pytest.raises(UserError, match=r"Remove lora\.rank"):
        train(settings(tmp_path / "second", model__name=adapter), console=quiet())
    train(small(tmp_path / "third", model__name=adapter, train__steps=1, eval__episodes=1), console=quiet())
    (third,) = (tmp_path / "third").iterdir()
    assert is_adapter(third / "checkpoints" / "step_000001")


def test_reference_of_a_trained_adapter_is_that_adapter_after_resume(tmp_path: Path, run: Path) -> None:
    shutil.copytree(run, tmp_path / "first" / "run")
    adapter = tmp_path / "first" / "run" / "checkpoints" / "step_000003"
    (away,) = (row["train/kl"] for row in metrics(tmp_path / "first" / "run") if row["step"] == 3 and "train/kl" in row)
    assert away > 1e-6, "by then the adapter has moved away from its base"

    further = {"model__name": str(adapter), "train__steps": 2, "train__mini_batch": 8, "eval__every": 0}
    train(small(tmp_path / "second", **further), console=quiet())
    second = tmp_path / "second" / "run"
    begun, later = (row["train/kl"] for row in metrics(second) if "train/kl" in row)
    assert begun < 1e-3 * away and later > 1e3 * begun

    shutil.rmtree(second / "checkpoints" / "step_000002")
    (second / "summary.json").unlink()
    changed = load_file(adapter / "adapter_model.safetensors")
    save_file({name: torch.zeros_like(value) for name, value in changed.items()}, adapter / "adapter_model.safetensors")
    train(small(tmp_path / "second", **further), resume=True, console=quiet())
    assert [row["train/kl"] for row in metrics(second) if "train/kl" in row] == [begun, later]


def test_merge_refuses_a_model_without_an_adapter(tmp_path: Path) -> None:
    train(small(tmp_path / "runs", train__steps=1), console=quiet())
    (run,) = (tmp_path / "runs").iterdir()
    with pytest.raises(UserError, match="turnwise export"):
        merge(str(run), tmp_path / "merged")


def test_run_folder_is_independent_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed, moved, evaluated, exported and merged with the cache gone, and trained further by another run."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("TURNWISE_CACHE", str(cache))
    short = {"model__warmup_steps": 2, "eval__every": 0, "eval__episodes": 1}
    train(settings(tmp_path / "whole", **short), console=quiet())
    rewind(tmp_path / "whole" / "run", tmp_path / "cut", step=2)
    shutil.rmtree(cache / "models")
    train(settings(tmp_path / "cut", **short), resume=True, console=quiet())
    ours, theirs = (
        load_file(tmp_path / each / "run" / LAST / "adapter_model.safetensors") for each in ("whole", "cut")
    )
    assert all(ours[name].equal(theirs[name]) for name in ours)

    moved = tmp_path / "elsewhere"
    (tmp_path / "cut" / "run").rename(moved)
    train(settings(tmp_path / "cut", **short, seed=1, train__steps=1), console=quiet())  # another where this one was
    shutil.rmtree(cache / "models")
    assert base_model_of(moved / LAST) == str(moved / "base")
    results = evaluate_into_folder(plan_evaluation([str(moved)]), tmp_path / "eval", console=quiet())
    assert results.evaluations[0].episodes > 0
    export(str(moved), tmp_path / "exported")
    merge(str(moved), tmp_path / "merged")

    train(small(tmp_path / "further", model__name=str(moved / LAST), train__steps=1, **short), console=quiet())
    shutil.rmtree(moved)
    further = tmp_path / "further" / "run"
    assert base_model_of(further / "checkpoints" / "step_000001") == str(further / "base")
    merge(str(further), tmp_path / "merged further")
    assert not (cache / "models").exists()


def test_run_from_another_runs_adapter_resumes_without_it(tmp_path: Path, run: Path) -> None:
    first = tmp_path / "first" / "run"
    shutil.copytree(run, first)
    further = {"model__name": str(first / LAST), "eval__every": 0, "eval__episodes": 1}
    train(small(tmp_path / "whole", **further), console=quiet())
    rewind(tmp_path / "whole" / "run", tmp_path / "cut", step=2)
    first.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=rf"^model.name: {first / LAST} does not exist. Check the path"):
        train(small(tmp_path / "new", **further), console=quiet())
    train(small(tmp_path / "cut", **further), resume=True, console=quiet())
    whole, cut = tmp_path / "whole" / "run", tmp_path / "cut" / "run"
    for file in ("adapter_model.safetensors", "learner.safetensors"):
        ours, theirs = (load_file(run / LAST / file) for run in (whole, cut))
        assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)
    assert base_model_of(cut / LAST) == str(cut / "base")
