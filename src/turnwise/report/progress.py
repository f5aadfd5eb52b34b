"""Live progress of a training run: redrawn in place on a terminal, one line after another elsewhere.

What is shown of a step is chosen in `record/metrics.toml`.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from turnwise.record.catalogue import SHOWN, Metric
from turnwise.record.steps import EpisodeSource, IdleReason, StepRecord
from turnwise.report.formatting import format_duration, format_metric, format_money
from turnwise.report.terminal import draw_sparkline, sanitize_line

EQUAL_REWARDS = (
    "the members of each group had equal rewards. Use rewards that distinguish them or easier tasks, or raise "
    "rollout.group_size or rollout.temperature"
)


def _no_tokens_in(setting: str, effect: str) -> str:
    return (
        f"{setting} selects none of the sampled tokens, so {effect}. Ask for such text in the prompt, e.g. by "
        f"env.params.reasoning, or change {setting}"
    )


EXPLANATIONS = {
    IdleReason.NO_TOKENS: "all prompts fill rollout.max_tokens, so that no token was sampled. Raise rollout.max_tokens",
    IdleReason.FILTERED: "the filter kept no group. Choose another algo.filter or algo.filter.value",
    IdleReason.DROPPED: "every group that passed the filter lacks its greedy episode, which failed",
    IdleReason.TRUNCATED: "all episodes were truncated, and algo.truncated = drop leaves them out. Raise "
    "rollout.max_tokens",
    IdleReason.NO_UTTERANCES: "no episode of the step has turns that can be trained on: they were truncated, or an "
    "answer is empty. Raise rollout.max_tokens",
    IdleReason.UNTRUSTED_CRITIC: "the critic did not predict the returns, so the policy does not follow it yet",
    IdleReason.LOSS_TOKENS: _no_tokens_in("algo.loss_tokens", "no token is trained"),
    IdleReason.ADVANTAGE_TOKENS: _no_tokens_in("algo.advantage_tokens", "no token has an advantage"),
    IdleReason.DISJOINT_TOKENS: "the gradient was 0, because algo.loss_tokens and algo.advantage_tokens select "
    "different tokens, so no trained token has an advantage. Select the same tokens with both",
    IdleReason.ZERO_ADVANTAGES: f"all advantages were 0, e.g. because {EQUAL_REWARDS}",
    IdleReason.ZERO_GRADIENT: f"the gradient was 0, e.g. because {EQUAL_REWARDS}",
    IdleReason.SKIPPED: "its gradients were not finite, so its optimizer steps were skipped",
}


def explain_step(record: StepRecord) -> str | None:
    """Explain an idle step, or a token mask that selected nothing although a critic or a KL term was trained.

    None for a step that trained as usual.
    """
    if record.idle is not None:
        return f" trained nothing: {EXPLANATIONS[record.idle]}"
    for share, reason in (
        ("loss_token_share", IdleReason.LOSS_TOKENS),
        ("advantage_token_share", IdleReason.ADVANTAGE_TOKENS),
    ):
        if record.training.get(share) == 0:
            return f": {EXPLANATIONS[reason]}"
    return None


def describe_dropped(record: StepRecord) -> str:
    """Return how many episodes of a step were dropped, and the last failure."""
    dropped = int(record.rollout["dropped"])
    total = dropped + int(record.rollout.get("episodes", 0))
    return f"dropped {dropped} of {total} episodes. Last failure: {record.dropped_reason or 'unknown'}"


COLUMNS = tuple(metric for metric in SHOWN if metric.line is not None)
"""Columns of the line, in order."""
SFT_ONLY = {"train/loss", "train/grad_norm"}
SPARKLINE_WIDTH = 48
RECENT_STEPS = 20
"""The remaining time is estimated from this many steps, enough to include an evaluation or two."""


def choose_columns(record: StepRecord) -> list[Metric]:
    """Return the columns that a step has. "dropped" is one if an episode was dropped."""
    if record.source is EpisodeSource.DEMONSTRATIONS:
        return [metric for metric in COLUMNS if metric.name in SFT_ONLY or metric.name.startswith("time/")]
    hidden = SFT_ONLY | ({"rollout/dropped"} if not record.rollout.get("dropped") else set())
    for metric in COLUMNS:
        if metric.replaced_by is not None:
            is_alone = record.get(metric.name) is not None and record.get(metric.replaced_by) is None
            hidden.add(metric.replaced_by if is_alone else metric.name)
    return [metric for metric in COLUMNS if metric.name not in hidden]


def _cells(record: StepRecord) -> list[tuple[str, int, str]]:
    """Return label, width and value of each column."""
    columns = [(metric, metric.line or ("", 0)) for metric in choose_columns(record)]
    return [(label, width, format_metric(metric, record.get(metric.name))) for metric, (label, width) in columns]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressSnapshot:
    title: str
    done: int
    total: int | None
    """Steps of the run; None if they are not known, as in a loop of the user's own."""
    phase: tuple[str, int, int]
    """Name, done and total of the current phase; the name is empty between phases."""
    record: StepRecord
    """The last step; without metrics before the first one."""
    successes: Sequence[float]
    """Success rate of each step so far. Read only."""
    left_s: float | None
    cost: float | None = None
    """So far; None without a price."""


