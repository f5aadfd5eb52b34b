"""Spans of answers with a prefix count sampled tokens only."""

import pytest

from episodes_for_tests import spoken
from turnwise.core.trajectory import Span, Stop
from turnwise.models.loading.tiny import tiny_tokenizer
from turnwise.render.renderer import Renderer


@pytest.mark.parametrize(
    ("prefix", "said", "spans"),
    [
        ("<answer>", "Left</answer>", [("answer", 0, 4)]),
        ("<think>", "hm</think><answer>Up</answer>", [("think", 0, 2), ("answer", 18, 20)]),
        ("<think>hm", "m</think>", [("think", 0, 1)]),
        ("<think>hm</think>", "<answer>Up</answer>", [("answer", 8, 10)]),
    ],
)
def test_spans_after_a_prefix_cover_sampled_tokens(prefix: str, said: str, spans: list[tuple[str, int, int]]) -> None:
    """Every letter is a token."""
    parsed = Renderer(tiny_tokenizer(), prefix=prefix).parse(spoken(said), Stop.EOS)
    assert parsed.message.content == prefix + said
    assert list(parsed.spans) == [Span(name=name, start=start, end=end) for name, start, end in spans]
