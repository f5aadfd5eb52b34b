"""One game of TextArena, in its own process: the agent's view of it, and a script that plays the other side."""

import copy
import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

import nltk
import textarena
from textarena import ObservationType as Kind
from textarena.envs.registration import ENV_REGISTRY
from textarena.wrappers import ActionFormattingWrapper

from turnwise.envs.adapters.text_arena_moves import guesses
from turnwise.envs.adapters.worker import IllegalAction, InvalidSetting, WorkerEnv, WorkerStep, isolated_streams

PLAYERS: dict[str, int] = {}
"""How many players a game with these options is for."""
PATIENCE = 10**9
"""Invalid moves in a row that a game lets pass: what ends an episode is the turn limit that the prompt states."""
WORD_LISTS = "words averaged_perceptron_tagger_eng"
"""Of NLTK, which nine of the games read."""


def _download_nothing(*_: Any, **__: Any) -> bool:
    """Games call for word lists when they are imported: a run reads what is on the machine, and no network."""
    return False


nltk.download = _download_nothing


class TextArenaGame:
    """A game without TextArena's wrappers: each player sees every message once, when it is new."""

    def __init__(self, id: str, options: dict[str, Any]) -> None:
        if id not in ENV_REGISTRY or f"{id}-raw" not in ENV_REGISTRY:
            raise InvalidSetting(f"env.params.id: TextArena has no game {id!r}: give one such as TicTacToe-v0")
        self.id, self.options = id, options
        self.brackets = ActionFormattingWrapper in (ENV_REGISTRY[id].default_wrappers or ())
        key = json.dumps([id, options], sort_keys=True)
        if key not in PLAYERS:  # found out by trying, which takes long where boards are hard to make
            PLAYERS[key] = self._players()
        self.players = PLAYERS[key]

    def start(self, seed: int) -> None:
        self.env = self._made(self.players, seed)
        self.env.state.error_allowance = PATIENCE
        self.done = False
        self.shown: dict[int, list[str]] = {player: [] for player in range(self.players)}

    @property
    def mover(self) -> int:
        return int(self.env.state.current_player_id)

    def news(self, player: int) -> str:
        """What this player has not seen yet: without its own words, and of several boards the last."""
        state = self.env.state
        messages, state.observations[player] = state.observations[player], []
        boards = [index for index, message in enumerate(messages) if message[2] == Kind.GAME_BOARD]
        told = [
            text.strip() if sender == textarena.GAME_ID else f"Player {sender}: {text}"
            for index, (sender, text, kind) in enumerate(messages)
            if index not in boards[:-1] and not (kind == Kind.PLAYER_ACTION and self._is_own(sender, player))
        ]
        self.shown[player] += told
        return "\n".join(told)

    def _is_own(self, sender: int, player: int) -> bool:
        return sender == player or self.players == 1

    def play(self, move: str) -> None:
        """The mover's move; an invalid one changes nothing."""
        mover, state = self.mover, self.env.state
        errors = state.error_count
        done, _ = self.env.step(f"[{move}]" if self.brackets and "[" not in move and "]" not in move else move)
        if state.error_count > errors:
            state.observations[mover] = []
            raise IllegalAction(move)
        self.done = bool(done)

    def outcome(self, player: int) -> tuple[float, str]:
        """Of a game that is over: the player's reward, and why it ended."""
        rewards, info = self.env.close()
        return float(rewards[player]), str(info[player].get("reason") or "")

    def after(self, move: str) -> "TextArenaGame | None":
        """A copy of the game in which the move was made; None if it is invalid."""
        tried = copy.copy(self)
        tried.env, tried.shown = copy.deepcopy(self.env), {}
        try:
            tried.play(move)
        except IllegalAction:
            return None
        return tried

    def _players(self) -> int:
        """Two where the game takes two, else one."""
        for players in (2, 1):
            try:
                self._made(players, seed=0)
            except AssertionError:
                continue
            return players
        raise InvalidSetting(f"env.params.id: {self.id} is for more than two players: choose another")

    def _made(self, players: int, seed: int) -> Any:
        try:
            env = textarena.make(f"{self.id}-raw", **self.options)
            env.reset(num_players=players, seed=seed)
        except AssertionError:  # how a game says that it is not for so many
            raise
        except Exception as error:
            raise InvalidSetting(f"env.params.id: {self.id} {why_not(error)}") from error
        return env


def why_not(error: Exception) -> str:
    """Why a game does not start, and the mend: NLTK's own complaint is a page, and no key reaches this process."""
    if type(error) is LookupError:  # NLTK's; its subclasses say other things
        return f"needs word lists that are not on this machine: python -m nltk.downloader {WORD_LISTS}"
    if "API key" in str(error):
        return "asks a paid model over the network while it is played: choose another"
    if isinstance(error, SyntaxError):
        return "is written for a later Python: make .venv with Python 3.12, or choose another"
    return f"does not start: {type(error).__name__}: {error}"


MOVES_IN_A_ROW = 500
TRIED_BY_GREEDY = 40


class TextArenaWorkerEnv(WorkerEnv):
    def __init__(
        self,
        id: str,
        options: dict[str, Any],
        player: Literal["first", "second", "either"],
        opponent: Literal["random", "greedy"],
        moves: list[str],
        success_at: float,
    ) -> None:
        self.game = TextArenaGame(id, options)
        self.side, self.opponent, self.moves, self.success_at = player, opponent, moves, success_at

    def reset(self, seed: int) -> WorkerStep:
        self.later(seed)
        sides = {"first": 0, "second": 1, "either": self.script.randrange(2)}
        self.game.start(seed)
        self.player = sides[self.side] if self.game.players == 2 else 0
        self._play_script()
        return {"text": self.game.news(self.player)}

    def later(self, seed: int) -> None:
        self.script = random.Random(f"script {seed}")  # of the number alone it would draw what the game draws

    def step(self, action: str) -> WorkerStep:
        self.game.play(action)
        self._play_script()
        text = self.game.news(self.player)
        if not self.game.done:
            return {"text": text}
        reward, reason = self.game.outcome(self.player)
        return {"text": f"{text}\n{reason}", "reward": reward, "over": True, "success": reward >= self.success_at}

    def guess(self, seed: int) -> str | None:
        """A legal move of the agent's, tried on a copy."""
        with isolated_streams(seed):
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
        with isolated_streams(seed):
            for move in islice(self._guesses(mover, random.Random(seed)), TRIED_BY_GREEDY):
                after = self.game.after(move)
                if after is not None and after.done and after.outcome(mover)[0] >= 1:
                    return move
        return None

    def _guesses(self, mover: int, rng: random.Random) -> Iterator[str]:
        return guesses(self.game.shown[mover], self.moves, rng)
