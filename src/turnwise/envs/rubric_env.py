"""Environments whose answers are scored by the rubric in `env.params.reward`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from turnwise.core.messages import Message
from turnwise.envs.param_setting import param_setting
from turnwise.envs.text_env import Outcome
from turnwise.envs.tool_env import ToolEnv
from turnwise.rewards.rubric import Rubric, Submission
from turnwise.rewards.scoring import score_submission
from turnwise.tools.tool import NeedsServer
from turnwise.tools.toolbox import EpisodeTools
from turnwise.user_code.references import load_function

if TYPE_CHECKING:
    from turnwise.rewards.services import RewardServices


class RubricEnv(ToolEnv):
    # Its `Params` have `reward: RewardSettings`. No docstring: an environment's docstring is its prompt.

    @classmethod
    def build_rubric(cls, params: Any, services: "RewardServices | None" = None) -> Rubric:
        """Build the rubric of these parameters. Without `services` it has judges and budgets of its own."""
        from turnwise.rewards.factory import RewardServices, build_rubric

        def load(name: str) -> Any:
            return load_function(name, param_setting("reward"))

        return build_rubric(params.reward, load, services or RewardServices())

    @classmethod
    def check(cls, params: Any) -> None:
        super().check(params)
        cls.build_rubric(params)

    @classmethod
    def judges(cls, params: Any, services: "RewardServices | None" = None) -> list[NeedsServer]:
        from turnwise.rewards.factory import rubric_judges

        return [*super().judges(params, services), *rubric_judges(cls.build_rubric(params, services))]

    async def score(
        self,
        *,
        question: str,
        answer: str,
        row: Mapping[str, Any],
        messages: Sequence[Message],
        tools: EpisodeTools,
        success_at: float = 1.0,
    ) -> Outcome:
        """Score the answer, which ends the episode."""
        submission = Submission(question=question, answer=answer, row=row, messages=tuple(messages), run_tool=tools.run)
        rubric = self.build_rubric(self.params, self.services)
        score = await score_submission(rubric, submission, success_at)
        return Outcome(text="", reward=score.reward, over=True, success=score.success, parts=score.parts)
