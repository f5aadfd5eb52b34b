from pathlib import Path
from typing import Any

import pytest

from contexts_for_tests import Talk, play, summary, window
from episodes_for_tests import renderer
from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.messages import system, user
from turnwise.rollout.context import Context, FullContext
from turnwise.rollout.context_modes import SummaryContext, TurnContext, WindowContext
from turnwise.rollout.context_settings import CONTEXTS
from turnwise.run.build_context import build_context, load_summary_hook
from turnwise.run.validate import check_settings


def config_of(kind: str, **settings: Any) -> Config:
    given = {"context": kind, **{name.replace("__", "."): value for name, value in settings.items()}}
    return build({}, list(given.items()))


def refused(kind: str, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_settings(config_of(kind, **settings))
    return str(caught.value)


def build_of(config: Config) -> Context:
    return build_context(config.context, config.rollout, renderer())


def test_every_context_passes_with_its_defaults_and_is_built() -> None:
    kinds = {"full": FullContext, "window": WindowContext, "turn": TurnContext, "summary": SummaryContext}
    assert kinds.keys() == CONTEXTS.keys()
    for name, kind in kinds.items():
        check_settings(config_of(name))
        assert type(build_of(config_of(name))) is kind


def test_every_setting_reaches_its_context() -> None:
    talk = Talk(
        opening=(system("Rules."), user("Find it.")),
        answers=tuple((user(f"You are now in room {number}."),) for number in range(6)),
        said=("<answer>Left</answer>",),
    )
    few, kept = {"context__turns": 1, "context__keep_opening": True}, {"keep_opening": True}
    by_turns = {"context__every": 2, "context__summary": 9, "context__keep_opening": True, "rollout__max_tokens": 300}
    expected = {
        "window": (few, window(renderer(), 1, keep_opening=True)),
        "turn": (few, TurnContext(renderer(), turns=1, keep_opening=True)),
        "summary": (by_turns, summary(renderer(), tokens=150, turns=2, max_tokens=9, **kept)),
    }
    for kind, (settings, context) in expected.items():
        built = build_of(config_of(kind, **settings))
        ours, theirs = (play(talk, each, renderer()).witness for each in (built, context))
        assert (ours.contexts, ours.budgets) == (theirs.contexts, theirs.budgets), kind
    halves = build_of(config_of("summary", rollout__max_tokens=300))
    context = summary(renderer(), tokens=150, max_tokens=128)
    assert play(talk, halves, renderer()).witness.contexts == play(talk, context, renderer()).witness.contexts


def test_setting_that_the_context_does_not_have_is_refused() -> None:
    assert refused("full", context__turns=2) == (
        "context.turns has no effect with context full. Remove it, or choose window, turn."
    )
    assert "or choose summary." in refused("window", context__every=2)
    assert refused("turn", context__slack=1) == "context.slack no longer exists. A window slides at every turn."
    assert refused("full", context__mode="turn") == "unknown key context.mode: it is now context"
    check_settings(config_of("window", context__turns=2, context__keep_opening=True))


def test_unknown_context_is_refused() -> None:
    assert refused("windows") == 'Unknown context "windows": did you mean "window"?'


def test_summary_larger_than_the_context_is_refused() -> None:
    assert "add up to 256 tokens, which do not fit into it" in refused("summary", rollout__max_tokens=128 + 128 - 128)


def test_missing_summary_hook_is_reported_before_the_run(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks.py"
    hooks.write_text("LIMIT = 3\ndef briefly(messages):\n    return f'{len(messages)} messages'\n")
    check_settings(config_of("summary", context__summary=f"{hooks}:briefly"))
    writer = load_summary_hook(f"{hooks}:briefly")
    assert writer is not None and writer([user("a"), user("b")]) == "2 messages"
    assert load_summary_hook(128) is None
    assert 'did you mean "briefly"?' in refused("summary", context__summary=f"{hooks}:breifly")
    assert 'no function "LIMIT"' in refused("summary", context__summary=f"{hooks}:LIMIT")
    assert "none.py does not exist" in refused("summary", context__summary=f"{tmp_path}/none.py:f")
    assert 'neither "128" nor FILE.py:function' in refused("summary", context__summary="modle")
