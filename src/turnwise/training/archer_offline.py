"""Critics of utterances on stored episodes alone: implicit Q-learning (IQL) and AWAC.

    replay -> trajectories -> critic      Q by TD over turns
    a step's episodes -> Q - V -> actor   their likelihood, each utterance weighted by its advantage (algo.loss awr)

IQL (Kostrikov et al. 2021, arXiv:2110.06169), as in ArCHer: V is an expectile of Q over the stored utterances, so
Q is never evaluated at an utterance that is not in the data. AWAC (Nair et al. 2020, arXiv:2006.09359, algorithm 1): V
is Q of utterances that the policy samples at stored states, so Q - V is how much better a stored utterance is than the
policy's own.
"""

from collections.abc import Sequence

from turnwise.algos.archer import compute_advantages
from turnwise.core.learner import Learner
from turnwise.core.trajectory import Group
from turnwise.data.replay import Replay
from turnwise.training.archer import (
    ActorSettings,
    FreshUtterance,
    UtteranceSampler,
    build_estimate,
    calibrate,
    decisions_of,
    draw_batches,
    draw_states,
    effective_share,
    fit_unit,
    scale_advantages,
    train_critic,
    usable_trajectories,
)
from turnwise.training.estimate import Estimate
from turnwise.training.utterance_critic import UtteranceCriticLearner


class OfflineArcher:
    def __init__(
        self,
        *,
        settings: ActorSettings,
        critic: UtteranceCriticLearner,
        replay: Replay,
        sampler: UtteranceSampler | None = None,
    ) -> None:
        """`replay`: the stored episodes, which stay as they are. `sampler`: lets the policy act at their states."""
        self.settings, self.critic, self.replay, self.sampler = settings, critic, replay, sampler

    async def sample_fresh_utterances(self, step: int, groups: Sequence[Group]) -> list[FreshUtterance]:
        """Return the policy's utterances at stored states; nothing without a sampler."""
        if self.sampler is None:
            return []
        return await self.sampler.sample(draw_states(self.replay, self.settings, step), step)

    def estimate(
        self, step: int, groups: Sequence[Group], fresh: Sequence[FreshUtterance], learner: Learner
    ) -> Estimate | None:
        """Train the critic; return the advantages of the utterances in the step's episodes. None if there are none."""
        settings = self.settings
        trajectories = usable_trajectories(groups, settings.algo)
        if not trajectories:
            return None
        stored = decisions_of(trajectories, settings.algo)
        fit_unit(self.critic, stored)
        metrics = train_critic(self.critic, draw_batches(self.replay, settings, step), fresh, step)
        estimates = self.critic.estimate_values(stored.samples)
        metrics |= calibrate(estimates, stored)
        metrics["effective_samples"] = effective_share(stored.samples, learner, settings.micro_tokens)
        advantages = scale_advantages(compute_advantages(estimates.q, estimates.v), self.critic.std, settings.algo)
        return build_estimate(trajectories, stored.samples, advantages, metrics, settings, learner)

    def rewind(self, step: int) -> None:
        """Do nothing: training adds no episodes."""

    def prune(self, step: int) -> None:
        """Do nothing: training adds no episodes."""
