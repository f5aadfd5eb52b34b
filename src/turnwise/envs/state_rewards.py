"""Rewards for replies that describe or predict states: exact by `TextEnv.state_text`, or by a judge."""

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from turnwise.core.errors import EnvironmentFailure
from turnwise.core.messages import Content, content_parts
from turnwise.envs.reasoning import REWARD_NAMES, SECTIONS, fact_f1, read_section
from turnwise.envs.text_env import TextEnv, reasoning_format
from turnwise.rewards.rubric import StateDescription
from turnwise.rewards.scoring import score_states
from turnwise.text.truncation import describe_value
from turnwise.user_code.source_location import failure_boundary

if TYPE_CHECKING:
    from turnwise.rewards.judge.judges import StateJudge


class StateRewards:
    """Scores the states that an episode's replies describe and predict, if `env.params.reasoning` asks for them."""

    def __init__(self, env: TextEnv) -> None:
        self._env = env
        self._sections = SECTIONS[reasoning_format(type(env), env.params)]

    @cached_property
    def _judge(self) -> "StateJudge | None":
        return type(self._env).state_judge(self._env.params, self._env.services)

    def observe(self, observation: Content) -> Content:
        """Return what descriptions are compared with: the facts of the state, or the observation for the judge."""
        if not self._sections:
            return ""
        return self._facts() if type(self._env).knows_state() else observation

    async def score(self, reply: str, *, before: Content, after: Content, acted: bool) -> dict[str, float]:
        """Return the score of each section by the name of its reward.

        `before`, `after`: what `observe` returned around the turn's actions. `acted`: whether one was valid; otherwise
        a prediction scores 0, since nothing followed from it.
        """
        states = {"observation": before, "prediction": after}
        texts = {name: read_section(reply, name) for name in self._sections}
        if not acted and "prediction" in texts:
            texts["prediction"] = None
        scores = {REWARD_NAMES[name]: 0.0 for name, text in texts.items() if text is None}
        described = {name: text for name, text in texts.items() if text is not None}
        if not described:
            return scores
        if self._judge is not None:
            return scores | await self._ask(self._judge, described, states)
        return scores | {REWARD_NAMES[name]: fact_f1(text, str(states[name])) for name, text in described.items()}

    def reward(self, scores: Mapping[str, float]) -> float:
        """Return the weighted sum of the scores."""
        return sum(getattr(self._env.params, f"{name}_reward") * score for name, score in scores.items())

    async def _ask(
        self, judge: "StateJudge", described: Mapping[str, str], states: Mapping[str, Content]
    ) -> dict[str, float]:
        """Return the judge's scores. An empty text scores 0; where nothing was shown, there is no score."""
        empty = {REWARD_NAMES[name]: 0.0 for name, text in described.items() if not text.strip()}
        asked = {
            REWARD_NAMES[name]: StateDescription(
                text=text, observation=states[name], predicted=name == "prediction", rules=self._env.rules()
            )
            for name, text in described.items()
            if text.strip() and content_parts(states[name])
        }
        return empty | await score_states(judge, asked)

    def _facts(self) -> str:
        with failure_boundary(f"{type(self._env).__name__}.state_text"):
            state = self._env.state_text()
        if not isinstance(state, str):
            raise EnvironmentFailure(
                f"{type(self._env).__name__}.state_text returned {describe_value(state)}: return a text"
            )
        return state