class Progress:
    """Progress of one run.

        with Progress(200, console) as progress:
            progress.begin(0)
            progress.phase("rollout", 120, 256)
            progress.step(record)

    There is no thread. The calls themselves redraw the view, at most a few times per second, so nothing is printed
    after the block, and an exception or Ctrl-C restores the terminal.
    """

    def __init__(
        self,
        total_steps: int | None,
        console: Console,
        *,
        title: str = "training",
        limit_s: float | None = None,
        price_per_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total_steps` is None if it is not known.

        `limit_s`: time limit of the training, counted from `begin`; it may be changed until then. `price_per_s`:
        shows the cost; `earlier_s` are the seconds that a resumed run has already paid for.
        """
        self._console = console
        self._clock = clock
        self._started = clock()
        self.limit_s = limit_s
        self._price_per_s, self.earlier_s = price_per_s, 0.0
        self._created = self._started
        self._step_ends: deque[float] = deque(maxlen=RECENT_STEPS + 1)
        self._title = title
        self._total = total_steps
        self._done = 0
        self._phase = ("", 0, 0)
        self._phase_began = self._started
        self._record = StepRecord(step=0, source=EpisodeSource.PLAYED)
        self._successes: list[float] = []
        self._view: ProgressView = LiveView(console) if console.is_interactive else LineView(console)
        self._drawn = self._started
        self._explained: set[str] = set()
        """Explanations that were printed, each once: of steps without an update, or with an empty token mask."""
        self._explained_drop = False

    def __enter__(self) -> Self:
        self._view.start(self._snapshot())
        return self

    def __exit__(self, *error: object) -> None:
        self._phase = ("", 0, 0)
        self._view.stop(self._snapshot())

    def begin(self, done: int, total: int | None = None, recorded: Sequence[StepRecord] = ()) -> None:
        """Start the clock after the set-up.

        `done`: steps of a resumed run; `recorded`: its steps so far, shown until its next step ends; `total` replaces
        the number of steps.
        """
        self._record = recorded[-1] if recorded else self._record
        rates = (record.rollout.get("success", math.nan) for record in recorded)
        self._successes += [rate for rate in rates if math.isfinite(rate)]
        self._total = self._total if total is None else total
        self._started = self._clock()
        self._step_ends.append(self._started)
        self._done = done

    def phase(self, name: str, done: int, total: int) -> None:
        """Show the current phase of the step, e.g. `phase("rollout", 120, 256)`. Cheap enough to call at any rate."""
        if name != self._phase[0]:
            self._phase_began = self._clock()
        self._phase = (name, done, total)
        if self._clock() - self._drawn >= self._view.phase_interval_s:
            self._draw()

    def step(self, record: StepRecord) -> None:
        """Show a completed step.

        Explain the first step without an update or with an empty token mask, for each reason, and the first one with
        dropped episodes.
        """
        self._step_ends.append(self._clock())
        self._done = record.step
        self._phase = ("", 0, 0)
        self._record = record
        success = record.rollout.get("success", math.nan)
        if math.isfinite(success):
            self._successes.append(success)
        if (explanation := explain_step(record)) is not None and explanation not in self._explained:
            self._explained.add(explanation)
            self.note(f"step {self._done}{explanation}")
        if not self._explained_drop and record.rollout.get("dropped"):
            self._explained_drop = True
            self.note(f"step {self._done} {describe_dropped(record)}")
        is_last = self._total is not None and self._done >= self._total
        if is_last or self._clock() - self._drawn >= self._view.step_interval_s:
            self._draw()

    def note(self, text: str) -> None:
        """Print a line above the view."""
        self._console.print(sanitize_line(text), soft_wrap=True)

    def _draw(self) -> None:
        self._drawn = self._clock()
        self._view.draw(self._snapshot())

    def _snapshot(self) -> ProgressSnapshot:
        return ProgressSnapshot(
            title=self._title,
            done=self._done,
            total=self._total,
            phase=self._phase,
            record=self._record,
            successes=self._successes,
            left_s=self._left_s(),
            cost=self._cost(),
        )

    def _cost(self) -> float | None:
        if self._price_per_s is None:
            return None
        return self._price_per_s * (self.earlier_s + self._clock() - self._created)

    def _left_s(self) -> float | None:
        """Estimate the remaining time from recent steps, capped by the run's limit. None before the first step.

        Before `begin` it is that of the current phase, such as the warm-up.
        """
        if not self._step_ends:
            _, done, total = self._phase
            return (self._clock() - self._phase_began) / done * (total - done) if done else None
        if len(self._step_ends) < 2 or self._total is None:
            return None
        step_s = (self._step_ends[-1] - self._step_ends[0]) / (len(self._step_ends) - 1)
        left = step_s * (self._total - self._done) - (self._clock() - self._step_ends[-1])
        if self.limit_s is not None:
            left = min(left, self.limit_s - (self._clock() - self._started))
        return max(left, 0.0)


class ProgressView(Protocol):
    phase_interval_s: float
    """Minimum seconds between two drawings during a step."""
    step_interval_s: float
    """Minimum seconds between two drawings at the ends of steps. The last step is always drawn."""

    def start(self, snapshot: ProgressSnapshot) -> None: ...
    def draw(self, snapshot: ProgressSnapshot) -> None: ...
    def stop(self, snapshot: ProgressSnapshot) -> None: ...


class LiveView:
    """View for terminals: a bar over the steps, the last step's metrics, and a sparkline of success."""

    phase_interval_s = 0.2
    step_interval_s = 0.1

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)

    def start(self, snapshot: ProgressSnapshot) -> None:
        self._live.start()
        self.draw(snapshot)

    def draw(self, snapshot: ProgressSnapshot) -> None:
        self._live.update(self._render(snapshot), refresh=True)

    def stop(self, snapshot: ProgressSnapshot) -> None:
        try:
            self.draw(snapshot)
        finally:
            self._live.stop()

    def _render(self, snapshot: ProgressSnapshot) -> RenderableType:
        parts: list[RenderableType] = [_bar(snapshot), _metrics_table(snapshot)]
        if self._console.encoding.startswith("utf"):
            parts.append(_success_sparkline(snapshot))
        return Group(*parts)


class LineView:
    """View for files and pipes: a line per step, at most every two seconds; every 30 seconds during a long step."""

    phase_interval_s = 30.0
    step_interval_s = 2.0

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_step = 0
        """Step of the last printed step line."""

    def start(self, snapshot: ProgressSnapshot) -> None:
        self._last_step = snapshot.done

    def draw(self, snapshot: ProgressSnapshot) -> None:
        name, done, total = snapshot.phase
        left = "" if snapshot.left_s is None else _left(snapshot)
        line = f"{_step_count(snapshot)}  {name} {done}/{total}{left}" if name else _step_line(snapshot)
        self._last_step = self._last_step if name else snapshot.done
        self._console.print(Text(line), soft_wrap=True)

    def stop(self, snapshot: ProgressSnapshot) -> None:
        """Print the last step if it ended within the interval after the previous line."""
        if snapshot.record.step and snapshot.done > self._last_step:
            self.draw(snapshot)


def _step_count(snapshot: ProgressSnapshot) -> str:
    if snapshot.total is None:
        return f"step {snapshot.done}"
    return f"step {snapshot.done:>{len(str(snapshot.total))}}/{snapshot.total}"


def _step_line(snapshot: ProgressSnapshot) -> str:
    cells = [f"{label} {value:>{width}}" for label, width, value in _cells(snapshot.record)]
    left = "" if snapshot.total is None else _left(snapshot)
    return "  ".join([_step_count(snapshot), *cells]) + left


def _left(snapshot: ProgressSnapshot) -> str:
    cost = "" if snapshot.cost is None else f"  cost {format_money(snapshot.cost)}"
    return f"  left {format_duration(snapshot.left_s):>7}{cost}"


def _bar(snapshot: ProgressSnapshot) -> Table:
    name, done, total = snapshot.phase
    grid = Table.grid(padding=(0, 1), expand=True)
    for ratio in (None, 1, None, None, None, None):
        grid.add_column(ratio=ratio, no_wrap=True)
    grid.add_row(
        Text(snapshot.title, style="bold"),
        ProgressBar(total=snapshot.total, completed=snapshot.done, complete_style="cyan", finished_style="green"),
        Text(f"{snapshot.done}" if snapshot.total is None else f"{snapshot.done}/{snapshot.total}"),
        Text(f"{name} {done}/{total}".ljust(18) if name else " " * 18, style="dim"),
        Text("" if snapshot.left_s is None and snapshot.total is None else f"{format_duration(snapshot.left_s)} left"),
        Text("" if snapshot.cost is None else f"cost {format_money(snapshot.cost)}"),
    )
    return grid


def _metrics_table(snapshot: ProgressSnapshot) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    cells = _cells(snapshot.record)
    for label, width, _ in cells:
        table.add_column(label, justify="right", min_width=width, no_wrap=True)
    table.add_row(*(value for _, _, value in cells))
    return table


def _success_sparkline(snapshot: ProgressSnapshot) -> Text:
    line = draw_sparkline(snapshot.successes, SPARKLINE_WIDTH)
    return Text.assemble(("success ", "dim"), (line.ljust(SPARKLINE_WIDTH), "green"), no_wrap=True)
