from pathlib import Path
from typing import Any

import pytest

from contexts_for_tests import Talk, play, summary
from episodes_for_tests import renderer
from turnwise.config.load import build
from turnwise.config.schema import Config
from turnwise.core.errors import UserError
from turnwise.core.messages import system, user
from turnwise.rollout.context import FullContext
from turnwise.rollout.context_modes import SummaryContext, SummaryTrigger, TurnContext, TurnMemory, WindowContext
from turnwise.run.contexts import CONTEXTS, MODES_USING, build_context, load_summary_hook
from turnwise.run.validate import check_settings


def config_of(mode: str, **settings: Any) -> Config:
    given = {"context.mode": mode, **{name.replace("__", "."): value for name, value in settings.items()}}
    return build({}, list(given.items()))


def refused(mode: str, **settings: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_settings(config_of(mode, **settings))
    return str(caught.value)


def test_every_mode_passes_with_its_defaults_and_is_built() -> None:
    kinds = {"full": FullContext, "window": WindowContext, "turn": TurnContext, "summary": SummaryContext}
    assert kinds.keys() == CONTEXTS.keys()
    for mode, kind in kinds.items():
        check_settings(config_of(mode))
        assert type(build_context(config_of(mode), renderer())) is kind


def test_every_setting_reaches_its_mode() -> None:
    talk = Talk(
        opening=(system("Rules."), user("Find it.")),
        answers=tuple((user(f"You are now in room {number}."),) for number in range(6)),
        said=("<answer>Left</answer>",),
    )
    window = {"turns": 1, "slack": 2, "keep_opening": True}
    turn = {"memory": "actions", "turns": 2, "memory_chars": 40, "memory_rewards": True, "keep_opening": True}
    by_turns = {"summary_every": 2, "summary_tokens": 9, "summary_prompt": "Well?", "keep_opening": True}
    expected = {
        "window": WindowContext(renderer(), turns=1, slack=2, keep_opening=True),
        "turn": TurnContext(
            renderer(), memory=TurnMemory(form="actions", turns=2, chars=40, rewards=True), keep_opening=True
        ),
        "summary": SummaryContext(
            renderer(),
            when=SummaryTrigger(tokens=100, turns=2),
            prompt="Well?",
            max_tokens=9,
            writer=None,
            keep_opening=True,
        ),
    }
    for mode, settings in (("window", window), ("turn", turn), ("summary", by_turns | {"summary_at": 100})):
        built = build_context(
            config_of(mode, **{f"context__{name}": value for name, value in settings.items()}), renderer()
        )
        ours, theirs = (play(talk, context, renderer()).witness for context in (built, expected[mode]))
        assert (ours.contexts, ours.budgets) == (theirs.contexts, theirs.budgets)
    halves = build_context(config_of("summary", rollout__max_tokens=300), renderer())
    theirs = summary(renderer(), tokens=150, prompt=config_of("summary").context.summary_prompt, max_tokens=128)
    assert play(talk, halves, renderer()).witness.contexts == play(talk, theirs, renderer()).witness.contexts


def test_every_setting_is_read_in_some_mode() -> None:
    assert MODES_USING.keys() == type(Config().context).model_fields.keys() - {"mode"}
    assert all(set(modes) <= CONTEXTS.keys() for modes in MODES_USING.values())


def test_setting_that_the_mode_does_not_read_is_refused() -> None:
    assert refused("full", context__turns=2) == (
        "context.turns has no effect with context.mode full. Leave it out, or choose context.mode window or turn."
    )
    assert "choose context.mode turn" in refused("window", context__memory="actions")
    assert "choose context.mode window" in refused("turn", context__slack=1)
    check_settings(config_of("window", context__turns=2, context__slack=1, context__keep_opening=True))


def test_unknown_mode_is_refused() -> None:
    assert "one of full, window, turn, summary" in refused("windows")


def test_summary_larger_than_the_context_is_refused() -> None:
    assert "add up to 2000 tokens, which do not fit into rollout.max_tokens 2000" in refused(
        "summary", context__summary_at=1808, rollout__max_tokens=2000
    )
    check_settings(config_of("summary", context__summary_at=1807, rollout__max_tokens=2000))
    check_settings(config_of("full", rollout__max_tokens=200))


def test_missing_summary_hook_is_reported_before_the_run(tmp_path: Path) -> None:
    hooks = tmp_path / "hooks.py"
    hooks.write_text("LIMIT = 3\ndef briefly(messages):\n    return f'{len(messages)} messages'\n")
    check_settings(config_of("summary", context__summary_by=f"{hooks}:briefly"))
    writer = load_summary_hook(f"{hooks}:briefly")
    assert writer is not None and writer([user("a"), user("b")]) == "2 messages"
    assert load_summary_hook("model") is None
    assert 'did you mean "briefly"?' in refused("summary", context__summary_by=f"{hooks}:breifly")
    assert 'no function "LIMIT"' in refused("summary", context__summary_by=f"{hooks}:LIMIT")
    assert "none.py does not exist" in refused("summary", context__summary_by=f"{tmp_path}/none.py:f")
    assert 'neither "model" nor FILE.py:function' in refused("summary", context__summary_by="modle")
