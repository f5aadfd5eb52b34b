"""Cost of a run: the price of its GPUs, or of its machine, for the time of its steps and evaluations; its energy."""

from collections.abc import Iterable

from turnwise.config.schema import Config
from turnwise.models.loading.load import resolve_device
from turnwise.record.rows import EvaluationRecord, Record, SetUpRecord
from turnwise.record.steps import ENERGY, StepRecord, finite_number

HOUR_S = 3600.0


def count_devices(config: Config) -> int:
    """Return the number of GPUs that are paid for; 1 for a machine without any."""
    cluster = config.cluster
    if cluster.address is None and resolve_device(config.model.device).type == "cpu":
        return 1
    engines, learners = cluster.engines * config.engine.gpus, max(1, cluster.learners)
    return max(engines, learners) if cluster.placement == "colocated" else engines + learners


def price_per_s(config: Config) -> float | None:
    """Return the price of a second of the run; None without record.price."""
    price = config.record.price
    return None if price is None else price * count_devices(config) / HOUR_S


def recorded_s(records: Iterable[Record]) -> float:
    """Return the seconds of warm-up, steps and evaluations in these records."""
    return sum(map(_seconds, records))


def recorded_wh(records: Iterable[Record]) -> float | None:
    """Return the energy of the steps in these records; None if a step lacks it."""
    steps = [record.other.get(ENERGY) for record in records if isinstance(record, StepRecord)]
    known = [number for number in map(finite_number, steps) if number is not None]
    return sum(known) if known and len(known) == len(steps) else None


def _seconds(record: Record) -> float:
    if isinstance(record, SetUpRecord):
        return record.warmup_s
    if not isinstance(record, StepRecord | EvaluationRecord):
        return 0.0
    return finite_number(record.time.get("total_s")) or 0.0
