"""Every estimator by its definition: plain Python over lists of tokens, sums written out, no recursion, no tensors."""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from torch import Tensor

from turnwise.algos.advantage_types import Advantage, AdvantageInputs
from turnwise.algos.advantages import Brpo, Gigpo, Grpo, PassAtK, Reinforce, TurnGrpo
from turnwise.algos.gae import BiLevelGae, Gae, TurnLevelGae

Numbers = list[list[float]]
"""One number for each sampled token, row by row."""


@dataclass(frozen=True)
class Token:
    reward: float
    value: float
    turn: int
    state: int


@dataclass(frozen=True)
class Row:
    tokens: list[Token]
    group: int
    bootstrap: float
    baseline: float

    @property
    def turns(self) -> list[list[Token]]:
        return [list(tokens) for _, tokens in groupby(self.tokens, key=lambda token: token.turn)]

    @property
    def total(self) -> float:
        return earned(self.tokens)


def earned(tokens: list[Token]) -> float:
    return sum(token.reward for token in tokens)


def rows_in(inputs: AdvantageInputs) -> list[Row]:
    assert inputs.values is not None and inputs.state_ids is not None
    assert inputs.bootstrap is not None and inputs.greedy_returns is not None
    matrices = (inputs.token_rewards, inputs.values, inputs.turn_ids, inputs.state_ids)
    rows = []
    for row, mask in enumerate(inputs.mask):
        columns = [matrix[row][mask].tolist() for matrix in matrices]
        tokens = [Token(*cells) for cells in zip(*columns, strict=True)]
        last, greedy = inputs.bootstrap[row].item(), inputs.greedy_returns[row].item()
        rows.append(Row(tokens, int(inputs.group_ids[row]), last, greedy))
    return rows


def lambda_sums(rewards: list[float], values: list[float], last: float, gamma: float, lam: float) -> list[float]:
    """A_i = sum over j >= i of (gamma lambda)^(j - i) delta_j."""
    following = [*values, last][1:]
    deltas = [r + gamma * after - v for r, v, after in zip(rewards, values, following, strict=True)]
    return [sum((gamma * lam) ** (j - i) * deltas[j] for j in range(i, len(deltas))) for i in range(len(deltas))]


def gae(rows: list[Row], settings: Gae) -> Numbers:
    return [
        lambda_sums(
            [t.reward for t in row.tokens], [t.value for t in row.tokens], row.bootstrap, settings.gamma, settings.lam
        )
        for row in rows
    ]


def turn_advantages(row: Row, rewards: list[float], at: int, settings: TurnLevelGae | BiLevelGae) -> list[float]:
    values = [turn[at].value for turn in row.turns]
    return lambda_sums(rewards, values, row.bootstrap, settings.gamma_turn, settings.lam_turn)


def on_turns(row: Row, numbers: list[float]) -> list[float]:
    return [number for number, turn in zip(numbers, row.turns, strict=True) for _ in turn]


def turn_gae(rows: list[Row], settings: TurnLevelGae, at: int = -1) -> Numbers:
    return [on_turns(row, turn_advantages(row, [earned(turn) for turn in row.turns], at, settings)) for row in rows]


def step_gae(rows: list[Row], settings: TurnLevelGae) -> Numbers:
    return turn_gae(rows, settings, at=0)


def inside_turn(turn: list[Token], last: float, settings: BiLevelGae) -> list[float]:
    """The sums of the deltas up to the turn's last token, and what is left of its own advantage."""
    decay, end = settings.gamma * settings.lam, len(turn) - 1
    deltas = [turn[i].reward + settings.gamma * turn[i + 1].value - turn[i].value for i in range(end)]
    return [
        sum(decay ** (j - i) * deltas[j] for j in range(i, end)) + decay ** (end - i) * last for i in range(end + 1)
    ]


def bi_level_gae(rows: list[Row], settings: BiLevelGae) -> Numbers:
    out = []
    for row in rows:
        ends = turn_advantages(row, [turn[-1].reward for turn in row.turns], -1, settings)
        parts = [inside_turn(turn, last, settings) for turn, last in zip(row.turns, ends, strict=True)]
        out.append([number for part in parts for number in part])
    return out


