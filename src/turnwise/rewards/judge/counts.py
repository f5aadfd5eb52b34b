"""What a judge did, for a run to show."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(slots=True)
class JudgeCounts:
    calls: int = 0
    """Requests that were sent, those that were sent again included."""
    tokens: int = 0
    """Read and written, as the endpoint counts them; estimated where it does not."""
    cached: int = 0
    """Verdicts that cost nothing: kept from before, or asked for by another at the same time."""
    retried: int = 0
    """Requests that met a failure which may pass."""
    unreadable: int = 0
    """Answers that were no verdict, and were asked for again."""
    left_out: int = 0
    """Members of groups that there was no verdict on: the rest of their group is trained."""
    seconds: float = 0.0
    """Waiting for the judge, those who wait at the same time added up."""

    def take_up(self, before: Mapping[str, float]) -> None:
        """Counts go on from those of `before`, by their names, where they are not beyond them."""
        for name, value in asdict(self).items():
            setattr(self, name, max(value, before.get(name, 0)))

    def metrics(self) -> dict[str, float]:
        return {f"judge/{name}": float(value) for name, value in asdict(self).items()}
