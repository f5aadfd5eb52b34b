"""ArCHer's formulas: a critic of whole utterances, and the weights of the actor (Zhou et al. 2024, arXiv:2402.19446).

A decision is one utterance of an episode: the state s is every token before it, the action a its own tokens, s' the
state of the next utterance. Two critics (i = 1, 2) judge it, each with a target copy (bar) that follows slowly:

    Q_i(s, a) <- r + gamma Vbar_i(s')                     TD over turns; 0 after the last one
    V_i(s)    <- Qbar_i(s, a'), a' sampled by the policy  states may be old, actions are the policy's own
    A(s, a)   =  min_i Q_i(s, a) - min_i V_i(s)           clipped double Q (Fujimoto et al. 2018, arXiv:1802.09477)

Offline there are only the data's actions. V is then an upper expectile of Q over them, and the actor imitates good
actions more than bad ones (implicit Q-learning, IQL: Kostrikov et al. 2021, arXiv:2110.06169).
"""

import torch
from torch import Tensor

from turnwise.algos.diagnostics import explained_variance


def compute_q_targets(rewards: Tensor, discounts: Tensor, next_values: Tensor) -> Tensor:
    """Return r + gamma Vbar_i(s') for each decision and critic. [D, 2]

    `discounts` [D]: gamma, or 0 where the episode ended. `next_values` [D, 2]: of the target critics.
    """
    return rewards[:, None] + discounts[:, None] * next_values


def expectile_loss(differences: Tensor, expectile: float) -> Tensor:
    """|expectile - 1(u < 0)| u^2 with u = Q - V, element by element (IQL, equation 5).

    0.5 is half the squared error; above it a V below Q costs more than one above, so V tends to the best actions' Q.
    """
    weights = torch.where(differences < 0, 1 - expectile, expectile)
    return weights * differences.square()


def compute_advantages(q_values: Tensor, values: Tensor) -> Tensor:
    """Return min_i Q_i - min_i V_i of each decision: [D, 2] and [D, 2] -> [D]."""
    return q_values.amin(dim=1) - values.amin(dim=1)


def calibration_metrics(q_values: Tensor, values: Tensor, returns: Tensor) -> dict[str, float]:
    """Compare both estimates of decisions with the discounted returns that followed. [D, 2], [D, 2], [D]

    Meaningful for decisions of the current policy that the critic has not been trained on yet.
    """
    q, v = q_values.amin(dim=1), values.amin(dim=1)
    found = {
        "q_mean": float(q.mean()),
        "v_mean": float(v.mean()),
        "return_mean": float(returns.mean()),
        "overestimation": float((q - returns).mean()),
        "q_error": float((q - returns).square().mean().sqrt()),
        "v_error": float((v - returns).square().mean().sqrt()),
    }
    explained = {"q_explained": explained_variance(q, returns), "v_explained": explained_variance(v, returns)}
    return found | {name: value for name, value in explained.items() if value is not None}
