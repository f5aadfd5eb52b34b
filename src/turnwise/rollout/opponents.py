"""Opponents in two-player games, with their settings."""

from typing import Annotated

from pydantic import Field

from turnwise.settings.choice import Choice, choices
from turnwise.settings.needs import (
    FIXED_OPPONENT,
    IN_TURN,
    LOCAL_EPISODES,
    ONE_ENVIRONMENT,
    PLAYED,
    TWO_POLICIES,
    Lack,
    Need,
)
from turnwise.settings.section import Positive


class Opponent(Choice):
    """Opponent of the trained policy in a game."""


class Script(Opponent, kind="none"):
    """The game's own script."""


class PolicyOpponent(Opponent):
    """A policy of this run. Snapshots of the policy are kept, and rated on a ladder."""

    snapshot_every: Positive = 20
    """Steps between snapshots of the policy as opponents; the first is the initial policy."""
    snapshots: Positive = 4
    """Number of latest snapshots in use; past: each step's opponent is drawn from them."""
    ladder_games: Annotated[int, Field(ge=0)] = 32
    """Games of each new snapshot against each earlier one, for its Elo rating; 0 disables ratings."""

    @property
    def plays_snapshots(self) -> bool:
        """A second set of weights plays."""
        return self.ladder_games > 0

    def needs(self) -> list[Need]:
        name, without = f"selfplay.opponent {self.kind}", "set selfplay.opponent to none"
        needs = [
            Need(PLAYED, f"{name} needs episodes that are played", without),
            Need(IN_TURN, f"{name} chooses one opponent per step", without),
            Need(ONE_ENVIRONMENT, f"{name} trains one game", without),
            Need(LOCAL_EPISODES, f"{name} plays its matches in this process", without),
        ]
        if self.plays_snapshots:
            alone = "choose selfplay.opponent self with selfplay.opponent.ladder_games 0"
            needs.append(Need(TWO_POLICIES, f"{name} generates with two sets of weights", alone))
        return needs

    def lacks(self) -> dict[str, Lack]:
        changing, fix = "changes the opponent from step to step", "set selfplay.opponent to none"
        return {FIXED_OPPONENT: Lack(f"selfplay.opponent {self.kind}", changing, fix)}


class CurrentPolicy(PolicyOpponent, kind="self"):
    """The current policy: both players of a match are trained."""


class PastPolicy(PolicyOpponent, kind="past"):
    """A snapshot of the policy, drawn for each step."""

    @property
    def plays_snapshots(self) -> bool:
        return True


OPPONENTS: dict[str, type[Opponent]] = choices(Script, CurrentPolicy, PastPolicy)
