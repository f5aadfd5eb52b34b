"""Losses, advantages and filters of the user, FILE.py:name: classes with settings of their own, and functions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from losses_for_tests import inputs
from trajectories_for_tests import row_inputs

import turnwise as tw
from turnwise.algos.advantage_types import compute_advantages
from turnwise.algos.filters import Filter, select_groups
from turnwise.algos.loss_types import compute_loss
from turnwise.algos.settings import AlgoConfig
from turnwise.core.errors import UserError
from turnwise.settings.choice import LOAD_CODE

OWN = '''
import turnwise as tw


class Scaled(tw.Loss):
    """-scale A log pi."""

    scale: float = 2.0
    """Factor of the loss."""

    def compute(self, inputs):
        return -self.scale * inputs.advantages * inputs.policy_logprobs


class Offset(tw.Advantage):
    """The reward minus a constant."""

    offset: float = 1.0
    """The constant."""

    def compute(self, inputs):
        return inputs.token_rewards - self.offset


class Above(tw.Filter):
    """Groups above a bound."""

    bound: float = 1.0
    """The bound."""

    def keeps(self, scores):
        return scores > self.bound


def plain_loss(inputs):
    return -inputs.advantages * inputs.policy_logprobs


def plain_advantage(inputs):
    return inputs.token_rewards


def plain_filter(scores):
    return scores > 1


def two_arguments(inputs, params):
    return inputs


def fails(inputs):
    return 1 / 0


def wrong(inputs):
    return "text"


def nothing(scores):
    pass


class Other:
    pass
'''
FIELDS = ("loss", "advantage", "filter")
LOSS_INPUTS = inputs([0.1, 0.2], [1.0, -3.0])
ROWS = row_inputs([4.0, 6.0], [0, 0])
SCORES = torch.tensor([0.5, 1.5, 2.5])


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Path of a file with the user's code."""
    (tmp_path / "own.py").write_text(OWN)
    return str(tmp_path / "own.py")


def read(field: str, value: Any) -> Any:
    """The chosen alternative, with the user's code loaded as for a run."""
    return getattr(AlgoConfig.model_validate({field: value}, context={LOAD_CODE: True}), field)


def compute(field: str, chosen: Any) -> list[Any]:
    if field == "loss":
        return compute_loss(chosen, LOSS_INPUTS).token_loss.tolist()
    if field == "advantage":
        return compute_advantages(chosen, ROWS).advantages[:, 0].tolist()
    assert isinstance(chosen, Filter)
    return select_groups(chosen, SCORES).tolist()


@pytest.mark.parametrize(
    ("field", "name", "setting", "default", "changed"),
    [
        ("loss", "Scaled", {"scale": 10.0}, [2 * 0.9, -6 * 0.8], [10 * 0.9, -30 * 0.8]),
        ("advantage", "Offset", {"offset": 5.0}, [3.0, 5.0], [-1.0, 1.0]),
        ("filter", "Above", {"bound": 2.0}, [False, True, True], [False, False, True]),
    ],
)
def test_class_of_the_user_has_settings_of_its_own(
    own: str, field: str, name: str, setting: dict[str, float], default: list[Any], changed: list[Any]
) -> None:
    kind = f"{own}:{name}"
    assert compute(field, read(field, kind)) == pytest.approx(default)
    chosen = read(field, {"kind": kind, **setting})
    assert compute(field, chosen) == pytest.approx(changed)
    dumped = chosen.model_dump()
    assert dumped.items() >= {"kind": kind, **setting}.items()
    assert read(field, dumped) == chosen
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        read(field, {"kind": kind, "no_such_setting": 1.0})


@pytest.mark.parametrize(
    ("field", "expected"),
    [("loss", [0.9, -3 * 0.8]), ("advantage", [4.0, 6.0]), ("filter", [False, True, True])],
)
def test_function_of_the_user_takes_the_inputs(own: str, field: str, expected: list[Any]) -> None:
    chosen = read(field, f"{own}:plain_{field}")
    assert compute(field, chosen) == pytest.approx(expected)
    assert chosen.kind == f"{own}:plain_{field}"


