"""Seams are counted, not repaired."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render_cases import KINDS, case, spell

from turnwise.core.messages import user
from turnwise.core.trajectory import Stop
from turnwise.render.codec import Codec


def test_a_token_that_would_lie_across_the_seam_is_counted() -> None:
    tokenizer, renderer = case("chatml")
    assert len(tokenizer.encode(" hello")) == 1
    pieces = [spell(tokenizer, "go hel"), spell(tokenizer, "lo")]
    assert renderer.count_seams(pieces) == 1
    assert renderer.count_seams([*pieces, spell(tokenizer, " hel"), spell(tokenizer, "lo")]) == 2


def test_a_seam_that_the_tokenizer_would_cut_too_is_not_counted() -> None:
    tokenizer, renderer = case("chatml")
    assert renderer.count_seams([spell(tokenizer, "go"), spell(tokenizer, " hello")]) == 0


def test_special_tokens_part_every_text() -> None:
    tokenizer, renderer = case("chatml")
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    left, right = spell(tokenizer, " hel"), spell(tokenizer, "lo")
    assert renderer.count_seams([[*left, end], right]) == 0
    assert renderer.count_seams([left, [end, *right]]) == 0
    assert renderer.count_seams([[*left, end, *left], [*right, end, *right]]) == 1
    assert renderer.count_seams([[end, *spell(tokenizer, ">")], spell(tokenizer, ">")]) == 1


def test_in_a_conversation_only_the_prompt_meets_an_action_at_a_seam() -> None:
    tokenizer, renderer = case("chatml")
    for text, seams in (("go", 0), ("\n", 1)):  # the prompt ends in a newline, and two newlines are one token
        for stop in (Stop.STRING, Stop.LENGTH):
            pieces = [renderer.start([user("a")]), spell(tokenizer, text), renderer.extend([user("b")], stop)]
            assert renderer.count_seams(pieces) == seams


def test_half_a_character_at_a_seam_is_counted() -> None:
    tokenizer, renderer = case("chatml")
    ice = spell(tokenizer, "🧊")
    assert renderer.count_seams([ice[:2], spell(tokenizer, "a")]) == 1
    assert renderer.count_seams([ice * 5, spell(tokenizer, "a")]) == 0
    assert renderer.count_seams([spell(tokenizer, "日" * 5), spell(tokenizer, "a")]) == 0


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_cutting_the_tokenizers_own_ids_makes_no_seam(kind: str, data: st.DataObject) -> None:
    tokenizer, renderer = case("chatml", kind)
    words = st.sampled_from(["hello", " world", "\n\n", "go", " ", "Left", "é", "🧊"])
    text = "".join(data.draw(st.lists(words, min_size=1, max_size=6)))
    ids = tokenizer.encode("<s>" + text, add_special_tokens=False)[1:]
    whole = [piece for piece in range(1, len(ids)) if "\ufffd" not in tokenizer.decode(ids[:piece])]
    for place in whole:
        assert renderer.count_seams([ids[:place], ids[place:]]) == 0


def test_empty_pieces_make_no_seam() -> None:
    tokenizer, renderer = case("chatml")
    assert renderer.count_seams([]) == 0
    assert renderer.count_seams([spell(tokenizer, " hel"), [], spell(tokenizer, "lo")]) == 1


def test_a_seam_seen_before_costs_no_tokenisation(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, renderer = case("chatml")
    pieces = [spell(tokenizer, "so hel"), spell(tokenizer, "lo")]
    first = renderer.count_seams(pieces)
    monkeypatch.setattr(Codec, "crossed", None)
    assert renderer.count_seams(pieces) == first == 1
