import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from ranks_for_tests import (
    Ranks,
    Trained,
    collect_errors,
    config_of,
    count_features,
    load_and_train,
    load_and_train_with,
    local_learner,
    model_of,
    result_of,
    save_untrained,
    steps_of,
    train_and_save,
    train_and_save_with,
    train_steps,
)
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.models.sharding import Sharding

SOAK = "TURNWISE_SOAK" in os.environ
STEPS = 3 if SOAK else 2
"""The critic's warm-up ends after the first step; the optimizer's moments matter from the second on."""


class SavedState(NamedTuple):
    folder: Path
    saved: Trained
    """After the first step."""
    continued: Trained


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    found = Ranks(tmp_path_factory.mktemp("stores"))
    yield found
    found.stop()


@pytest.fixture(scope="module")
def save_with_two(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., SavedState]:
    """Train with two ranks and save after the first step, once for all tests of a case."""

    @cache
    def save(case: str, continued_steps: int) -> SavedState:
        folder = tmp_path_factory.mktemp("saved")
        saved, continued = ranks.run(2, train_and_save, case, folder, continued_steps)[0]
        return SavedState(folder, saved, continued)

    return save


@cache
def trained_locally(case: str, steps: int = STEPS) -> Trained:
    config = config_of(case)
    learner = local_learner(config)
    return result_of(learner, steps_of(learner, config, 0, steps))


def assert_close(ours: Trained, theirs: Trained, *, outliers: float = 0.0) -> None:
    """Compare to the tolerance of a few float32 steps whose sums have another order.

    `outliers`: share of a tensor's elements that may differ by more, as Adam divides gradients near 0 by their size.
    """
    for mine, other in zip(ours[0], theirs[0], strict=True):
        assert mine == pytest.approx(other, rel=1e-3, abs=1e-4)
    assert ours[1] == theirs[1]
    for tensors, expected in zip(ours[2:], theirs[2:], strict=True):
        assert tensors.keys() == expected.keys()
        for name, tensor in expected.items():
            differs = ~torch.isclose(tensors[name], tensor, atol=2e-5, rtol=1e-3)
            if differs.sum() <= outliers * tensor.numel():
                continue
            torch.testing.assert_close(
                tensors[name], tensor, atol=2e-5, rtol=1e-3, msg=lambda text, name=name: f"{name}: {text}"
            )


CASES_WITH_IMAGES = ("frozen vision", "vision", "vision lora")
COUNTS_AND_CASES = [
    (count, case) for count in (1, 2, 4) for case in ("head critic", "trunk critic", "lora", *CASES_WITH_IMAGES)
]
if not SOAK:  # tests of saved states train a trunk critic
    COUNTS_AND_CASES = [(2, "head critic"), (2, "lora"), (1, "vision"), *((2, case) for case in CASES_WITH_IMAGES)]


@pytest.mark.parametrize(("count", "case"), COUNTS_AND_CASES)
def test_sharded_learner_trains_like_the_local_one(ranks: Ranks, case: str, count: int) -> None:
    results = ranks.run(count, train_steps, case, STEPS)
    outliers = 1e-3 if case in CASES_WITH_IMAGES else 0.0  # most tokens of its large vocabulary hardly have a gradient
    assert_close(results[0], trained_locally(case), outliers=outliers)
    assert all(each[:2] == results[0][:2] for each in results), "all ranks return the same numbers"


@pytest.mark.parametrize("case", ["frozen vision", "vision lora"])
def test_ranks_keep_the_features_of_a_frozen_vision_tower(ranks: Ranks, case: str) -> None:
    computed = ranks.run(2, count_features, case)
    first, second, loaded = (sum(step) for step in zip(*computed, strict=True))
    assert first and loaded
    assert bool(second) == (case != "frozen vision")


def test_offloaded_learner_trains_like_the_local_one(ranks: Ranks) -> None:
    assert_close(ranks.run(4, train_steps, "offload", 2)[0], trained_locally("plain", 2))


@pytest.mark.parametrize(("case", "continued_steps"), [("trunk critic", 1), ("bfloat16", 0)])
def test_sharded_state_continues_with_other_numbers_of_ranks(
    ranks: Ranks, save_with_two: Callable[..., SavedState], case: str, continued_steps: int
) -> None:
    folder, saved, expected = save_with_two(case, continued_steps)
    for count in (1, 3) if SOAK else (1,):
        loaded, continued = ranks.run(count, load_and_train, case, folder, continued_steps)[0]
        for ours, theirs in zip(loaded[2:], saved[2:], strict=True):
            assert ours.keys() == theirs.keys()
            assert all(torch.equal(ours[name], each) for name, each in theirs.items())
        assert_close(continued, expected)


