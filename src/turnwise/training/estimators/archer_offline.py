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
from turnwise.data.replay import Replay
from turnwise.record.steps import IdleReason
from turnwise.training.estimators.archer import (
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
from turnwise.training.estimators.utterance_critic import UtteranceCriticLearner
from turnwise.training.step import Estimate, Rollout


class OfflineArcher:
    """Trains a critic of stored utterances; the actor follows its judgement of them."""

    trains = True

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
        self.setting = settings.algo.source_of_advantages

    async def sample(self, rollout: Rollout) -> list[FreshUtterance]:
        """Return the policy's utterances at stored states; nothing without a sampler."""
        if self.sampler is None:
            return []
        return await self.sampler.sample(draw_states(self.replay, self.settings, rollout.number), rollout.number)

    def estimate(self, rollout: Rollout, sampled: Sequence[FreshUtterance], learner: Learner) -> Estimate | IdleReason:
        """Train the critic; return the advantages of the utterances in the step's episodes."""
        settings, step = self.settings, rollout.number
        trajectories = usable_trajectories(rollout.groups, settings.algo)
        if not trajectories:
            return IdleReason.NO_UTTERANCES
        stored = decisions_of(trajectories, settings)
        fit_unit(self.critic, stored)
        metrics = train_critic(self.critic, draw_batches(self.replay, settings, step), sampled, step)
        estimates = self.critic.estimate_values(stored.samples)
        metrics |= calibrate(estimates, stored)
        metrics["effective_samples"] = effective_share(stored.samples, learner, settings.micro_tokens)
        advantages = compute_advantages(estimates.q, estimates.v)
        advantages = scale_advantages(advantages, self.critic.std, whitened=settings.archer.whiten)
        return build_estimate(trajectories, stored.samples, advantages, metrics, settings, learner)
