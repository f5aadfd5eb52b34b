"""Run advantages, normalisation and placement against the golden records, by the record's algorithm."""

from collections.abc import Callable
from typing import Any

import torch
from choices_for_tests import choose
from golden_for_tests import Arrays, Record, arrays_of, close, close_all
from torch import Tensor

from turnwise.algos.advantage_types import AdvantageInputs, AdvantageResult
from turnwise.algos.advantages import ADVANTAGES
from turnwise.algos.normalisation import NORMALISATIONS, scale_process_rewards
from turnwise.algos.stats import STD_FLOOR

RECORD_SCOPES = {"state": "group", "inductive": "environment", "batch": "batch"}


def advantage(name: str, arrays: Arrays, **settings: Any) -> AdvantageResult:
    """Only what the estimator says it needs is given to it."""
    chosen = choose(ADVANTAGES, name, **settings)
    inputs = AdvantageInputs(
        mask=arrays["mask"],
        token_rewards=arrays["token_rewards"],
        group_ids=arrays.get("group_ids", torch.zeros(arrays["mask"].shape[0], dtype=torch.int64)),
        turn_ids=arrays.get("turn_id", torch.zeros_like(arrays["mask"], dtype=torch.int64)),
        values=arrays["values"] if chosen.needs_critic else None,
        state_ids=arrays["state_ids"] if chosen.needs_states else None,
        greedy_returns=arrays["baseline"] if chosen.needs_greedy else None,
    )
    return chosen.compute(inputs)


def run_critic(name: str, arrays: Arrays, whitened: bool | str = True, **given: Any) -> dict[str, Tensor]:
    raw = advantage(name, arrays, **given, whiten=False)
    white = advantage(name, arrays, **given, whiten=whitened)
    assert raw.returns is not None and white.returns is not None
    assert torch.equal(raw.returns, white.returns)
    return {"adv_raw": raw.advantages, "adv_whitened": white.advantages, "returns": raw.returns}


def token_gae(record: Record) -> None:
    given = record["params"]
    close_all(record, run_critic("gae", arrays_of(record), gamma=given["gamma"], lam=given["lam"]))


def bilevel_gae(record: Record) -> None:
    """The record has one lambda for both levels."""
    given, lam = record["params"], record["params"]["lam"]
    got = run_critic(
        "bi_level_gae",
        arrays_of(record),
        gamma=given["gamma"],
        lam=lam,
        gamma_turn=given["high_level_gamma"],
        lam_turn=lam,
    )
    close_all(record, got)


def turnwise_gae(record: Record) -> None:
    """The record's critic learns at turn ends alone; turnwise's learns the same number at all of the turn's tokens."""
    arrays, given = arrays_of(record), record["params"]
    got = run_critic("turn_gae", arrays, gamma_turn=given["high_level_gamma"], lam_turn=given["lam"])
    close_all(record, got | {"returns_at_turn_end": torch.where(arrays["turn_end"], got["returns"], 0.0)})


def join_steps(steps: Arrays) -> tuple[Arrays, Tensor, Tensor]:
    """Step rows [N, T] as trajectories, steps side by side in order; and each row's trajectory and first column."""
    width = steps["mask"].shape[1]
    ids, trajectory = steps["traj_ids"].unique(return_inverse=True)
    step = ((trajectory[:, None] == trajectory) & (steps["step_ids"][:, None] > steps["step_ids"])).sum(dim=1)
    joined: Arrays = {"group_ids": torch.zeros(len(ids), dtype=torch.int64)}
    joined["group_ids"][trajectory] = steps["group_ids"]
    tokens = {name: steps[name] for name in ("mask", "token_rewards", "values")}
    tokens["turn_id"] = step[:, None].expand(steps["mask"].shape)
    tokens["state_ids"] = steps["state_ids"][:, None].expand(steps["mask"].shape)
    for name, matrix in tokens.items():
        joined[name] = matrix.new_zeros(len(ids), int(step.max() + 1) * width)
        joined[name][trajectory[:, None], step[:, None] * width + torch.arange(width)] = matrix
    return joined, trajectory, step * width


def step_gae(record: Record) -> None:
    given = record["params"]
    joined, trajectory, column = join_steps(arrays_of(record))
    got = run_critic("step_gae", joined, gamma_turn=given["gamma"], lam_turn=given["lam"])
    keys = {"adv_raw": "step_adv_raw", "adv_whitened": "step_adv", "returns": "step_return"}
    close_all(record, {keys[name]: matrix[trajectory, column] for name, matrix in got.items()})


