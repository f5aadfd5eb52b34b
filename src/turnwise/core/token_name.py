"""How a token is written, for those who have no tokenizer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenName:
    id: int
    text: str
    """Bytes that are no whole character stand as \\xe4."""
    special: bool
