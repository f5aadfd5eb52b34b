import torch
from hypothesis import given, settings

from episodes_for_tests import trajectories, trajectory_of, turn_of
from turnwise.core.trajectory import Trajectory
from turnwise.data.samples import TokenTable, build_samples, scatter_sampled


def table_of(given: list[Trajectory]) -> TokenTable:
    return TokenTable(build_samples(given), len(given))


def test_table_row_spans_segments_without_observations() -> None:
    two_segments = trajectory_of(
        [
            turn_of([1, 1], [5, 6], extends=False, reward=0.25),
            turn_of([1], [7], reward=0.0),
            turn_of([2], [8, 9], extends=False, reward=-1.0),
        ]
    )
    short = trajectory_of([turn_of([1], [4], extends=False, reward=2.0)])
    table = table_of([short, two_segments])
    assert table.mask.tolist() == [[True, False, False, False, False], [True] * 5]
    ids = table.to_matrix([sample.ids[sample.mask] for sample in table.samples], fill=-7)
    assert ids.tolist() == [[4, -7, -7, -7, -7], [5, 6, 7, 8, 9]]


@settings(max_examples=50)
@given(trajectories())
def test_table_scatter_is_the_inverse(given: list[Trajectory]) -> None:
    table = table_of(given)
    columns = [torch.randn(int(sample.mask.sum())) for sample in table.samples]
    back = table.scatter(table.to_matrix(columns))
    for sample, column, spread in zip(table.samples, columns, back, strict=True):
        assert len(spread) == len(sample)
        assert torch.equal(spread[sample.mask], column)
        assert (spread[~sample.mask] == 0).all()
        assert torch.equal(spread, scatter_sampled([sample], column)[0])


@settings(max_examples=50)
@given(trajectories())
def test_table_has_one_entry_per_sampled_token(given: list[Trajectory]) -> None:
    table = table_of(given)
    assert table.mask.sum(dim=1).tolist() == [trajectory.num_sampled for trajectory in given]
