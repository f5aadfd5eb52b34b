"""Constraints of what the model may sample in a turn."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Grammar of a turn, which the end of the turn follows. Tokens that it does not allow have probability 0."""

    grammar: str
    """Text in the variant of Lark that llguidance reads."""


class ConstraintError(Exception):
    """A constraint cannot be enforced: it is not valid, too complex, or the engine supports none."""