def step_token_gae(record: Record) -> None:
    steps, given = arrays_of(record), record["params"]
    joined, trajectory, column = join_steps(steps)
    cells = (trajectory[:, None], column[:, None] + torch.arange(steps["mask"].shape[1]))
    got = run_critic("gae", joined, gamma=given["gamma"], lam=given["lam"])
    close_all(record, {name: matrix[cells] for name, matrix in got.items()})


def noconcat_gae(record: Record) -> None:
    """Rows are turns. The record's critic learns at the anchor alone, turnwise's at all of the turn's tokens."""
    steps, given = arrays_of(record), record["params"]
    joined, trajectory, column = join_steps(steps)
    name = {"first": "step_gae", "last": "turn_gae"}[given["anchor"]]
    got = run_critic(name, joined, gamma_turn=given["gamma"], lam_turn=given["lam"], whitened="token")
    keys = {"adv_raw": "row_adv_raw", "adv_whitened": "row_adv_whitened", "returns": "row_return"}
    first = column + steps["mask"].long().argmax(dim=1)
    close_all(record, {keys[key]: matrix[trajectory, first] for key, matrix in got.items()})


def mc_return(record: Record) -> None:
    """One token a turn."""
    rewards = arrays_of(record)["rewards"][None]
    arrays = {"mask": torch.ones_like(rewards, dtype=torch.bool), "token_rewards": rewards}
    returns = advantage("reinforce", arrays, gamma=record["params"]["gamma"]).advantages
    close_all(record, {"mc_return": returns[0]})


def reinforce_pp(record: Record) -> None:
    arrays, gamma = arrays_of(record), record["params"]["gamma"]
    returns, whitened = (advantage(name, arrays, gamma=gamma).advantages for name in ("reinforce", "reinforce_pp"))
    close_all(record, {"returns": returns, "adv": whitened})


def turn_discounted_return(record: Record) -> None:
    arrays, gamma = arrays_of(record), record["params"]["gamma"]
    close_all(record, {"returns": advantage("reinforce", arrays, gamma_turn=gamma).advantages})


def remax(record: Record) -> None:
    arrays = arrays_of(record)
    advantages = advantage("remax", arrays).advantages
    returns = torch.where(arrays["mask"], advantages + arrays["baseline"][:, None], 0.0)
    close_all(record, {"adv": advantages, "returns": returns})


def of_rows(advantages: Tensor, mask: Tensor) -> Tensor:
    """The one number of each row [B], which must stand on all of its tokens and nowhere else."""
    found = advantages.gather(1, mask.long().argmax(dim=1, keepdim=True))
    found = torch.where(mask.any(dim=1, keepdim=True), found, 0.0)
    assert torch.equal(advantages, torch.where(mask, found, 0.0)), "the same on all of a row's tokens, 0 elsewhere"
    return found[:, 0]


def rows_to_compare(arrays: Arrays) -> tuple[Tensor, Tensor]:
    """Rows that turnwise and the records mean alike, and rows that are alone in their group. [B] bool each

    A row without a sampled token enters no statistic here, and does in the records: its group is left out.
    """
    sampled = arrays["mask"].any(dim=1)
    same_group = arrays["group_ids"][:, None] == arrays["group_ids"]
    alone = (same_group & sampled).sum(dim=1) < 2
    return ~alone & ~(same_group & ~sampled).any(dim=1), alone & sampled


def run_group(name: str, record: Record, arrays: Arrays) -> tuple[Tensor, Tensor]:
    """The advantage of each row, and the rows to compare; asserts turnwise's own rules for the others."""
    given = record.get("params") or {}
    assert given.get("eps", STD_FLOOR) == STD_FLOOR
    got = of_rows(advantage(name, arrays, by_std=given.get("norm_by_std", True)).advantages, arrays["mask"])
    compared, alone = rows_to_compare(arrays)
    assert (got[alone] == 0).all(), "a group of one has advantage 0"
    return got, compared


def group_estimator(name: str) -> Callable[[Record], None]:
    def run(record: Record) -> None:
        got, compared = run_group(name, record, arrays_of(record))
        for key, expected in record["expected"].items():
            close(record, got[compared], torch.tensor(expected, dtype=torch.float64)[compared], key)

    return run