def reinforce(rows: list[Row], settings: Reinforce) -> Numbers:
    def onwards(row: Row, i: int) -> float:
        place = on_turns(row, [float(number) for number in range(len(row.turns))])
        discount = [settings.gamma ** (j - i) * settings.gamma_turn ** (place[j] - place[i]) for j in range(len(place))]
        return sum(discount[j] * row.tokens[j].reward for j in range(i, len(row.tokens)))

    return [[onwards(row, i) for i in range(len(row.tokens))] for row in rows]


def whitened(numbers: Numbers, counted: Callable[[int], bool] = lambda row: True) -> Numbers:
    """Over all tokens of the rows that count; the others get 0."""
    tokens = [number for row, each in enumerate(numbers) for number in each if counted(row)]
    if not tokens:
        return [[0.0] * len(each) for each in numbers]
    mean = statistics.fmean(tokens)
    variance = statistics.variance(tokens, mean) if len(tokens) > 1 else 0.0
    return [
        [(number - mean) / math.sqrt(variance + 1e-8) if counted(row) else 0.0 for number in each]
        for row, each in enumerate(numbers)
    ]


def reinforce_pp(rows: list[Row], settings: Reinforce) -> Numbers:
    return whitened(reinforce(rows, settings))


def remax(rows: list[Row], settings: Advantage) -> Numbers:
    return [[earned(row.tokens[i:]) - row.baseline for i in range(len(row.tokens))] for row in rows]


def on_rows(rows: list[Row], number: Callable[[Row, list[float]], float], whole_batch: bool = False) -> Numbers:
    """number(row, returns of its group) on all tokens; 0 for one that is alone."""
    out = []
    for row in rows:
        peers = [each.total for each in rows if each.tokens and (whole_batch or each.group == row.group)]
        out.append([number(row, peers) if len(peers) > 1 else 0.0] * len(row.tokens))
    return out


EPSILON = 1e-6


def norm(x: float, peers: list[float], by_std: bool = True) -> float:
    if max(peers) - min(peers) < 1e-9:
        return 0.0
    centred = x - statistics.fmean(peers)
    return centred / (statistics.stdev(peers) + EPSILON) if by_std else centred


def arpo(rows: list[Row], settings: Advantage) -> Numbers:
    return [[row.total] * len(row.tokens) for row in rows]


def brpo(rows: list[Row], settings: Brpo) -> Numbers:
    return on_rows(rows, lambda row, peers: norm(row.total, peers), whole_batch=True)


def grpo(rows: list[Row], settings: Grpo) -> Numbers:
    return on_rows(rows, lambda row, peers: norm(row.total, peers))


def dr_grpo(rows: list[Row], settings: Advantage) -> Numbers:
    return on_rows(rows, lambda row, peers: row.total - statistics.fmean(peers))


def rloo(rows: list[Row], settings: Advantage) -> Numbers:
    return on_rows(rows, lambda row, peers: row.total - (sum(peers) - row.total) / (len(peers) - 1))


def opo(rows: list[Row], settings: Advantage) -> Numbers:
    def number(row: Row, peers: list[float]) -> float:
        members = [each for each in rows if each.group == row.group]
        tokens = sum(len(each.tokens) for each in members)
        return row.total - sum(len(each.tokens) * each.total for each in members) / tokens

    return on_rows(rows, number)


def gpg(rows: list[Row], settings: Advantage) -> Numbers:
    sampled = [row for row in rows if row.tokens]
    scale = len(sampled) / max(1, sum(row.total != 0 for row in sampled))
    return on_rows(rows, lambda row, peers: scale * (row.total - statistics.fmean(peers)))


def pass_at_k(rows: list[Row], settings: PassAtK) -> Numbers:
    def number(row: Row, peers: list[float]) -> float:
        second, best = sorted(peers)[-2:]
        gap = best - second if row.total == best else 0.0
        return gap / (statistics.stdev(peers) + EPSILON) if settings.by_std else gap

    return on_rows(rows, number)


