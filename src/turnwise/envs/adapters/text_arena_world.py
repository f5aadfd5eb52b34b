"""One game of TextArena, in its own process: the agent's view of it, and a script that plays the other side."""

import random
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

from turnwise.envs.adapters.text_arena_game import Game
from turnwise.envs.adapters.text_arena_moves import guesses
from turnwise.envs.adapters.world import IllegalAction, Scene, World, aside

MOVES_IN_A_ROW = 500
TRIED_BY_GREEDY = 40


class TextArenaWorld(World):
    def __init__(
        self,
        id: str,
        options: dict[str, Any],
        player: Literal["first", "second", "either"],
        opponent: Literal["random", "greedy"],
        moves: list[str],
        success_at: float,
    ) -> None:
        self.game = Game(id, options)
        self.side, self.opponent, self.moves, self.success_at = player, opponent, moves, success_at

    def reset(self, seed: int) -> Scene:
        self.later(seed)
        sides = {"first": 0, "second": 1, "either": self.script.randrange(2)}
        self.game.start(seed)
        self.player = sides[self.side] if self.game.players == 2 else 0
        self._play_script()
        return {"text": self.game.news(self.player)}

    def later(self, seed: int) -> None:
        self.script = random.Random(f"script {seed}")  # of the number alone it would draw what the game draws

    def step(self, action: str) -> Scene:
        self.game.play(action)
        self._play_script()
        text = self.game.news(self.player)
        if not self.game.done:
            return {"text": text}
        reward, reason = self.game.outcome(self.player)
        return {"text": f"{text}\n{reason}", "reward": reward, "over": True, "success": reward >= self.success_at}

    def guess(self, seed: int) -> str | None:
        """A legal move of the agent's, tried on a copy."""
        with aside(seed):
            moves = self._guesses(self.player, random.Random(seed))
            return next((move for move in moves if self.game.after(move) is not None), None)

    def _play_script(self) -> None:
        """The other player's moves until it is the agent's turn, or nobody's."""
        for _ in range(MOVES_IN_A_ROW):
            if self.game.done or self.game.mover == self.player:
                return
            self.game.news(self.game.mover)
            self._play_one()
        raise RuntimeError(f"{self.game.id}: the opponent moved {MOVES_IN_A_ROW} times in a row")

    def _play_one(self) -> None:
        """One move of the script: guesses until one is valid, for the others change nothing."""
        mover = self.game.mover
        winning = self._winning(mover) if self.opponent == "greedy" else None
        for move in [winning] if winning else self._guesses(mover, self.script):
            try:
                return self.game.play(move)
            except IllegalAction:
                continue
        raise RuntimeError(f"{self.game.id}: the opponent finds no legal move: give env.params.moves")

    def _winning(self, mover: int) -> str | None:
        """A move that wins at once, among the first that come to mind."""
        seed = self.script.getrandbits(63)
        with aside(seed):
            for move in islice(self._guesses(mover, random.Random(seed)), TRIED_BY_GREEDY):
                after = self.game.after(move)
                if after is not None and after.done and after.outcome(mover)[0] >= 1:
                    return move
        return None

    def _guesses(self, mover: int, rng: random.Random) -> Iterator[str]:
        return guesses(self.game.shown[mover], self.moves, rng)