def gpg(record: Record) -> None:
    """The record's B counts rows without a sampled token, ours does not: there the plain part is compared."""
    arrays, alpha = arrays_of(record), record["expected"]["alpha"]
    got, compared = run_group("gpg", record, arrays)
    sampled = arrays["mask"].any(dim=1).sum().item()
    scale = alpha * sampled / len(got)
    expected = torch.tensor(record["expected"]["seq_adv"], dtype=torch.float64)
    close(record, got[compared] / scale, expected[compared] / alpha, "seq_adv")


def reinforce_pp_baseline(record: Record) -> None:
    """Whitening mixes all rows: where some are not the record's, it is redone on the record's raw rows and ours."""
    arrays, expected = arrays_of(record), record["expected"]
    mask, (compared, alone) = arrays["mask"], rows_to_compare(arrays)
    theirs = torch.tensor(expected["seq_adv_raw"], dtype=torch.float64)
    ours = of_rows(advantage("dr_grpo", arrays).advantages, mask)
    close(record, ours[compared], theirs[compared], "seq_adv_raw")
    got, _ = run_group("reinforce_pp_baseline", record, arrays)
    lengths = torch.where(alone, 0, mask.sum(dim=1))
    raw = torch.where(compared, theirs, ours)
    tokens = raw.repeat_interleave(lengths)
    whitened = (raw - tokens.mean()) / (tokens.var() + 1e-8).sqrt()
    close(record, got[lengths > 0], whitened[lengths > 0], "whitened again")
    if compared.all():
        close(record, got, expected["seq_adv"], "seq_adv")


def traj_grpo(record: Record) -> None:
    joined, trajectory, _ = join_steps(arrays_of(record))
    got, compared = run_group("grpo" if record["params"]["norm_by_std"] else "dr_grpo", record, joined)
    rows = compared[trajectory]
    expected = torch.tensor(record["expected"]["row_adv"], dtype=torch.float64)
    close(record, got[trajectory][rows], expected[rows], "row_adv")


def gigpo(record: Record) -> None:
    """The step part alone: the record's episode part counts an episode once a step, turnwise's once."""
    given, expected = record["params"], record["expected"]
    joined, trajectory, column = join_steps(arrays_of(record))
    rows = rows_to_compare(joined)[0][trajectory]
    assert given["eps"] == STD_FLOOR
    settings = {"gamma_turn": given["gamma"], "by_std": given["method"] == "mean_std"}
    returns = advantage("reinforce", joined, gamma_turn=given["gamma"]).advantages
    both, episodes = (advantage("gigpo", joined, **settings, step_weight=each).advantages for each in (1.0, 0.0))
    for key, matrix in {"discounted_step_return": returns, "step_part": both - episodes}.items():
        theirs = torch.tensor(expected[key], dtype=torch.float64)
        close(record, matrix[trajectory, column][rows], theirs[rows], key)


def ragen_reward_norm(record: Record) -> None:
    arrays = arrays_of(record)
    returns, keys = arrays["rewards"] + arrays["penalties"], [key.split("/") for key in record["expected"]]
    got = {}
    for grouping, name in keys:
        chosen = choose(NORMALISATIONS, name, over=RECORD_SCOPES[grouping])
        got[f"{grouping}/{name}"] = chosen.normalise(returns, arrays["group_ids"], arrays["tags"])
    close_all(record, got)


def prime_norm(record: Record) -> None:
    arrays = arrays_of(record)
    close_all(record, {"token_rewards": scale_process_rewards(arrays["token_rewards"], arrays["mask"])})


ADVANTAGE_RUNNERS: dict[str, Callable[[Record], None]] = {
    "token_gae": token_gae,
    "step_token_gae": step_token_gae,
    "bilevel_gae": bilevel_gae,
    "turnwise_gae": turnwise_gae,
    "step_gae": step_gae,
    "noconcat_gae": noconcat_gae,
    "mc_return": mc_return,
    "turn_discounted_return": turn_discounted_return,
    "grpo": group_estimator("grpo"),
    "dr_grpo_adv": group_estimator("dr_grpo"),
    "opo": group_estimator("opo"),
    "passk": group_estimator("pass_at_k"),
    "gpg_adv": gpg,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "remax": remax,
    "traj_grpo": traj_grpo,
    "gigpo": gigpo,
    "ragen_reward_norm": ragen_reward_norm,
    "prime_norm": prime_norm,
    "rloo": group_estimator("rloo"),
}
