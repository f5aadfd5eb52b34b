"""Alarms: detect from the history of metrics what is going wrong with a run, in one line each.

Metrics are compared as means over a few steps: now, and at the start or at their peak if they rose first. A metric that
falls because the task is nearly solved raises no alarm, nor do gradients that are as large as at the start or too small
to be clipped.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

REWARD_STD = "rollout/reward_group_std"
FLAT_GROUPS = "rollout/zero_std_groups"
REPETITION = "rollout/repetition"
SUCCESS = "rollout/success"
GROUPS = "rollout/groups"
REWARD = "rollout/reward"
LENGTH = "rollout/response_tokens"
INVALID = "rollout/invalid"
LENGTH_STOPS = "rollout/length_stops"
ACTION_ENTROPY = "rollout/action_entropy"
ENTROPY = "train/entropy"
GRAD_NORM = "train/grad_norm"
INFORMATION = "diagnostics/mutual_information"


class StepMetrics(Protocol):
    """Metrics of a training step, of which any may be missing."""

    @property
    def step(self) -> int: ...
    def get(self, name: str) -> float | None: ...


History = Sequence[StepMetrics]
"""Steps, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmSettings:
    window: int = 5
    """Rows per mean."""
    min_rows: int = 10
    """Least number of rows with a metric before it can raise an alarm; mutual information, measured rarely, needs 4."""
    solved: float = 0.9
    """Success rate from which equal rewards and low entropy are expected."""
    near_solved: float = 0.8
    """Lower success rate with the same effect, compared within its standard error, while `kept_success` holds."""
    kept_success: float = 0.85
    """Share of its peak that success must keep."""
    reward_std_share: float = 0.15
    """Echo trap: reward std within groups below this share of its start, or `flat_groups`."""
    flat_groups: float = 0.7
    """Echo trap: share of groups without spread, at least twice that of the start, without a gain in success."""
    entropy_share: float = 0.1
    """Entropy collapse: entropy below this share of its start, where actions are not measured."""
    action_entropy_share: float = 0.3
    """Entropy collapse: entropy of actions below this share of its start."""
    no_signal: float = 0.95
    """No signal: share of groups without spread, in the mean over all steps."""
    invalid_turns: float = 0.9
    """Invalid turns: their share."""
    gradient_factor: float = 10.0
    """Gradient spike: multiple of the medians of the last `gradient_rows` and the first `min_rows`."""
    gradient_rows: int = 20
    max_grad_norm: float = 1.0
    """Norm at which gradients are clipped; a smaller one is never a spike."""
    length_factor: float = 3.0
    """Length explosion: multiple of the length at the start, without more success."""
    hacked_success: float = 0.5
    """Hacked reward: success below this share of its start while reward rises by `hacked_rise`."""
    hacked_rise: float = 0.5
    """Rise of the reward, as a share of the initial std within groups."""
    information_share: float = 0.3
    """Template collapse: mutual information below this share of its start at high entropy."""
    high_entropy_share: float = 0.5
    """Share of its start that entropy must keep to count as high."""
    min_information: float = 0.1
    """Least mutual information in nats; below it the prompts hardly differ and there is no alarm."""
    hysteresis: float = 1.5
    """An alarm clears when its metric is this factor better than the threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    kind: str
    step: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmState:
    raised: tuple[Alarm, ...]
    """Alarms raised by the last row."""
    active: frozenset[str]
    """Alarms that hold now; pass them to the next call, so that each is raised once until it clears."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """Means of a metric over a window: at the start, at the peak, and now."""

    start: float
    highest: float
    highest_step: int
    now: float

    @property
    def reference(self) -> float:
        """Reference of a fall: the start, or the peak of a metric that at least doubled."""
        return self.highest if self.highest > 2 * self.start else self.start

    @property
    def reference_name(self) -> str:
        return "its start" if self.reference == self.start else f"its peak at step {self.highest_step}"

    @property
    def share(self) -> float:
        return self.now / self.reference if self.reference > 0 else 1.0


def check_alarms(history: History, active: frozenset[str], settings: AlarmSettings | None = None) -> AlarmState:
    """Evaluate the last row of the history. Pure: the caller keeps `active`."""
    if not history:
        return AlarmState(raised=(), active=active)
    settings = settings or AlarmSettings()
    raised, holding = [], set()
    for kind, detect in DETECTORS.items():
        message = detect(history, settings, settings.hysteresis if kind in active else 1.0)
        if message is None:
            continue
        holding.add(kind)
        if kind not in active:
            step = history[-1].step
            raised.append(Alarm(kind=kind, step=step, message=f"{message}; step {step}"))
    return AlarmState(raised=tuple(raised), active=frozenset(holding))


def echo_trap(history: History, settings: AlarmSettings, slack: float) -> str | None:
    """Members of a group get the same reward though the task is unsolved: first the spread falls, then the reward."""
    sign = _less_spread(history, settings, slack) or _flat_groups(history, settings, slack)
    if sign is None or _is_solved(history, settings):
        return None
    if reward_hacked(history, settings, slack) is not None:
        return None  # all members found the same loophole
    alike = _trend(history, REPETITION, settings)
    repeated = f", members share {_percent(alike.now)} of their text" if alike is not None else ""
    return f"{sign}{repeated}: echo trap"


def _less_spread(history: History, settings: AlarmSettings, slack: float) -> str | None:
    spread = _trend(history, REWARD_STD, settings)
    if spread is None or spread.share >= settings.reward_std_share * slack:
        return None
    return f"reward std within groups fell to {_percent(spread.share)} of {spread.reference_name}"


def _flat_groups(history: History, settings: AlarmSettings, slack: float) -> str | None:
    """A few groups with spread can keep the mean up while all others have nothing left to learn from."""
    flat = _trend(history, FLAT_GROUPS, settings)
    if flat is None or flat.now < settings.flat_groups / slack or flat.now < 2 * flat.start:
        return None
    if _has_gained(history, settings):
        return None
    return f"all rewards are equal in {_percent(flat.now)} of the groups, up from {_percent(flat.start)}"


def reward_hacked(history: History, settings: AlarmSettings, slack: float) -> str | None:
    """Reward rises while success falls. Without any success at the start there is nothing to compare."""
    reward, success = _trend(history, REWARD, settings), _trend(history, SUCCESS, settings)
    spread = _trend(history, REWARD_STD, settings)
    if reward is None or success is None or spread is None or success.start <= 0:
        return None
    rose = reward.now - reward.start >= settings.hacked_rise / slack * spread.start > 0
    if not rose or success.now >= settings.hacked_success * slack * success.start:
        return None
    return (
        f"reward rose from {reward.start:.2f} to {reward.now:.2f} while success fell from {_percent(success.start)} to "
        f"{_percent(success.now)}: reward hacking"
    )


def no_signal(history: History, settings: AlarmSettings, slack: float) -> str | None:
    """From the start on, all members of a group get the same reward."""
    flat = [share for _, share in _series(history, FLAT_GROUPS)]
    if len(flat) < settings.min_rows or statistics.fmean(flat) < settings.no_signal / slack:
        return None
    if _is_solved(history, settings):
        return None
    share = _percent(statistics.fmean(flat))
    return f"all rewards are equal in {share} of the groups since the start: nothing to learn from"


def invalid_turns(history: History, settings: AlarmSettings, slack: float) -> str | None:
    """The environment cannot read the replies, or they are cut before it could."""
    invalid, cut = _trend(history, INVALID, settings), _trend(history, LENGTH_STOPS, settings)
    if invalid is None or invalid.now < settings.invalid_turns / slack:
        return None
    stops = cut is not None and cut.now >= settings.invalid_turns / slack
    why = f", and {_percent(cut.now)} are cut at rollout.max_new_tokens" if cut is not None and stops else ""
    return f"{_percent(invalid.now)} of the turns are invalid{why}"


def entropy_collapse(history: History, settings: AlarmSettings, slack: float) -> str | None:
    """The policy no longer explores.

    Where actions are measured, theirs is the entropy that counts: that of tokens falls with the text around them.
    """
    actions, tokens = _trend(history, ACTION_ENTROPY, settings), _trend(history, ENTROPY, settings)
    trend, bound = (tokens, settings.entropy_share) if actions is None else (actions, settings.action_entropy_share)
    if trend is None or trend.share >= bound * slack or _is_solved(history, settings):
        return None
    what = "entropy" if actions is None else "entropy of actions"
    return f"{what} fell to {_percent(trend.share)} of {trend.reference_name}: the policy no longer explores"


def gradient_spike(history: History, settings: AlarmSettings, slack: float) -> str | None:
    """The point of no return of an echo trap; a non-finite norm counts as a spike in any row."""
    norms = [norm for _, norm in _series(history, GRAD_NORM)]
    if norms and not math.isfinite(norms[-1]):
        return "the gradient is not finite: an optimizer step was skipped"
    before = [norm for norm in norms[:-1] if math.isfinite(norm)]
    if len(norms) < settings.min_rows or not before:
        return None
    recent, first = before[-settings.gradient_rows :], before[: settings.min_rows]
    usual = max(statistics.median(recent), statistics.median(first))
    if usual <= 0 or norms[-1] <= max(settings.gradient_factor / slack * usual, settings.max_grad_norm):
        return None
    return f"gradient norm {norms[-1]:.3g} is {norms[-1] / usual:.0f} times its usual {usual:.3g}: a spike"


def length_explosion(history: History, settings: AlarmSettings, slack: float) -> str | None:
    """Responses get longer without more success."""
    length = _trend(history, LENGTH, settings)
    if length is None or length.start <= 0 or length.now <= settings.length_factor / slack * length.start:
        return None
    if _is_solved(history, settings) or _has_gained(history, settings):
        return None
    return f"responses are {length.now / length.start:.1f} times as long as at the start without more success"


def template_collapse(history: History, settings: AlarmSettings, slack: float) -> str | None:
    """High entropy with low mutual information: varied text that no longer depends on the prompt."""
    information = _trend(history, INFORMATION, settings, window=2, min_rows=4)
    entropy = _trend(history, ENTROPY, settings)
    if information is None or entropy is None or information.reference < settings.min_information:
        return None
    dependent = information.share >= settings.information_share * slack
    quiet = entropy.share < settings.high_entropy_share
    if dependent or quiet or _is_solved(history, settings):
        return None
    return (
        f"mutual information of prompt and reasoning fell to {_percent(max(0.0, information.share))} of "
        f"{information.reference_name} at {_percent(entropy.share)} of the entropy: template collapse"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _is_solved(history: History, settings: AlarmSettings) -> bool:
    """Solved by success or, if success is never reported, by a reward that rose clearly and stayed up.

    Near the ceiling a task is solved by all members or by none: the spread vanishes before success is 1, and success
    varies like that of a few independent groups.
    """
    success = _trend(history, SUCCESS, settings)
    if success is not None and success.highest > 0:
        error = _error_of(history, success.now, settings)
        keeps_up = success.now + error >= settings.kept_success * (success.highest - error)
        return (success.now + error >= settings.near_solved and keeps_up) or success.now >= settings.solved
    reward, spread = _trend(history, REWARD, settings), _trend(history, REWARD_STD, settings)
    if reward is None or spread is None:
        return False
    rise = reward.highest - reward.start
    return rise >= 0.5 * spread.reference > 0 and reward.now >= reward.start + 0.75 * rise


def _error_of(history: History, rate: float, settings: AlarmSettings) -> float:
    """Return two standard errors of the mean over a window, with members of a group fully correlated.

    0 if the number of groups is unknown.
    """
    groups = sum(count for _, count in _series(history[-settings.window :], GROUPS))
    return 2 * math.sqrt(max(0.0, rate * (1 - rate)) / groups) if groups > 0 else 0.0


def _has_gained(history: History, settings: AlarmSettings) -> bool:
    success, reward = _trend(history, SUCCESS, settings), _trend(history, REWARD, settings)
    if success is not None and success.highest > 0:
        return success.now > success.start + 0.05
    spread = _trend(history, REWARD_STD, settings)
    return reward is not None and spread is not None and reward.now > reward.start + 0.25 * spread.reference


def _trend(
    history: History, key: str, settings: AlarmSettings, *, window: int | None = None, min_rows: int | None = None
) -> Trend | None:
    points = [(step, value) for step, value in _series(history, key) if math.isfinite(value)]
    width = settings.window if window is None else window
    if len(points) < max(settings.min_rows if min_rows is None else min_rows, width):
        return None
    values = [value for _, value in points]
    means = [statistics.fmean(values[end - width : end]) for end in range(width, len(values) + 1)]
    top = max(range(len(means)), key=means.__getitem__)
    return Trend(start=means[0], highest=means[top], highest_step=points[top + width - 1][0], now=means[-1])


def _series(history: History, key: str) -> list[tuple[int, float]]:
    """Return (step, value) of the steps that have this metric."""
    return [(metrics.step, value) for metrics in history if (value := metrics.get(key)) is not None]


DETECTORS: dict[str, Callable[[History, AlarmSettings, float], str | None]] = {
    "echo_trap": echo_trap,
    "reward_hacked": reward_hacked,
    "no_signal": no_signal,
    "invalid_turns": invalid_turns,
    "entropy_collapse": entropy_collapse,
    "gradient_spike": gradient_spike,
    "length_explosion": length_explosion,
    "template_collapse": template_collapse,
}
