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


def utterance_value_loss(differences: Tensor, expectile: float | None) -> Tensor:
    """u^2 with u = Qbar - V, element by element (ArCHer); with an expectile |expectile - 1(u < 0)| u^2 (IQL, eq. 5).

    Above 0.5 a V below Q costs more than one above, so V tends to the best actions' Q.
    """
    if expectile is None:
        return differences.square()
    weights = torch.where(differences < 0, 1 - expectile, expectile)
    return weights * differences.square()


def compute_advantages(q_values: Tensor, values: Tensor) -> Tensor:
    """Return min_i Q_i - min_i V_i of each decision: [D, 2] and [D, 2] -> [D]."""
    return q_values.amin(dim=1) - values.amin(dim=1)


def estimate_improvement(q_played: Tensor, q_fresh: Tensor, residuals: Tensor, episodes: Tensor) -> tuple[float, float]:
    """Return how much the policy improves per small step along Q, and the standard error of this estimate.

    In a state the policy chose `a`, after which the return G followed, and another draw of it is `a'`. Then

        E[(Q(s, a) - Q(s, a')) (G - b(s))] = E_s Cov_a(Q(s, a), Q^pi(s, a))    for any baseline b

    which is the policy advantage, to first order, of raising each probability in proportion to Q (Kakade and Langford
    2002). Errors of Q that depend on the state alone cancel, as they do in the actor's gradient. All inputs are [D];
    `residuals` are G - b(s), and the decisions of one of the `episodes` are not independent. Both are 0 without any.
    """
    if not len(residuals):
        return 0.0, 0.0
    products = ((q_played - q_fresh) * residuals).double()
    mean, numbers = products.mean(), episodes.unique(return_inverse=True)[1]
    sums = torch.zeros(int(numbers.max()) + 1, dtype=torch.float64).index_add(0, numbers, products - mean)
    return float(mean), float(sums.square().sum().sqrt() / len(products))


def compute_trust(improvement: float, error: float) -> float:
    """Return the factor by which an estimate is shrunk towards 0: 1 - (error / estimate)^2, at least 0.

    The positive part of James and Stein's estimator (Baranchik 1970), in one dimension. 0 for what is not above its
    own error.
    """
    return 0.0 if improvement <= error else 1 - (error / improvement) ** 2


def correct_by_returns(played: Tensor, fresh: Tensor, residuals: Tensor, trust: float) -> tuple[Tensor, Tensor]:
    """Return the advantages of fresh and of played utterances in the same states. All [N].

        fresh    eta A(s, a')                        what the critic says
        played   G - V(s) - eta A(s, a)              what happened and the critic did not say

    Their sum has the expected gradient of G - V alone, whatever A and eta are, since a and a' are drawn alike: the
    critic lowers the variance and cannot mislead the actor (Q-Prop: Gu et al. 2017, arXiv:1611.02247, equation 8, with
    a sampled action for their linear expansion; eta is 0 unless A agrees with what happened, as in its conservative
    variant). ArCHer's own actor is the first line alone with eta 1.
    """
    return trust * fresh, residuals - trust * played


def calibration_metrics(q_values: Tensor, values: Tensor, returns: Tensor) -> dict[str, float]:
    """Compare both estimates of decisions with the discounted returns that followed. [D, 2], [D, 2], [D]

    Meaningful for decisions of the current policy that the critic has not been trained on yet.
    """
    q, v = q_values.amin(dim=1), values.amin(dim=1)
    metrics = {
        "q_mean": float(q.mean()),
        "v_mean": float(v.mean()),
        "return_mean": float(returns.mean()),
        "overestimation": float((q - returns).mean()),
        "q_error": float((q - returns).square().mean().sqrt()),
        "v_error": float((v - returns).square().mean().sqrt()),
    }
    explained = {"q_explained": explained_variance(q, returns), "v_explained": explained_variance(v, returns)}
    return metrics | {name: value for name, value in explained.items() if value is not None}