def reinforce_pp_baseline(rows: list[Row], settings: Advantage) -> Numbers:
    sizes = [sum(1 for each in rows if each.tokens and each.group == row.group) for row in rows]
    return whitened(dr_grpo(rows, settings), lambda row: sizes[row] > 1)


def outcomes(rows: list[Row], settings: Gigpo | TurnGrpo) -> list[float]:
    numbers = on_rows(rows, lambda row, peers: norm(row.total, peers, settings.by_std))
    return [each[0] if each else 0.0 for each in numbers]


def gigpo(rows: list[Row], settings: Gigpo) -> Numbers:
    steps: dict[tuple[int, int], list[float]] = {}
    returns, out = [], []
    for row in rows:
        rewards = [earned(turn) for turn in row.turns]
        returns.append(
            [
                sum(settings.gamma_turn ** (j - k) * rewards[j] for j in range(k, len(rewards)))
                for k in range(len(rewards))
            ]
        )
        for turn, onwards in zip(row.turns, returns[-1], strict=True):
            steps.setdefault((row.group, turn[0].state), []).append(onwards)
    sizes = [sum(1 for each in rows if each.tokens and each.group == row.group) for row in rows]
    for row, onwards, episode, size in zip(rows, returns, outcomes(rows, settings), sizes, strict=True):
        numbers = []
        for turn, x in zip(row.turns, onwards, strict=True):
            peers, known = steps[row.group, turn[0].state], turn[0].state >= 0 and size > 1
            step = norm(x, peers, settings.by_std) if known else 0.0
            numbers.append(episode + settings.step_weight * step)
        out.append(on_turns(row, numbers))
    return out


def turn_grpo(rows: list[Row], settings: TurnGrpo) -> Numbers:
    at_turn: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        for turn in row.turns:
            at_turn.setdefault((row.group, turn[0].turn), []).append(earned(turn))
    out = []
    for row, outcome in zip(rows, outcomes(rows, settings), strict=True):
        own = [norm(earned(t), at_turn[row.group, t[0].turn], settings.by_std) for t in row.turns]
        weight = settings.outcome_weight
        out.append(on_turns(row, [(1 - weight) * each + weight * outcome for each in own]))
    return out


def clone(rows: list[Row], settings: Advantage) -> Numbers:
    return [[1.0 for _ in row.tokens] for row in rows]


def preference(rows: list[Row], settings: Advantage) -> Numbers:
    totals = [row.total for row in rows]
    marks = [0.0] * len(rows)
    for group in {row.group for row in rows}:
        members = [at for at, row in enumerate(rows) if row.group == group and row.tokens]
        if len({round(totals[at], 9) for at in members}) > 1:
            marks[max(members, key=lambda at: (totals[at], -at))] = 1.0
            marks[min(members, key=lambda at: (totals[at], at))] = -1.0
    return [[mark for _ in row.tokens] for row, mark in zip(rows, marks, strict=True)]


DEFINITIONS: dict[str, Callable[[list[Row], Any], Numbers]] = {
    "gae": gae,
    "turn_gae": turn_gae,
    "step_gae": step_gae,
    "bi_level_gae": bi_level_gae,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "opo": opo,
    "gpg": gpg,
    "pass_at_k": pass_at_k,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "gigpo": gigpo,
    "turn_grpo": turn_grpo,
    "reinforce": reinforce,
    "reinforce_pp": reinforce_pp,
    "remax": remax,
    "arpo": arpo,
    "brpo": brpo,
    "clone": clone,
    "preference": preference,
}


def by_definition(advantage: Advantage, inputs: AdvantageInputs) -> Tensor:
    """[B, T], 0 where the mask is 0."""
    name = advantage.name
    assert name in DEFINITIONS, f"Add {name} to DEFINITIONS in tests/algos/advantage_definitions_for_tests.py."
    numbers = DEFINITIONS[name](rows_in(inputs), advantage)
    flat = inputs.token_rewards.new_tensor([number for row in numbers for number in row])
    return inputs.token_rewards.new_zeros(inputs.mask.shape).masked_scatter(inputs.mask, flat)
