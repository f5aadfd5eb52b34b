"""Text to ids without special tokens, and ids to exact bytes."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from turnwise.concurrency.bounded_cache import BoundedCache
from turnwise.core.errors import UserError

BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPACE_PIECE = "▁"
"""SentencePiece's symbol for a space (U+2581)."""
PROBED_IDS = 256
"""Number of ids that are decoded to verify the byte table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is matched in the text as a whole. `lstrip`, `rstrip`: it also consumes adjacent whitespace."""

    id: int
    special: bool
    lstrip: bool
    rstrip: bool


def backend_of(tokenizer: PreTrainedTokenizerFast) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise UserError("The tokenizer has no fast version: use a model folder with a tokenizer.json.")
    return backend


def added_tokens(tokenizer: PreTrainedTokenizerFast) -> dict[str, AddedToken]:
    special = set(tokenizer.all_special_ids)
    return {
        token.content: AddedToken(
            id=token_id, special=token.special or token_id in special, lstrip=token.lstrip, rstrip=token.rstrip
        )
        for token_id, token in tokenizer.added_tokens_decoder.items()
    }


def match_any(words: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches any of `words`, longest first, as tokenizers match added tokens."""
    ordered = sorted((word for word in words if word.strip()), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or "(?!)")


def _byte_alphabet() -> dict[str, int]:
    """Return byte-level BPE's alphabet: printable Latin-1 bytes stand for themselves, others start at U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


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
    """Bytes by id, computed on demand. Ids that the tokenizer does not know have none."""

    def __init__(self, backend: Any, decoder: dict[str, Any] | None) -> None:
        self._piece_of = backend.id_to_token
        types = component_types(decoder)
        spell = _byte_fallback if "ByteFallback" in types else _plain_piece
        self._spell = _byte_level if "ByteLevel" in types else spell

    def __missing__(self, token_id: int) -> bytes:
        piece = self._piece_of(token_id)
        self[token_id] = spelled = b"" if piece is None else self._spell(piece)
        return spelled

    def agrees(self, backend: Any) -> bool:
        """Return whether the table decodes a sample of the vocabulary as the tokenizer itself does."""
        size = backend.get_vocab_size(with_added_tokens=True)
        anchor = next((i for i in range(size) if self[i].isalnum()), 0)  # a decoder may strip a leading space
        for token_id in range(0, size, max(1, size // PROBED_IDS)):
            ids = [anchor, token_id, anchor]
            text = backend.decode(ids, skip_special_tokens=False)
            if "\ufffd" not in text and text.encode() != b"".join(map(self.__getitem__, ids)):
                return False
        return True


def component_types(component: dict[str, Any] | None) -> set[str]:
    """Return the types of a serialized decoder and its components."""
    if component is None:
        return set()
    types = {component["type"]}
    for inner in component.get("decoders", ()):
        types |= component_types(inner)
    return types


CACHE_BYTES = 32 * 2**20
"""Memory for encoded texts, with and without an inserted space each."""
CACHED_LENGTH = 16384
"""Longer texts are not cached."""


def _cached_bytes(ids: tuple[int, ...]) -> int:
    """Return the memory of an encoded text, about: its ids as Python objects, and its characters."""
    return 200 + 40 * len(ids)


PrefixSpace = Literal["never", "first", "always"]
"""Positions at which the tokenizer inserts a space: nowhere, at the start of the text, or also after special tokens."""


class Codec:
    """Encodes content as plain text and decodes exactly.

    Uses copies of the tokenizer's backend without special tokens, which are never modified, so it is thread-safe and
    leaves the tokenizer unchanged. Turn delimiters count as special even if the tokenizer does not mark them so.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, delimiters: Iterable[str] = ()) -> None:
        added, delimiters = added_tokens(tokenizer), set(delimiters)
        self.control: dict[str, AddedToken] = {
            word: token for word, token in added.items() if token.special or word in delimiters
        }
        self.control_pattern = match_any(self.control)
        self.markup_pattern = match_any(word for word in added if word not in self.control)
        """Tokens such as <think> and <tool_call>, which agents and templates may write, but not environments."""
        self.added_pattern = match_any(added)
        self._added_ids = {word: token.id for word, token in added.items()}
        self._split_inside = re.compile(f"(?={self.control_pattern.pattern})")
        self.control_ids = frozenset(token.id for token in self.control.values())
        unknown = {tokenizer.unk_token_id} - {tokenizer.eos_token_id, tokenizer.bos_token_id}
        self._dropped = self.control_ids - unknown  # the unknown token may represent text that has no other token
        self._backend = backend_of(tokenizer)
        spec = json.loads(self._backend.to_str())
        self._spaced, self._bare, self.prefix = _plain_backends(spec, self.control)
        self._table = ByteTable(self._backend, spec["decoder"])
        self._exact = self._table.agrees(self._backend)
        self._cached = {spaced: BoundedCache(_cached_bytes, CACHE_BYTES) for spaced in (False, True)}

    @cached_property
    def longest_token(self) -> float:
        """Maximum number of characters per token; infinite if unknown text of any length becomes one token or none.

        Pieces of a byte-level vocabulary have one character per byte, so they are never shorter than their text.
        """
        spec = json.loads(self._backend.to_str())
        if "ByteLevel" not in component_types(spec["decoder"]) and not spec["model"].get("byte_fallback"):
            return math.inf
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    def split_added(self, text: str) -> Iterator[tuple[str, int | None]]:
        """Yield the pieces of a text: added tokens with their ids, and what is between them."""
        end = 0
        for match in self.added_pattern.finditer(text):
            if match.start() > end:
                yield text[end : match.start()], None
            yield match[0], self._added_ids[match[0]]
            end = match.end()
        if end < len(text):
            yield text[end:], None

    def encode(self, text: str, spaced: bool = False) -> tuple[int, ...]:
        """Encode plain text without control tokens. `spaced`: with the space that the tokenizer inserts first."""
        if len(text) > CACHED_LENGTH:
            return self._encode(text, spaced)
        ids = self._cached[spaced].get(text)
        if ids is None:
            ids = self._encode(text, spaced)
            self._cached[spaced].put(text, ids)
        return ids

    def encode_cut(self, text: str, cuts: Sequence[int], spaced: bool = False) -> list[int]:
        """Encode such that no token crosses any of `cuts`, which are ordered positions in the text."""
        ids: list[int] = []
        for begin, end in pairwise([0, *cuts, len(text)]):
            ids += self.encode(text[begin:end], spaced and begin == 0)
        return ids

    def _encode(self, text: str, spaced: bool) -> tuple[int, ...]:
        ids = self._ids(text, spaced)
        return tuple(ids) if self.control_ids.isdisjoint(ids) else self._encode_apart(text, spaced)

    def _encode_apart(self, text: str, spaced: bool) -> tuple[int, ...]:
        """Split special tokens' texts in two, for vocabularies that contain them as ordinary pieces."""
        cuts = [0, *(match.start() + 1 for match in self._split_inside.finditer(text)), len(text)]
        ids: list[int] = []
        for begin, end in pairwise(cuts):
            ids += self._ids(text[begin:end], spaced and begin == 0)
        return tuple(token_id for token_id in ids if token_id not in self._dropped)

    def _ids(self, text: str, spaced: bool) -> list[int]:
        encode = (self._spaced if spaced else self._bare).encode_batch_fast  # unlike `encode`, it releases the GIL
        try:
            [encoding] = encode([text], add_special_tokens=False)
        except TypeError:  # unpaired surrogate
            [encoding] = encode([text.encode(errors="replace").decode()], add_special_tokens=False)
        return encoding.ids

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of each id; a character may span several ids."""
        if self._exact:
            return list(map(self._table.__getitem__, ids))
        return self._pieces_by_prefix(ids)

    def _pieces_by_prefix(self, ids: Sequence[int]) -> list[bytes]:
        """Return what each token adds to the text, for decoders in which that depends on the tokens before.

        Decodes every prefix, so it takes quadratic time. Byte-level and byte-fallback tokenizers do not need it.
        """
        pieces: list[bytes] = []
        known = ""
        for end in range(1, len(ids) + 1):
            text = self._backend.decode(ids[:end], skip_special_tokens=False)
            unfinished = text.endswith("\ufffd") and end < len(ids)
            pieces.append(b"" if unfinished else text[len(known) :].encode())
            known = known if unfinished else text
        return pieces

    def decode(self, ids: Sequence[int]) -> str:
        """Return the exact text; invalid UTF-8 becomes U+FFFD."""
        return b"".join(self.pieces(ids)).decode(errors="replace")


def _plain_backends(spec: dict[str, Any], control: dict[str, AddedToken]) -> tuple[Any, Any, PrefixSpace]:
    """Return two backends without special tokens, with and without the inserted space, and where it is inserted."""
    tokens = [token | {"special": token["special"] or token["content"] in control} for token in spec["added_tokens"]]
    spec = spec | {"added_tokens": tokens, "post_processor": None, "truncation": None, "padding": None}
    schemes: list[PrefixSpace] = []
    bare = spec | {key: _without_prefix(spec[key], schemes) for key in ("normalizer", "pre_tokenizer")}
    if not schemes:
        backend = _plain_backend(spec)
        return backend, backend, "never"
    return _plain_backend(spec), _plain_backend(bare), "always" if "always" in schemes else "first"


def _plain_backend(spec: dict[str, Any]) -> Any:
    backend = Tokenizer.from_str(json.dumps(spec))
    backend.encode_special_tokens = True
    return backend


def _without_prefix(component: Any, schemes: list[PrefixSpace]) -> Any:
    """Return the normalizer or pre-tokenizer without space insertion; append where it inserted to `schemes`."""
    match component:
        case {"type": "Prepend"}:
            schemes.append("always")
            return {"type": "Sequence", "normalizers": []}
        case {"type": "Metaspace", "prepend_scheme": "first" | "always" as scheme}:
            schemes.append(scheme)
            return component | {"prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": True}:
            schemes.append("always")
            return component | {"add_prefix_space": False}
        case {"type": "Sequence"}:
            (key,) = component.keys() - {"type"}
            return component | {key: [_without_prefix(inner, schemes) for inner in component[key]]}
    return component
