"""Tokens that a grammar allows, step by step, by llguidance.

    grammar     start: %json {"enum": [true, false]}
    sampled             tr        ue        <|end|>
    allowed     t tr f fa ...     u ue      <|end|>         one set of tokens before each sampled one

The same code serves engines, while they sample, and training, which computes the sets again from the grammar and the
sampled ids. A set is packed: token i is bit i % 8 of byte i // 8.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from typing import Any

from turnwise.core.constraint import Constraint, ConstraintError
from turnwise.text.truncation import first_line

MAX_GRAMMAR_CHARS = 100_000
MAX_NESTING = 64
"""Nested brackets of a grammar; the compiler recurses over them."""
LIMITS = {"initial_lexer_fuel": 500_000, "max_grammar_size": 10_000, "max_lexer_states": 20_000}
"""Limits of llguidance besides its own defaults: what they allow compiles in tenths of a second, in tens of MB."""
CACHED_GRAMMARS, CACHED_SETS = 64, 4096


class GrammarMatcher:
    """State of one turn: `allowed` tokens come next, `accept` takes one of them."""

    def __init__(self, matcher: Any, stop_set: bytes) -> None:
        self._matcher, self._stop_set = matcher, stop_set
        self.error: ConstraintError | None = None
        """Set if no token may come next, or if a step took too long. Then only the end of the turn is allowed, and the
        turn is void."""

    def allowed(self) -> bytes:
        """Return the packed set of tokens that may come next."""
        if self.error is None:
            packed: bytes = self._matcher.compute_bitmask()
            if not self._matcher.is_error():
                return packed
            self.error = ConstraintError(first_line(self._matcher.get_error()))
        return self._stop_set

    def accept(self, token: int) -> None:
        """Continue after this token. Sets `error` if it is not allowed."""
        if self.error is None and not self._matcher.consume_token(token):
            self.error = ConstraintError(f"token {token} is not allowed: {first_line(self._matcher.get_error())}")


class GrammarCompiler:
    """Compiles constraints for one tokenizer. Thread-safe. Needs llguidance, which is imported with the first one."""

    def __init__(self, tokenizer_json: Callable[[], str], stop_ids: Iterable[int]) -> None:
        self._tokenizer_json, self._stop_ids = tokenizer_json, sorted(stop_ids)
        self._compiled = lru_cache(maxsize=CACHED_GRAMMARS)(self.compile)
        self._sets: dict[bytes, bytes] = {}

    @cached_property
    def _tokenizer(self) -> Any:
        return _llguidance().LLTokenizer(self._tokenizer_json(), eos_token=self._stop_ids)

    @cached_property
    def _stop_set(self) -> bytes:
        packed = bytearray(-(-self._tokenizer.vocab_size // 32) * 4)
        for token in self._stop_ids:
            packed[token // 8] |= 1 << token % 8
        return bytes(packed)

    def matcher(self, constraint: Constraint) -> GrammarMatcher:
        """Return a matcher at the start of a turn. The first one of a grammar compiles it: see `LIMITS`.

        Raises ConstraintError if the grammar is invalid or too complex.
        """
        return GrammarMatcher(self._compiled(constraint).deep_copy(), self._stop_set)

    def allowed_sets(self, constraint: Constraint, ids: Sequence[int]) -> list[bytes]:
        """Return the packed set before each of the ids, which were sampled under the constraint.

        Equal sets are the same object. Raises ConstraintError if an id is not in its set, as if another version of
        llguidance sampled it.
        """
        matcher, sets = self.matcher(constraint), []
        for token in ids:
            allowed = matcher.allowed()
            sets.append(self._sets.setdefault(allowed, allowed))
            matcher.accept(token)
            if matcher.error is not None:
                raise matcher.error
        if len(self._sets) > CACHED_SETS:
            self._sets.clear()
        return sets

    def compile(self, constraint: Constraint) -> Any:
        """Return llguidance's matcher of the grammar. Raises ConstraintError if it is invalid or too complex."""
        grammar = constraint.grammar
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise ConstraintError(f"it has {len(grammar)} characters, and at most {MAX_GRAMMAR_CHARS} are compiled")
        if nesting(grammar) > MAX_NESTING:
            raise ConstraintError(f"it is nested more than {MAX_NESTING} levels deep")
        library = _llguidance()
        limits = library.LLParserLimits(**LIMITS, verbose_errors=False)
        try:
            matcher = library.LLMatcher(
                self._tokenizer, library.LLMatcher.grammar_from_lark(grammar), limits=limits, log_level=0
            )
        except ValueError as error:
            raise ConstraintError(first_line(error)) from error
        matcher.compute_bitmask()  # fails if nothing matches, as for a schema that only refers to itself
        if matcher.is_error():
            raise ConstraintError(first_line(matcher.get_error()))
        return matcher


def nesting(text: str) -> int:
    """Return how deep the brackets of a text are nested, without those in its strings being told apart."""
    depth = deepest = 0
    for letter in text:
        if letter in "{[(":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "}])":
            depth -= 1
    return deepest


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise ConstraintError("llguidance is not installed: run `pip install 'turnwise[gateway]'`") from error
    return llguidance
