from hypothesis import given
from hypothesis import strategies as st

from episodes_for_tests import renderer
from turnwise.core.messages import Exchange, system, user
from turnwise.core.trajectory import Stop
from turnwise.data.demonstrations import build_demonstration


def test_demonstration_trains_answers_and_their_ends_only() -> None:
    exchanges = [
        Exchange(messages=(system("Be brief."), user("Two?")), answer="<answer>4</answer>"),
        Exchange(messages=(user("Three?"),), answer="<answer>7</answer>"),
    ]
    sample = build_demonstration(3, exchanges, renderer())
    assert sample.trajectory == 3
    trained = [sample.ids[sample.turn_ids == turn].tolist() for turn in (0, 1)]
    assert [renderer().parse(ids, Stop.EOS).message.content for ids in trained] == [
        "<answer>4</answer>",
        "<answer>7</answer>",
    ]
    assert all(ids[-1] in renderer().stop_ids for ids in trained)
    assert (sample.mask == (sample.turn_ids >= 0)).all()
    shown = renderer().decode(sample.ids[~sample.mask].tolist())
    assert "Two?" in shown and "Three?" in shown and "4" not in shown


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=4))
def test_demonstration_keeps_any_answer_exactly(answers: list[str]) -> None:
    exchanges = [Exchange(messages=(user("?"),), answer=answer) for answer in answers]
    sample = build_demonstration(0, exchanges, renderer())
    for turn, answer in enumerate(answers):
        ids = sample.ids[sample.turn_ids == turn].tolist()
        assert renderer().parse(ids, Stop.EOS).message.content == answer