def test_filter_function_has_the_settings_of_every_filter(own: str) -> None:
    chosen = read("filter", {"kind": f"{own}:plain_filter", "by": "reward", "scale": "root"})
    assert chosen.by == "reward" and chosen.rate_scale(0.25) == 0.5


@pytest.mark.parametrize("field", FIELDS)
def test_function_with_two_arguments_is_refused(own: str, field: str) -> None:
    taken = "scores" if field == "filter" else "inputs"
    with pytest.raises(UserError, match=rf"algo\.{field} two_arguments must take \({taken}\).*write a class"):
        read(field, f"{own}:two_arguments")


@pytest.mark.parametrize("field", FIELDS)
def test_exception_of_the_users_code_names_file_and_line(own: str, field: str) -> None:
    line = OWN.splitlines().index("    return 1 / 0") + 1
    with pytest.raises(UserError, match=rf"algo\.{field} fails failed: .*ZeroDivisionError") as refused:
        compute(field, read(field, f"{own}:fails"))
    assert "own.py" in str(refused.value) and str(line) in str(refused.value)


@pytest.mark.parametrize("field", ["loss", "advantage"])
def test_result_of_a_wrong_type_is_refused(own: str, field: str) -> None:
    with pytest.raises(UserError, match=rf"algo\.{field} wrong returned the text"):
        compute(field, read(field, f"{own}:wrong"))


@pytest.mark.parametrize("field", FIELDS)
def test_class_without_its_method_is_refused(field: str, tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text(f"import turnwise as tw\n\nclass Empty(tw.{field.title()}):\n    pass\n")
    method = "keeps" if field == "filter" else "compute"
    with pytest.raises(UserError, match=rf'^algo\.{field} ".*:Empty" has no {method}: define it\.$'):
        read(field, f"{file}:Empty")


@pytest.mark.parametrize(("base", "method"), [("SelectingLoss", "select"), ("PairLoss", "weigh")])
def test_incomplete_loss_is_refused_when_chosen_and_when_made(base: str, method: str, tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(f"import turnwise as tw\n\nclass Some(tw.{base}):\n    def compute(self, inputs): ...\n")
    with pytest.raises(UserError, match=f"has no {method}: define it"):
        read("loss", f"{file}:Some")
    derived = type("Some", (getattr(tw, base),), {"compute": lambda self, inputs: inputs.advantages})
    with pytest.raises(TypeError, match=f"abstract method '?{method}"):
        derived()


@pytest.mark.parametrize("field", FIELDS)
def test_class_must_be_derived_from_the_base(own: str, field: str) -> None:
    with pytest.raises(UserError, match=rf"not derived from tw\.{field.title()}"):
        read(field, f"{own}:Other")


@pytest.mark.parametrize("field", FIELDS)
def test_file_is_not_read_until_code_is_loaded(field: str) -> None:
    """A configuration can be shown where the user's file is missing."""
    value = {"kind": "missing.py:Own", "anything": 3}
    config = AlgoConfig.model_validate({field: value})
    assert getattr(config, field).model_dump().items() >= value.items()
    with pytest.raises(UserError, match=r"missing\.py"):
        read(field, value)


@pytest.mark.parametrize("field", FIELDS)
def test_setting_of_another_alternative_is_refused(field: str) -> None:
    given = {"loss": ("sapo", "clip_low"), "advantage": ("grpo", "gamma"), "filter": ("quarter", "value")}
    kind, setting = given[field]
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        read(field, {"kind": kind, setting: 0.5})


def test_filter_that_returns_nothing_is_named(own: str) -> None:
    with pytest.raises(UserError, match="nothing returned None: return one bool per group"):
        compute("filter", read("filter", f"{own}:nothing"))
