"""Advantages: how much better than expected each sampled token turned out, by the name of the estimator."""

from turnwise.algos.advantage_types import Advantage, AdvantageInputs, AdvantageParams, AdvantageResult
from turnwise.algos.critic_advantages import bi_level_gae, gae, step_gae, turn_gae
from turnwise.algos.group_advantages import dr_grpo, gpg, grpo, opo, pass_at_k, reinforce_pp_baseline, rloo
from turnwise.algos.return_advantages import arpo, brpo, reinforce, reinforce_pp, remax
from turnwise.algos.step_advantages import gigpo, turn_grpo

__all__ = ["ADVANTAGES", "Advantage", "AdvantageInputs", "AdvantageParams", "AdvantageResult"]

ADVANTAGES: dict[str, Advantage] = {
    # with a critic
    "gae": Advantage(compute=gae, along_tokens=True, needs_critic=True, reads=("gamma", "lam", "whiten")),
    "turn_gae": Advantage(
        compute=turn_gae,
        along_tokens=True,
        needs_critic=True,
        reads=("gamma_turn", "lam_turn", "whiten", "whiten_over"),
    ),
    "step_gae": Advantage(
        compute=step_gae,
        along_tokens=True,
        needs_critic=True,
        reads=("gamma_turn", "lam_turn", "whiten", "whiten_over"),
    ),
    "bi_level_gae": Advantage(
        compute=bi_level_gae,
        along_tokens=True,
        needs_critic=True,
        reads=("gamma", "lam", "gamma_turn", "lam_turn", "whiten"),
    ),
    # within a group
    "grpo": Advantage(compute=grpo, needs_groups=True, reads=("epsilon",)),
    "dr_grpo": Advantage(compute=dr_grpo, needs_groups=True),
    "rloo": Advantage(compute=rloo, needs_groups=True),
    "opo": Advantage(compute=opo, needs_groups=True),
    "gpg": Advantage(compute=gpg, needs_groups=True),
    "pass_at_k": Advantage(compute=pass_at_k, needs_groups=True, reads=("by_std", "epsilon")),
    "reinforce_pp_baseline": Advantage(compute=reinforce_pp_baseline, needs_groups=True),
    # within a group, turn by turn
    "gigpo": Advantage(
        compute=gigpo,
        needs_groups=True,
        needs_states=True,
        reads=("gamma_turn", "episode_weight", "step_weight", "by_std", "epsilon"),
    ),
    "turn_grpo": Advantage(compute=turn_grpo, needs_groups=True, reads=("outcome_weight", "by_std", "epsilon")),
    # neither
    "reinforce": Advantage(compute=reinforce, along_tokens=True, reads=("gamma", "gamma_turn")),
    "reinforce_pp": Advantage(
        compute=reinforce_pp, along_tokens=True, outcome_less_kl=True, reads=("gamma", "gamma_turn")
    ),
    "remax": Advantage(compute=remax, along_tokens=True, needs_greedy=True),
    "arpo": Advantage(compute=arpo),
    "brpo": Advantage(compute=brpo, reads=("epsilon",)),
}