def test_sharded_learner_that_saved_trains_like_the_local_one(save_with_two: Callable[..., SavedState]) -> None:
    _, saved, continued = save_with_two("trunk critic", 1)
    assert_close(saved, trained_locally("trunk critic", 1))
    metrics, *theirs = trained_locally("trunk critic", 2)
    assert_close(continued, (metrics[1:], *theirs))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
@pytest.mark.parametrize(("case", "continued_steps"), [("trunk critic", 1), ("bfloat16", 0)][: 2 if SOAK else 1])
def test_state_moves_between_local_and_sharded_learners(
    ranks: Ranks, save_with_two: Callable[..., SavedState], tmp_path: Path, case: str, continued_steps: int
) -> None:
    """A single rank of a cluster has a local learner. The master weights of a bfloat16 critic are not in the shards."""
    by_ranks, *by_two = save_with_two(case, continued_steps)
    local, other = (local_learner(config_of(case)) for _ in range(2))
    moves = [
        (by_two, load_and_train_with(local, 0, case, by_ranks, continued_steps)),
        (
            train_and_save_with(other, case, tmp_path, continued_steps),
            ranks.run(2, load_and_train, case, tmp_path, continued_steps)[0],
        ),
    ]
    for (saved, expected), (loaded, continued) in moves:
        assert all(torch.equal(loaded[2][name], each) for name, each in saved[2].items())
        names = [name for name in saved[3] if name.startswith("optimizer.") or case != "bfloat16"]
        assert names and all(torch.equal(loaded[3][name], saved[3][name]) for name in names)
        if continued_steps:
            assert_close(continued, expected)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16
def test_sharded_bfloat16_keeps_master_weights(save_with_two: Callable[..., SavedState]) -> None:
    ours, theirs = save_with_two("bfloat16", 0).saved, trained_locally("bfloat16", 1)
    assert ours[0][0]["grad_norm"] == pytest.approx(theirs[0][0]["grad_norm"], rel=0.05)
    assert {each.dtype for each in ours[2].values()} == {torch.bfloat16}
    masters = {name: each for name, each in ours[3].items() if name.startswith("optimizer.master.")}
    assert len(masters) == len(ours[2]) and {each.dtype for each in masters.values()} == {torch.float32}
    for name, each in masters.items():
        torch.testing.assert_close(each, theirs[3][name], atol=2e-3, rtol=0)
    assert any(not torch.equal(each, each.bfloat16().float()) for each in masters.values())


def test_sharded_model_is_saved_as_a_plain_folder(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    *_, weights, _ = ranks.run(2, save_untrained, "plain", folder)[0]
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert type(loaded) is type(model_of(config_of("plain")))
    assert weights.keys() == dict(loaded.named_parameters()).keys()
    assert all(torch.equal(weights[name], each) for name, each in loaded.named_parameters())
    plain = tmp_path / "plain"
    plain.mkdir()
    local_learner(config_of("plain")).save_model(plain, tiny_tokenizer())
    assert [path.name for path in sorted(folder.iterdir())] == [path.name for path in sorted(plain.iterdir())]
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in plain.iterdir())


def test_sharded_lora_is_saved_as_an_adapter(ranks: Ranks, tmp_path: Path) -> None:
    folder, plain = tmp_path / "model", tmp_path / "plain"
    folder.mkdir()
    plain.mkdir()
    ranks.run(2, save_untrained, "lora", folder)
    local_learner(config_of("lora")).save_model(plain, tiny_tokenizer())
    ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (folder, plain))
    assert theirs and ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], each) for name, each in theirs.items())
    assert {path.name for path in folder.iterdir()} == {path.name for path in plain.iterdir()}


def test_sharded_errors_are_raised_on_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    first, second = ranks.run(2, collect_errors, "plain", tmp_path)
    assert first == second
    assert [each.split(":")[0] for each in first] == [
        "NotADirectoryError",
        "ValueError",
        "DivergedError",
        "DivergedError",
    ]


def test_single_rank_exchanges_nothing() -> None:
    """Without a process group, every collective would fail."""
    mesh: Any = SimpleNamespace(size=lambda: 1, get_rank=lambda: 0)
    sharding, tensor = Sharding(mesh=mesh, device=torch.device("cpu")), torch.arange(6.0).reshape(2, 3)
    assert sharding.scatter(tensor.T).equal(tensor.T)
    assert sharding.scatter(tensor.T).is_contiguous()
    assert sharding.gather(tensor).equal(tensor)
    total = sharding.sum(tensor)
    assert total.dtype == torch.float64 and total.equal(tensor.double())
