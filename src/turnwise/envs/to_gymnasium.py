"""`tw.to_gymnasium`: give an environment the interface of Gymnasium."""

from typing import TYPE_CHECKING, Any

from turnwise.core.errors import optional_packages
from turnwise.core.task import Split
from turnwise.envs.protocol_env import EnvFactory
from turnwise.envs.registry import load_spec, spec_of
from turnwise.envs.text_env import TextEnv
from turnwise.envs.tool_env import ToolEnv

if TYPE_CHECKING:
    from turnwise.envs.gymnasium_env import GymnasiumEnv


def to_gymnasium(
    env: str | type[TextEnv] | EnvFactory,
    *,
    split: Split = "train",
    replies: bool | None = None,
    render_mode: str | None = None,
    **params: Any,
) -> "GymnasiumEnv":
    """Return the environment as a `gymnasium.Env`, whose observations are texts.

    env: built-in name, FILE.py:Class, or a class.
    split: split whose tasks are played: train, validation or test.
    replies: whether actions are whole replies of an agent, with the tool calls or the <answer> in them. Default: only
        where there is no other way, as with tools. Otherwise an action is the number of a named action, or a text.
    render_mode: ansi or None.
    params: parameters of the environment, as in env.params.
    """
    with optional_packages("tw.to_gymnasium", "gymnasium", "gymnasium"):
        from turnwise.envs.gymnasium_env import GymnasiumEnv
    spec = load_spec(env) if isinstance(env, str) else spec_of(env)
    if replies is None:
        replies = spec.text_env is None or spec.subclass_of(ToolEnv) is not None
    return GymnasiumEnv(spec, params, split=split, replies=replies, render_mode=render_mode)
