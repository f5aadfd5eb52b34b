"""The tokenizer's added tokens, and the exact bytes that each id stands for."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerFast

from turnwise.core.errors import UserError

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_PIECE = "▁"
"""How SentencePiece writes a space (U+2581)."""
PROBED = 256
"""How many ids are decoded to see whether the table of bytes is right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is matched in the text as a whole. `lstrip` and `rstrip`: it swallows the whitespace beside it."""

    id: int
    special: bool
    lstrip: bool
    rstrip: bool


def backend_of(tokenizer: PreTrainedTokenizerFast) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError("the tokenizer has no fast version: use a model folder that holds a tokenizer.json")
    return backend


def added_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, AddedToken]:
    special = set(tokenizer.all_special_ids)
    return {
        token.content: AddedToken(
            id=token_id, special=token.special or token_id in special, lstrip=token.lstrip, rstrip=token.rstrip
        )
        for token_id, token in tokenizer.added_tokens_decoder.items()
    }


def any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Matches any of `words`, the longest first, as tokenizers match added tokens. Whitespace is none of them."""
    ordered = sorted((word for word in words if word.strip()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's writing of bytes as visible characters: printable Latin-1 as itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


BYTE_ALPHABET = _byte_alphabet()


def _byte_level(piece: str) -> bytes:
    try:
        return bytes(BYTE_ALPHABET[letter] for letter in piece)
    except KeyError:
        return piece.encode()


def _plain_piece(piece: str) -> bytes:
    return piece.replace(SPACE_PIECE, " ").encode()


def _byte_fallback(piece: str) -> bytes:
    byte = BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else _plain_piece(piece)


class ByteTable(dict[int, bytes]):
    """Bytes by id, made when first asked for. An id that the tokenizer does not know has none."""

    def __init__(self, backend: Any, decoder: dict[str, Any] | None) -> None:
        self._piece_of = backend.id_to_token
        kinds = kinds_of(decoder)
        spell = _byte_fallback if "ByteFallback" in kinds else _plain_piece
        self._spell = _byte_level if "ByteLevel" in kinds else spell

    def __missing__(self, token_id: int) -> bytes:
        piece = self._piece_of(token_id)
        self[token_id] = spelled = b"" if piece is None else self._spell(piece)
        return spelled

    def agrees(self, backend: Any) -> bool:
        """Whether ids spread over the vocabulary spell what the tokenizer itself decodes them to."""
        size = backend.get_vocab_size(with_added_tokens=True)
        anchor = next((i for i in range(size) if self[i].isalnum()), 0)  # a decoder may strip a leading space
        for token_id in range(0, size, max(1, size // PROBED)):
            ids = [anchor, token_id, anchor]
            text = backend.decode(ids, skip_special_tokens=False)
            if "\ufffd" not in text and text.encode() != b"".join(map(self.__getitem__, ids)):
                return False
        return True


def kinds_of(component: dict[str, Any] | None) -> set[str]:
    """The types in a serialised decoder."""
    if component is None:
        return set()
    kinds = {component["type"]}
    for inner in component.get("decoders", ()):
        kinds |= kinds_of(inner)
    return kinds
