from collections import Counter

import torch
from hypothesis import given, settings

from episodes_for_tests import trajectories, trajectory_of, turn_of
from turnwise.core.trajectory import Trajectory
from turnwise.data.samples import build_samples


def test_samples_of_three_turns_in_two_segments() -> None:
    trajectory = trajectory_of(
        [
            turn_of([10, 11], [20, 21], extends=False, logprobs=[-0.5, -1.5], temperature=0.7),
            turn_of([12], [22], logprobs=[-2.5], temperature=0.7),
            turn_of([13, 14, 15], [23, 24], extends=False, logprobs=[-3.5, -4.5], temperature=1.3),
        ]
    )
    first, second = build_samples([trajectory_of([turn_of([9], [9], extends=False)]), trajectory])[1:]
    assert (first.trajectory, second.trajectory) == (1, 1)
    assert first.ids.tolist() == [10, 11, 20, 21, 12, 22]
    assert first.mask.tolist() == [False, False, True, True, False, True]
    assert first.turn_ids.tolist() == [-1, -1, 0, 0, -1, 1]
    assert first.sampler_logprobs.tolist() == [0.0, 0.0, -0.5, -1.5, 0.0, -2.5]
    torch.testing.assert_close(first.temperatures, torch.tensor([1.0, 1.0, 0.7, 0.7, 1.0, 0.7]))
    assert second.ids.tolist() == [13, 14, 15, 23, 24]
    assert second.turn_ids.tolist() == [-1, -1, -1, 2, 2]


def test_image_tokens_are_context() -> None:
    (sample,) = build_samples([trajectory_of([turn_of([10, -5, -6], [20], extends=False), turn_of([-9, 11], [21])])])
    assert sample.ids.tolist() == [10, -5, -6, 20, -9, 11, 21]
    assert sample.mask.tolist() == [False, False, False, True, False, False, True]


@settings(max_examples=50)
@given(trajectories())
def test_each_sampled_token_is_in_exactly_one_sample(given: list[Trajectory]) -> None:
    expected: Counter = Counter()
    for index, trajectory in enumerate(given):
        for number, turn in enumerate(trajectory.turns):
            for place, (token, logprob) in enumerate(zip(turn.action_ids, turn.action_logprobs, strict=True)):
                expected[index, number, place, token, logprob, turn.temperature] += 1
    found: Counter = Counter()
    for sample in build_samples(given):
        seen: Counter = Counter()
        for at in sample.mask.nonzero().squeeze(1).tolist():
            number = int(sample.turn_ids[at])
            values = (int(sample.ids[at]), float(sample.sampler_logprobs[at]), float(sample.temperatures[at]))
            found[sample.trajectory, number, seen[number], *values] += 1
            seen[number] += 1
    assert found == expected


@settings(max_examples=50)
@given(trajectories())
def test_sample_ids_are_the_concatenated_turns(given: list[Trajectory]) -> None:
    samples = iter(build_samples(given))
    for trajectory in given:
        for segment in trajectory.segments():
            sample = next(samples)
            assert sample.ids.tolist() == [i for turn in segment.turns for i in (*turn.context_ids, *turn.action_ids)]
            mask = [
                m for turn in segment.turns for m in (*[False] * len(turn.context_ids), *[True] * len(turn.action_ids))
            ]
            assert sample.mask.tolist() == mask
            lengths = {
                len(each) for each in (sample.mask, sample.turn_ids, sample.sampler_logprobs, sample.temperatures)
            }
            assert lengths == {len(sample)}
            outside = ~sample.mask
            assert (sample.turn_ids[outside] == -1).all()
            assert (sample.sampler_logprobs[outside] == 0).all()
            assert (sample.temperatures[outside] == 1).all()
    assert next(samples, None) is None
