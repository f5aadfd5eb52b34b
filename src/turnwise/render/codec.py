"""Text to ids without special tokens, and ids to bytes."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import Any, Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from turnwise.render.vocabulary import AddedToken, ByteTable, added_tokens, any_of, backend_of, kinds_of

CACHED_TEXTS = 2048
CACHED_LENGTH = 16384
"""Longer texts are encoded every time."""

Prefix = Literal["never", "first", "always"]
"""Where a tokenizer puts a space of its own: nowhere, at the text's beginning, or after special tokens too."""


class Codec:
    """Encodes content as plain text and decodes exactly.

    Works on copies of the tokenizer's backend that know no special tokens, made once and never changed, so it may be
    used from any thread and the tokenizer itself stays as it was. The delimiters of turns count as special here even
    where the tokenizer does not call them so.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, delimiters: Iterable[str] = ()) -> None:
        added, delimiters = added_tokens(tokenizer), set(delimiters)
        self.control: dict[str, AddedToken] = {
            word: token for word, token in added.items() if token.special or word in delimiters
        }
        self.control_pattern = any_of(self.control)
        self.markup_pattern = any_of(word for word in added if word not in self.control)
        """Tokens such as <think> and <tool_call>: an agent and a template may write them, an environment may not."""
        self.added_pattern = any_of(added)
        self._split_inside = re.compile(f"(?={self.control_pattern.pattern})")
        self.control_ids = frozenset(token.id for token in self.control.values())
        unknown = {tokenizer.unk_token_id} - {tokenizer.eos_token_id, tokenizer.bos_token_id}
        self._dropped = self.control_ids - unknown  # the unknown token may stand for what has no other
        self._backend = backend_of(tokenizer)
        spec = json.loads(self._backend.to_str())
        self._spaced, self._bare, self.prefix = _plain_backends(spec, self.control)
        self._table = ByteTable(self._backend, spec["decoder"])
        self._exact = self._table.agrees(self._backend)
        self._cached = lru_cache(maxsize=CACHED_TEXTS)(self._encode)

    @cached_property
    def longest_token(self) -> float:
        """Characters of text that one token can stand for, at most; infinity where unknown text is one token or none.

        Pieces of a byte-level vocabulary have a character a byte, so these are never fewer than their text's.
        """
        spec = json.loads(self._backend.to_str())
        if "ByteLevel" not in kinds_of(spec["decoder"]) and not spec["model"].get("byte_fallback"):
            return math.inf
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)))

    def encode(self, text: str, spaced: bool = False) -> tuple[int, ...]:
        """Ids of plain text, none of them a control token's. `spaced`: with the space that the tokenizer puts first."""
        return self._cached(text, spaced) if len(text) <= CACHED_LENGTH else self._encode(text, spaced)

    def encode_cut(self, text: str, cuts: Sequence[int], spaced: bool = False) -> list[int]:
        """As `encode`, with no token across any of `cuts`, which are positions inside the text, in order."""
        ids: list[int] = []
        for begin, end in pairwise([0, *cuts, len(text)]):
            ids += self.encode(text[begin:end], spaced and begin == 0)
        return ids

    def _encode(self, text: str, spaced: bool) -> tuple[int, ...]:
        ids = self._ids(text, spaced)
        return tuple(ids) if self.control_ids.isdisjoint(ids) else self._encode_apart(text, spaced)

    def _encode_apart(self, text: str, spaced: bool) -> tuple[int, ...]:
        """For vocabularies that hold a special token's text as an ordinary piece: such words are cut in two."""
        cuts = [0, *(match.start() + 1 for match in self._split_inside.finditer(text)), len(text)]
        ids: list[int] = []
        for begin, end in pairwise(cuts):
            ids += self._ids(text[begin:end], spaced and begin == 0)
        return tuple(token_id for token_id in ids if token_id not in self._dropped)

    def _ids(self, text: str, spaced: bool) -> list[int]:
        backend = self._spaced if spaced else self._bare
        try:
            encoding = backend.encode(text, add_special_tokens=False)
        except TypeError:  # half of a surrogate pair, which is no text
            encoding = backend.encode(text.encode(errors="replace").decode(), add_special_tokens=False)
        return encoding.ids

    def crossed(self, text: str, position: int) -> bool:
        """Whether the tokenizer, given the whole text, makes a token that lies across this position."""
        encoding = self._bare.encode(text, add_special_tokens=False)
        ends = list(accumulate(map(len, self.pieces(encoding.ids))))
        if ends and ends[-1] == len(text.encode()):
            return len(text[:position].encode()) not in ends
        return any(begin < position < end for begin, end in encoding.offsets)  # normalised: bytes do not compare

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        """The bytes of each id; a character may be spread over several."""
        if self._exact:
            return list(map(self._table.__getitem__, ids))
        return self._pieces_by_prefix(ids)

    def _pieces_by_prefix(self, ids: Sequence[int]) -> list[bytes]:
        """For decoders in which a token's text depends on what stands before it: what each token adds to the text.

        Decodes every prefix, so it takes quadratic time; no byte-level or byte-fallback tokenizer comes here.
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
        """The exact text; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(self.pieces(ids)).decode(errors="replace")


def _plain_backends(spec: dict[str, Any], control: dict[str, AddedToken]) -> tuple[Any, Any, Prefix]:
    """Two copies of the backend without special tokens: one that puts its own space first, and one that does not."""
    tokens = [token | {"special": token["special"] or token["content"] in control} for token in spec["added_tokens"]]
    spec = spec | {"added_tokens": tokens, "post_processor": None, "truncation": None, "padding": None}
    found: list[Prefix] = []
    bare = spec | {key: _without_prefix(spec[key], found) for key in ("normalizer", "pre_tokenizer")}
    if not found:
        backend = _plain_backend(spec)
        return backend, backend, "never"
    return _plain_backend(spec), _plain_backend(bare), "always" if "always" in found else "first"


def _plain_backend(spec: dict[str, Any]) -> Any:
    backend = Tokenizer.from_str(json.dumps(spec))
    backend.encode_special_tokens = True
    return backend


def _without_prefix(component: Any, found: list[Prefix]) -> Any:
    """A normaliser or pre-tokeniser that adds no space; notes in `found` where it did."""
    match component:
        case {"type": "Prepend"}:
            found.append("always")
            return {"type": "Sequence", "normalizers": []}
        case {"type": "Metaspace", "prepend_scheme": "first" | "always" as scheme}:
            found.append(scheme)
            return component | {"prepend_scheme": "never"}
        case {"type": "ByteLevel", "add_prefix_space": True}:
            found.append("always")
            return component | {"add_prefix_space": False}
        case {"type": "Sequence"}:
            (key,) = component.keys() - {"type"}
            return component | {key: [_without_prefix(inner, found) for inner in component[key]]}
    return component
