"""Every setting of every alternative: documented, and read."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from choices_for_tests import choose
from losses_for_tests import inputs, run
from trajectories_for_tests import SETTINGS, random_inputs

from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.estimators import ESTIMATORS
from turnwise.algos.filters import FILTERS, Filter, GroupFilter
from turnwise.algos.loss_types import Loss
from turnwise.algos.losses import AGGREGATIONS, LOSSES
from turnwise.algos.normalisation import NORMALISATIONS
from turnwise.algos.off_policy import CORRECTIONS, REJECTIONS, Correction
from turnwise.algos.settings import AlgoConfig
from turnwise.settings.choice import Choice

TABLES: dict[str, Mapping[str, type[Choice]]] = {
    "advantage": ADVANTAGES,
    "loss": LOSSES,
    "aggregation": AGGREGATIONS,
    "correction": CORRECTIONS,
    "rejection": REJECTIONS,
    "normalise": NORMALISATIONS,
    "filter": FILTERS,
    "estimator": ESTIMATORS,
}
"""By the field of AlgoConfig."""
CLASSES = [pytest.param(kind, id=f"{field}-{name}") for field, table in TABLES.items() for name, kind in table.items()]

SEGMENTS = [0, 0, 0, 1, 1, 2, 2]
TURNS = [0, 0, 1, 1, 2, 0, 1]
ROWS = random_inputs(seed=3, rows=9, columns=12, density=0.8, coarse=False)
TOKENS = inputs(
    log_ratios=[1.5, -1.5, 0.1, 1.5, 0.9, -1.5, 0.2],
    advantages=[1.0, -1.0, 2.0, -1.0, -1.0, -1.0, 1.0],
    segments=SEGMENTS,
    turns=TURNS,
)
SAMPLED = inputs(
    log_ratios=[0.9, -2.5, 0.1, 0.3, 0.9],
    advantages=[1.0, -1.0, 1.0, -1.0, 1.0],
    segments=[0, 0, 0, 1, 1],
    turns=[0, 0, 1, 1, 2],
    log_rhos=[0.1, 0.5, -0.3, 0.05, -0.9],
    old=math.log(0.4),
)
SCORES = [[3.0, 0.0, 5.0, 1.0, 1.5], [0.0, 0.0, 0.0], [5.0, 4.0, 3.0, 2.0], [0.7, 0.2]]
RETURNS = (torch.tensor([1.0, 3.0, 10.0, 20.0]), torch.tensor([4, 4, 5, 6]), torch.tensor([0, 0, 1, 1]))


def filtered(chosen: GroupFilter) -> list[torch.Tensor]:
    """What training takes from a filter: the groups, their score, the factor of the rates and further rollouts."""
    numbers = torch.tensor([chosen.rate_scale(0.25), float(chosen.refill_rounds)])
    if not isinstance(chosen, Filter):
        return [numbers]
    scores = chosen.score.reduce(torch.tensor([1.0, 5.0, 2.0]), torch.tensor([0, 0, 1]), 2)
    return [numbers, scores, *(chosen.keeps(torch.tensor(each)).double() for each in SCORES)]


def corrected(chosen: Correction) -> list[torch.Tensor]:
    return [chosen.compute(SAMPLED).weights * chosen.scale(SAMPLED, torch.ones(5, dtype=torch.bool))]


def token_loss(chosen: Loss) -> list[torch.Tensor]:
    return [run(chosen, TOKENS)[0].token_loss]


COMPUTE: dict[str, Callable[[Any], list[torch.Tensor]]] = {
    "advantage": lambda chosen: [chosen.compute(ROWS).advantages],
    "loss": token_loss,
    "aggregation": lambda chosen: [chosen.weights(torch.tensor([0, 0, 1]))],
    "correction": corrected,
    "rejection": lambda chosen: [chosen.rejected(SAMPLED).double()],
    "normalise": lambda chosen: [chosen.normalise(*RETURNS)],
    "filter": filtered,
}
"""What an alternative computes, on inputs where each of its settings matters."""
BASE: dict[str, dict[str, Any]] = {
    "advantage": SETTINGS,
    "loss": {"level": "turn", "share": 0.3, "low": -0.6, "high": 1.0},
    "correction": {"level": "turn", "bounds": (0.6, 2.0)},
    "rejection": {"bounds": (0.5, 1.5)},
    "filter": {"count": 2, "value": 0.5},
}
OTHERS: dict[str, dict[str, Any]] = {
    "advantage": {
        "gamma": 0.45,
        "lam": 0.4,
        "gamma_turn": 0.35,
        "lam_turn": 0.3,
        "whiten": True,
        "by_std": False,
    },
    "loss": {
        "clip_low": 0.1,
        "clip_high": 0.1,
        "dual_clip": 2.0,
        "level": "sequence",
        "share": 0.15,
        "beta": 2.0,
        "sft_coef": 0.5,
    },
    "aggregation": {"constant_length": 16},
    "correction": {
        "level": "sequence",
        "bounds": (0.8, 1.1),
        "normalise": True,
    },
    "rejection": {"statistic": "k2", "bounds": (0.8, 1.1), "pool": "sum"},
    "normalise": {"over": "batch"},
    "filter": {
        "by": "reward",
        "scale": "root",
        "value": 0.9,
        "largest": False,
        "keep_zero": False,
        "count": 1,
        "refill": 3,
    },
}
"""Another value of each setting."""
TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    ("absolute", "keep_zero"): {"value": 0.0},
}
"""What else has to be set for a setting to matter."""


SETTINGS_OF_ALL = [
    (field, kind, setting)
    for field in COMPUTE
    for kind, chosen in TABLES[field].items()
    for setting in chosen.model_fields
]


@pytest.mark.parametrize(("field", "kind", "setting"), SETTINGS_OF_ALL)
def test_every_setting_changes_the_result(field: str, kind: str, setting: str) -> None:
    assert setting in OTHERS[field], f"add another value of {setting} to OTHERS"
    base = BASE.get(field, {}) | TOGETHER.get((kind, setting), {})
    changed = base | {setting: OTHERS[field][setting]}
    before, after = (COMPUTE[field](choose(TABLES[field], kind, **settings)) for settings in (base, changed))
    # The last bits of exp() depend on where in memory its input lies, on some processors.
    same = [torch.allclose(one, other, rtol=1e-9, atol=0) for one, other in zip(before, after, strict=True)]
    assert not all(same), f"{kind}.{setting} has no effect"


@pytest.mark.parametrize("field", TABLES)
def test_default_is_the_first_of_the_table(field: str) -> None:
    name, first = next(iter(TABLES[field].items()))
    default = getattr(AlgoConfig(), field)
    assert type(default) is first and default == first() and default.kind == name


@pytest.mark.parametrize("kind", CLASSES)
def test_every_alternative_and_every_setting_is_documented(kind: type[Choice]) -> None:
    assert "__doc__" in vars(kind) and kind.__doc__, "a docstring of its own, not that of the base class"
    for name, setting in kind.model_fields.items():
        assert setting.description, f"{name} has no description"


def test_tables_list_alternatives_by_their_name() -> None:
    for table in TABLES.values():
        assert all(kind.name == name for name, kind in table.items())
