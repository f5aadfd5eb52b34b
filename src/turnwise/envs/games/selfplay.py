"""A game between two agents: each sits on one side of a table, and its seat is an environment of its own."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnwise.core.errors import UserError
from turnwise.core.loop_clock import pause_own_clock
from turnwise.core.messages import Message, system, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.random_streams import stream
from turnwise.core.task import Task
from turnwise.envs.answers import match_name, read_answer
from turnwise.envs.games.env import GameEnv
from turnwise.envs.games.game import Game, result_for
from turnwise.envs.runner import system_prompt
from turnwise.envs.spec import EnvSpec

BEGINS = ("agent", "opponent")
"""By side, what the parameter `begins` of its task says: player 0 makes the first move."""


def player_of(task: Task) -> int:
    """Which side of a match this task is."""
    return BEGINS.index(task.params["begins"])


def as_player(task: Task, side: int) -> Task:
    """The task of one side: those of the two differ in nothing else."""
    return replace(task, params={**task.params, "begins": BEGINS[side]})


class SharedGame:
    """The game that two seats share.

    A side that leaves before the end, since its turns, tokens or time ran out, is played on at random: nobody waits for
    one who is gone, and the other side has a whole game to learn from.
    """

    def __init__(self, game: Game, luck: random.Random) -> None:
        self.game = game
        self._luck = luck
        self._left: set[int] = set()
        self._moved = asyncio.Event()

    def play(self, move: str) -> None:
        """The move of whose turn it is; a ValueError if it is no legal one."""
        self.game = self.game.after(move)
        self._go_on()

    def leave(self, side: int) -> None:
        self._left.add(side)
        self._go_on()

    async def turn_of(self, side: int) -> None:
        """Waits for the other side's move or the end of the game; unblocked by `play` and `leave`."""
        while self.game.moves and self.game.player != side:
            await self._moved.wait()

    def _go_on(self) -> None:
        while self.game.moves and self.game.player in self._left and len(self._left) == 1:
            self.game = self.game.after(self._luck.choice(self.game.moves))
        self._moved.set()
        self._moved = asyncio.Event()


class SelfPlayEnv:
    """One side's episode, in the words of the game's own environment; the opponent is whoever sits on the other side.

    A turn ends when the opponent has moved, so that what follows it is what there is to answer.
    """

    def __init__(self, env: GameEnv, table: SharedGame, side: int) -> None:
        self._env, self._table = env, table
        self._turns = 0
        env.side, env.game = side, table.game

    async def start(self) -> Observation:
        await self._opponent()
        messages = (system(system_prompt(self._env)), user(self._env.state_key()))
        return Observation(messages=messages, picture=self._env.draw())

    async def step(self, action: Message) -> StepResult:
        state = self._env.state_key()
        move, problem = self._play(action.content)
        if move:
            await self._opponent()
        self._turns += 1
        outcome = self._env.outcome()
        given_up = not outcome.over and self._turns >= self._env.max_turns
        lines = [problem, outcome.text, "No turns left." if given_up else ""]
        return StepResult(
            messages=(user("\n".join(line for line in lines if line)),),
            reward=self._env.params.loss_reward if given_up else outcome.reward,
            terminated=outcome.over,
            truncated=given_up,
            success=outcome.success,
            invalid=bool(problem),
            info=self._info(state, move, problem, outcome.success, given_up),
            picture=self._env.draw(),
        )

    async def close(self) -> None:
        self._table.leave(self._env.side)

    async def _opponent(self) -> None:
        with pause_own_clock():  # the opponent's time is measured in its own episode
            await self._table.turn_of(self._env.side)
        self._env.game = self._table.game

    def _play(self, text: str) -> tuple[str, str]:
        """The move that was made, or else what is wrong with the answer."""
        answer = read_answer(text, several=False)
        if answer.problem:
            return "", answer.problem
        try:
            move = match_name(answer.actions[0], self._env.action_names)
            self._table.play(move)
        except ValueError:
            return "", "Invalid action."
        return move, ""

    def _info(self, state: str, move: str, problem: str, success: bool, given_up: bool) -> Mapping[str, Any]:
        """As that of every environment, and how the game went once it is over."""
        result = "loss" if given_up else result_for(self._env.game, self._env.side)
        info: dict[str, Any] = {"actions": [move] if move else [], "success": success, "state": state}
        if problem:
            info["problem"] = problem
        return info | ({"result": result} if result else {})


def make_selfplay_envs(kind: EnvSpec, task: Task, member: int = 0, attempt: int = 0) -> tuple[SelfPlayEnv, SelfPlayEnv]:
    """A fresh game and its two seats, by side; it begins as the task says, for all members the same."""
    first, second = (kind.make(task, member, attempt).env for _ in range(2))
    if not (isinstance(first, GameEnv) and isinstance(second, GameEnv)):
        raise UserError(f"{kind.name} is no game of two sides: self-play needs one, such as tic_tac_toe")
    table = SharedGame(first.opening(stream("opening", task.env, task.seed)), luck=first.rng)
    return SelfPlayEnv(first, table, 0), SelfPlayEnv(second, table, 1)
