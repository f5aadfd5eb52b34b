"""Text of a token, for readers without the tokenizer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenName:
    id: int
    text: str
    """Incomplete UTF-8 bytes are escaped as \\xe4."""
    special: bool
