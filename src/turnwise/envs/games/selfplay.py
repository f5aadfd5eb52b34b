"""Self-play: two agents play one game, each through an environment of its own."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from turnwise.concurrency.loop_clock import pause_current_clock
from turnwise.core.errors import UserError
from turnwise.core.messages import Message, join_lines, system, user
from turnwise.core.protocols import Observation, StepResult
from turnwise.core.random_streams import random_stream
from turnwise.core.task import Task
from turnwise.envs.answers import invalid_action_line, match_name, read_answer
from turnwise.envs.games.env import GameEnv
from turnwise.envs.games.game import Game, result_for
from turnwise.envs.runner import TurnOutcome, system_prompt, turn_info
from turnwise.envs.spec import EnvSpec
from turnwise.envs.state_rewards import StateRewards

BEGINS = ("agent", "opponent")
"""Value of the task parameter `begins` by player: player 0 moves first."""


def as_player(task: Task, player: int) -> Task:
    """Return the same task for this player; the two players' tasks differ in nothing else."""
    return replace(task, params={**task.params, "begins": BEGINS[player]})


class SharedGame:
    """The game that two `SelfPlayEnv`s share.

    When a player leaves early, because its turns, tokens or time ran out, random moves replace it: the opponent does
    not wait for it and still has a whole game to learn from.
    """

    def __init__(self, game: Game, rng: random.Random) -> None:
        self.game = game
        self._rng = rng
        self._left: set[int] = set()
        self._moved = asyncio.Event()

    def play(self, move: str) -> None:
        """Play the current player's move; raises ValueError if it is not legal."""
        self.game = self.game.play(move)
        self._advance()

    def leave(self, player: int) -> None:
        self._left.add(player)
        self._advance()

    async def wait_for_turn(self, player: int) -> None:
        """Wait until the opponent has moved or the game is over."""
        while self.game.legal_moves and self.game.current_player != player:
            await self._moved.wait()

    def _advance(self) -> None:
        while self.game.legal_moves and self.game.current_player in self._left and len(self._left) == 1:
            self.game = self.game.play(self._rng.choice(self.game.legal_moves))
        self._moved.set()
        self._moved = asyncio.Event()


class SelfPlayEnv:
    """One player's episode. Prompts and observations are those of the game's `GameEnv`.

    A step ends after the opponent's reply, so the next observation is the position to move in.
    """

    def __init__(self, env: GameEnv, shared: SharedGame, player: int) -> None:
        self._env, self._shared = env, shared
        self._turns = 0
        self._states = StateRewards(env)
        env.player, env.game = player, shared.game

    async def start(self) -> Observation:
        await self._wait_for_turn()
        messages = (system(system_prompt(self._env)), user(self._env.show(self._env.state_key())))
        return Observation(messages=messages, picture=self._env.draw())

    async def step(self, action: Message) -> StepResult:
        state, before = self._env.state_key(), self._states.observe("")  # a game knows its state
        move, problem = self._play(action.content)
        if move:
            await self._wait_for_turn()
        self._turns += 1
        outcome = self._env.outcome()
        out_of_turns = not outcome.over and self._turns >= self._env.max_turns
        lines = [problem, outcome.text, "No turns left." if out_of_turns else ""]
        reward = self._env.params.loss_reward if out_of_turns else outcome.reward
        turn = TurnOutcome(reward=reward, success=outcome.success, problem=problem)
        after, acted = self._states.observe(""), not turn.problem
        scores = await self._states.score(action.content, before=before, after=after, acted=acted)
        turn = turn.add_parts(scores, self._states.reward(scores))
        return StepResult(
            messages=(user(join_lines(lines)),),
            reward=turn.reward,
            terminated=outcome.over,
            truncated=out_of_turns,
            success=outcome.success,
            invalid=bool(problem),
            info=self._info(state, move, turn, out_of_turns),
            picture=self._env.draw(),
        )

    async def close(self) -> None:
        self._shared.leave(self._env.player)

    async def _wait_for_turn(self) -> None:
        with pause_current_clock():  # the opponent's time is measured in its own episode
            await self._shared.wait_for_turn(self._env.player)
        self._env.game = self._shared.game

    def _play(self, text: str) -> tuple[str, str]:
        """Play the move in this answer; return (move, "") or ("", problem)."""
        answer = read_answer(text, several=False)
        if answer.problem:
            return "", answer.problem
        try:
            move = match_name(answer.actions[0], self._env.action_names)
            self._shared.play(move)
        except ValueError as error:
            return "", invalid_action_line(error)
        return move, ""

    def _info(self, state: str, move: str, turn: TurnOutcome, out_of_turns: bool) -> Mapping[str, Any]:
        """The fields of every environment's turn and, once the game is over, `result`."""
        result = "loss" if out_of_turns else result_for(self._env.game, self._env.player)
        info = turn_info(replace(turn, actions=(move,) if move else ()), state)
        return info | ({"result": result} if result else {})


def make_selfplay_envs(spec: EnvSpec, task: Task, member: int = 0, attempt: int = 0) -> tuple[SelfPlayEnv, SelfPlayEnv]:
    """Start a game and return the environments of players 0 and 1. The opening depends on the task's seed alone."""
    first, second = (spec.make(task, member, attempt).env for _ in range(2))
    if not (isinstance(first, GameEnv) and isinstance(second, GameEnv)):
        raise UserError(f"{spec.name} is not a two-player game. Self-play needs one, such as tic_tac_toe.")
    shared = SharedGame(first.opening(random_stream("opening", task.env, task.seed)), first.rng)
    return SelfPlayEnv(first, shared, 0), SelfPlayEnv(second, shared, 1)
