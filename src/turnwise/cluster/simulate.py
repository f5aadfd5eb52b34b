"""Predict step time, idle shares and staleness of a training job by simulating its events. Needs neither GPUs nor Ray.

    replica 0   generate generate ........ generate        a replica divides its tokens/s among its running turns
    tools                        tool call
    learner                                        update  steps are trained whole and in order, as in training/

Step n starts when n - max_staleness steps are trained and their weights are in the engines. Episodes of earlier steps
start first, an episode stays on its replica, and every random number is addressed by seed, step and episode: two
layouts are compared on the same episodes.
"""

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy


@dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """A log-normal number: its median, the standard deviation of its logarithm, and its maximum."""

    median: float
    sigma: float = 0.0
    """0: constant."""
    maximum: float = math.inf

    def draw(self, rng: numpy.random.Generator, shape: tuple[int, ...]) -> numpy.ndarray:
        return numpy.minimum(self.median * numpy.exp(self.sigma * rng.standard_normal(shape)), self.maximum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Episodes of a training step."""

    groups: int
    group_size: int
    turns: Amount
    """Turns per episode, rounded, at least 1."""
    prompt_tokens: float
    """Tokens of an episode before its first turn, without the first observation."""
    action_tokens: Amount
    """Sampled tokens per turn."""
    observation_tokens: Amount
    """Tokens per turn that are read, not sampled."""
    tool_s: Amount
    """Seconds that the environment takes per turn."""

    @property
    def episodes(self) -> int:
        return self.groups * self.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRates:
    """Speed of one engine replica."""

    tokens_per_s: Mapping[int, float]
    """Sampled tokens per second of the whole batch, by number of running turns; interpolated in between."""
    prefill_tokens_per_s: float = math.inf
    """Reading tokens stops the sampling of the replica's other turns for that time."""

    def total(self, running: int) -> float:
        """Return tokens/s of the batch. Below the smallest measured batch each turn keeps its speed."""
        sizes = sorted(self.tokens_per_s)
        return float(numpy.interp(running, [0, *sizes], [0.0, *(self.tokens_per_s[size] for size in sizes)]))


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerRates:
    seconds_per_token: float
    """Seconds of one rank per token of a step, scoring and update together; ranks divide the tokens."""
    seconds_per_step: float = 0.0
    """Seconds per step that more ranks do not shorten."""
    transfer_s: float = 0.0
    """Seconds until all engines have new weights. They do not generate meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Division of the GPUs, and the limits of the pipeline."""

    engines: int
    learners: int
    colocated: bool
    """Engines and learner share their GPUs: engines sleep during updates."""
    slots: int
    """Turns that a replica generates at the same time; others wait."""
    in_flight: int
    """Running episodes."""
    max_staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Means over the measured steps. Waiting for a weight transfer counts as idle."""

    step_s: float
    tokens_per_s: float
    """Sampled and read tokens per second of training."""
    engine_idle: float
    """Share of time in which a replica has no turn to generate."""
    learner_idle: float
    staleness: float
    """Versions between the weights that a turn starts with and those that train on it."""
    staleness_max: int
    episodes: int
    """Episodes trained in the measured steps."""


def simulate(
    workload: Workload,
    engine: EngineRates,
    learner: LearnerRates,
    layout: Layout,
    *,
    steps: int = 6,
    seed: int = 0,
) -> Prediction:
    """Predict the mean of `steps` steps, after those that fill the pipeline. The job continues after them."""
    return _Simulation(workload, engine, learner, layout, seed).run(layout.max_staleness + 2, steps)


@dataclass(slots=True, eq=False)
class _Episode:
    step: int
    actions: list[float]
    observations: list[float]
    tool_s: list[float]
    turn: int = 0
    replica: "_SimulatedReplica | None" = None


@dataclass(slots=True, eq=False)
class _Step:
    """Counters of a step that has started."""

    remaining: int
    tokens: float
    versions: list[int] = field(default_factory=list)
    """Version of the weights at the start of each turn."""


class _SimulatedReplica:
    """Processor sharing: all running turns have sampled `served` tokens since the start, or since they arrived."""

    def __init__(self, speeds: list[float], prefill_tokens_per_s: float) -> None:
        self.speeds = speeds
        """Tokens/s of each turn, by number of running turns."""
        self.prefill_tokens_per_s = prefill_tokens_per_s
        self.episodes = 0
        self.busy_s = 0.0
        self.paused = False
        self.timer = 0
        """Number of the latest completion event; earlier ones are void."""
        self._served = 0.0
        self._prefill_s = 0.0
        """Seconds of reading still to be done, before sampling continues."""
        self._now = 0.0
        self._running: list[tuple[float, int, _Episode]] = []
        """Heap by the value of `_served` at which the turn is complete."""
        self._waiting: list[tuple[int, int, _Episode]] = []
        """Heap by step and arrival."""
        self._arrivals = 0

    def advance(self, now: float) -> None:
        """Generate until `now`."""
        elapsed, self._now = now - self._now, now
        if self.paused or not self._running:
            return
        self.busy_s += elapsed
        reading = min(self._prefill_s, elapsed)
        self._prefill_s -= reading
        self._served += (elapsed - reading) * self.speeds[len(self._running)]

    def add(self, episode: _Episode) -> None:
        self._arrivals += 1
        heapq.heappush(self._waiting, (episode.step, self._arrivals, episode))
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._running) < len(self.speeds) - 1:
            _, number, episode = heapq.heappop(self._waiting)
            self._prefill_s += episode.observations[episode.turn] / self.prefill_tokens_per_s
            heapq.heappush(self._running, (self._served + episode.actions[episode.turn], number, episode))

    def complete(self) -> _Episode:
        """Return the episode whose turn is complete."""
        self._served, _, episode = heapq.heappop(self._running)
        self._fill()
        return episode

    def next_completion(self) -> float | None:
        if self.paused or not self._running:
            return None
        missing = max(0.0, self._running[0][0] - self._served)
        return self._now + self._prefill_s + missing / self.speeds[len(self._running)]


class _Simulation:
    def __init__(
        self, workload: Workload, engine: EngineRates, learner: LearnerRates, layout: Layout, seed: int
    ) -> None:
        self.workload, self.learner, self.layout, self.seed = workload, learner, layout, seed
        slots = min(layout.slots, workload.episodes * (layout.max_staleness + 1))
        speeds = [0.0, *(engine.total(running) / running for running in range(1, slots + 1))]
        self.replicas = [_SimulatedReplica(speeds, engine.prefill_tokens_per_s) for _ in range(layout.engines)]
        self.now = 0.0
        self.version = 0
        """Steps trained whose weights are in the engines."""
        self.published_at: list[float] = []
        self.running = 0
        self.learner_busy = False
        self.update_s: list[float] = []
        self.trained: list[_Step] = []
        self.steps: dict[int, _Step] = {}
        self.admitted = 0
        self.waiting: deque[_Episode] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def run(self, warm_up: int, steps: int) -> Prediction:
        self._admit()
        busy_before = 0.0
        while len(self.published_at) < warm_up + steps:
            self.now, _, act = heapq.heappop(self._events)
            published = len(self.published_at)
            act()
            if published < warm_up == len(self.published_at):
                busy_before = self._engine_busy_s()
        return self._predict(warm_up, steps, self._engine_busy_s() - busy_before)

    def _predict(self, warm_up: int, steps: int, engine_busy_s: float) -> Prediction:
        span = self.published_at[-1] - self.published_at[warm_up - 1]
        measured = range(warm_up, warm_up + steps)
        ages = numpy.concatenate([number - numpy.array(self.trained[number].versions) for number in measured])
        return Prediction(
            step_s=span / steps,
            tokens_per_s=sum(self.trained[number].tokens for number in measured) / span,
            engine_idle=1 - engine_busy_s / (span * self.layout.engines),
            learner_idle=1 - sum(self.update_s[number] for number in measured) / span,
            staleness=float(ages.mean()),
            staleness_max=int(ages.max()),
            episodes=steps * self.workload.episodes,
        )

    def _engine_busy_s(self) -> float:
        for replica in self.replicas:
            replica.advance(self.now)
        return sum(replica.busy_s for replica in self.replicas)

    def _after(self, seconds: float, act: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now + seconds, self._number, act))

    # Rollouts

    def _admit(self) -> None:
        """Start the steps that the staleness bound allows."""
        while self.admitted <= self.version + self.layout.max_staleness:
            episodes = self._draw_episodes(self.admitted)
            tokens = sum(sum(episode.actions) + sum(episode.observations) for episode in episodes)
            self.steps[self.admitted] = _Step(remaining=len(episodes), tokens=tokens)
            self.waiting.extend(episodes)
            self.admitted += 1
        self._start_episodes()

    def _draw_episodes(self, step: int) -> list[_Episode]:
        work, rng = self.workload, numpy.random.default_rng((self.seed, step))
        turns = numpy.maximum(1, work.turns.draw(rng, (work.episodes,)).round().astype(int))
        shape = (work.episodes, int(turns.max()))
        actions = numpy.maximum(1.0, work.action_tokens.draw(rng, shape)).tolist()
        observations = work.observation_tokens.draw(rng, shape)
        observations[:, 0] += work.prompt_tokens
        tool_s, read = work.tool_s.draw(rng, shape).tolist(), observations.tolist()
        return [
            _Episode(step=step, actions=actions[i][:count], observations=read[i][:count], tool_s=tool_s[i][:count])
            for i, count in enumerate(turns.tolist())
        ]

    def _start_episodes(self) -> None:
        if not self.waiting or self.running >= self.layout.in_flight:
            return
        loads = [replica.episodes for replica in self.replicas]
        while self.waiting and self.running < self.layout.in_flight:
            index = loads.index(min(loads))
            loads[index] += 1
            episode, replica = self.waiting.popleft(), self.replicas[index]
            episode.replica = replica
            replica.episodes += 1
            self.running += 1
            self._generate(episode, replica)

    def _generate(self, episode: _Episode, replica: _SimulatedReplica) -> None:
        self.steps[episode.step].versions.append(self.version)
        replica.advance(self.now)
        replica.add(episode)
        self._set_timer(replica)

    def _set_timer(self, replica: _SimulatedReplica) -> None:
        replica.timer += 1
        completion = replica.next_completion()
        if completion is not None:
            self._after(completion - self.now, partial(self._complete_turn, replica, replica.timer))

    def _complete_turn(self, replica: _SimulatedReplica, timer: int) -> None:
        if timer != replica.timer:
            return
        replica.advance(self.now)
        episode = replica.complete()
        self._set_timer(replica)
        seconds = episode.tool_s[episode.turn]
        episode.turn += 1
        self._after(seconds, partial(self._answer, episode, replica))

    def _answer(self, episode: _Episode, replica: _SimulatedReplica) -> None:
        """The environment has answered: generate the next turn, or end the episode."""
        if episode.turn < len(episode.actions):
            self._generate(episode, replica)
            return
        replica.episodes -= 1
        self.running -= 1
        self.steps[episode.step].remaining -= 1
        self._start_episodes()
        self._train()

    # Learner

    def _train(self) -> None:
        step = self.steps.get(self.version)
        if self.learner_busy or step is None or step.remaining:
            return
        self.learner_busy = True
        if self.layout.colocated:
            self._pause(True)
        seconds = self.learner.seconds_per_step + step.tokens * self.learner.seconds_per_token / self.layout.learners
        self.update_s.append(seconds)
        self._after(seconds, self._transfer)

    def _transfer(self) -> None:
        self._pause(True)
        self._after(self.learner.transfer_s, self._publish)

    def _publish(self) -> None:
        self.trained.append(self.steps.pop(self.version))
        self.version += 1
        self.published_at.append(self.now)
        self.learner_busy = False
        self._pause(False)
        self._admit()
        self._train()

    def _pause(self, paused: bool) -> None:
        for replica in self.replicas:
            if replica.paused != paused:
                replica.advance(self.now)
                replica.paused = paused
                self._set_timer(replica)
