import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes_for_tests import trajectories, trajectory_of, turn_of
from turnwise.core.samples import Batch, Sample, TrainSample
from turnwise.core.trajectory import Trajectory
from turnwise.data.packing import micro_batches, pack, pack_train, unpack
from turnwise.data.samples import build_samples, scatter_sampled


def rows_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Ids and positions of each row, with those of the row that it continues before its own."""
    ids = [part.tolist() for part in batch.ids.split(list(batch.lengths))]
    positions = [part.tolist() for part in batch.positions.split(list(batch.lengths))]
    return [
        (ids[parent] + ids[row], positions[parent] + positions[row]) if parent >= 0 else (ids[row], positions[row])
        for row, parent in enumerate(batch.parents)
    ]


@settings(max_examples=50)
@given(trajectories())
def test_pack_rows_are_the_samples(given: list[Trajectory]) -> None:
    samples = build_samples(given)
    batch = pack(samples)
    rows = rows_of(batch)[-len(samples) :]
    assert sorted(batch.order) == list(range(len(samples)))
    for index, (ids, positions), end in zip(batch.order, rows, batch.ends.tolist(), strict=True):
        assert ids == samples[index].ids.tolist()
        assert positions == list(range(len(samples[index])))
        assert int(batch.ids[end]) == ids[-1]
        assert int(batch.positions[end]) == len(ids) - 1
    assert len(batch.ids) == sum(batch.lengths) <= sum(map(len, samples))


@settings(max_examples=50)
@given(trajectories())
def test_pack_sources_are_the_tokens_before_the_targets(given: list[Trajectory]) -> None:
    samples = build_samples(given)
    batch = pack(samples)
    expected = [sample.ids[sample.mask] for sample in samples]
    assert all(map(torch.equal, unpack(batch, batch.targets), expected))
    before = [sample.ids[sample.mask.nonzero().squeeze(1) - 1] for sample in samples]
    assert all(map(torch.equal, unpack(batch, batch.ids[batch.sources]), before))
    places = [sample.mask.nonzero().squeeze(1) - 1 for sample in samples]
    assert all(map(torch.equal, unpack(batch, batch.positions[batch.sources]), places))
    temperatures = [sample.temperatures[sample.mask] for sample in samples]
    assert all(map(torch.equal, unpack(batch, batch.temperatures), temperatures))


def train_sample(sample: Sample, *, with_critic: bool) -> TrainSample:
    def column() -> torch.Tensor:
        return scatter_sampled([sample], torch.randn(int(sample.mask.sum())))[0]

    return TrainSample(
        sample=sample,
        old_logprobs=column(),
        ref_logprobs=column() if with_critic else None,
        old_values=column() if with_critic else None,
        advantages=column(),
        returns=column() if with_critic else None,
        weights=column(),
        value_weights=column() if with_critic else None,
    )


@settings(max_examples=50)
@given(trajectories(), st.booleans())
def test_pack_train_keeps_values_with_their_tokens(given: list[Trajectory], with_critic: bool) -> None:
    samples = [train_sample(sample, with_critic=with_critic) for sample in build_samples(given)]
    packed = pack_train(samples)
    names = ("old_logprobs", "ref_logprobs", "old_values", "advantages", "returns", "weights")
    for name in names:
        column = getattr(packed, name)
        if column is None:
            assert not with_critic and name in ("ref_logprobs", "old_values", "returns")
            continue
        for each, part in zip(samples, unpack(packed.batch, column), strict=True):
            assert torch.equal(scatter_sampled([each.sample], part)[0], getattr(each, name))
    for each, logprobs, turn_ids in zip(
        samples,
        unpack(packed.batch, packed.sampler_logprobs),
        unpack(packed.batch, packed.turn_ids),
        strict=True,
    ):
        assert torch.equal(logprobs, each.sample.sampler_logprobs[each.sample.mask])
        assert torch.equal(turn_ids, each.sample.turn_ids[each.sample.mask])


@settings(max_examples=50)
@given(trajectories(), st.integers(1, 80))
def test_micro_batches_contain_each_sample_once_within_budget(given: list[Trajectory], budget: int) -> None:
    samples = build_samples(given)
    parts = micro_batches(samples, budget)
    assert sorted(index for part in parts for index in part) == list(range(len(samples)))
    for part in parts:
        assert len(part) == 1 or len(pack([samples[index] for index in part]).ids) <= budget


def test_micro_batches_is_one_if_all_samples_fit() -> None:
    samples = build_samples([trajectory_of([turn_of([3] * 9, [4], extends=False)]) for _ in range(6)])
    assert len(micro_batches(samples, 10_000)) == 1
    assert len(micro_batches(samples, 1)) == 6
    shared = 8 + 6 * 2  # a prompt of 9: 8 of it once, its last token and the sampled one for each
    assert len(micro_batches(samples, shared)) == 1
    assert len(micro_batches(samples, shared - 1)) == 2
    assert len(pack(samples).ids) == shared


def test_micro_batches_fill_the_last_round_of_the_ranks() -> None:
    lengths = [40, 40, 40, 40, 10]
    samples = build_samples(
        [trajectory_of([turn_of([index] * 9, [7] * (length - 9))]) for index, length in enumerate(lengths)]
    )
    assert [len(part) for part in micro_batches(samples, 80)] == [2, 2, 1]
    parts = micro_batches(samples, 80, ranks=2)
    assert sorted(index for part in parts for index in part) == list(range(5))
    tokens = sorted(sum(lengths[index] for index in part) for part in parts)
    assert tokens == [40, 40, 40, 50], "four instead of three, since two ranks run four passes either way"
    assert len(micro_batches(samples, 80, ranks=3)) == 3
    assert len(micro_batches(samples, 80, ranks=8)) == 5
    assert micro_batches([], 80, ranks=2) == []


def test_pack_accepts_a_segment_without_sampled_tokens() -> None:
    prompt = [3] * 9 + [5]
    samples = build_samples(
        [
            trajectory_of([turn_of(prompt, [6, 7], extends=False)]),
            trajectory_of([turn_of(prompt, [], extends=False)]),
            trajectory_of([turn_of(prompt, [8], extends=False)]),
        ]
    )
    batch = pack(samples)
    assert [part.tolist() for part in unpack(batch, batch.targets)] == [[6, 7], [], [8]]
    assert [ids for ids, _ in rows_of(batch)[-3:]] == [samples[index].ids.tolist() for index in batch.order]


def test_pack_rejects_a_sampled_token_without_context() -> None:
    with pytest.raises(ValueError, match="no token before it"):
        pack(build_samples([trajectory_of([turn_of([], [4, 5], extends=False)])]))
