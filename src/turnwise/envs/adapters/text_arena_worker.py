"""Games of TextArena with a scripted opponent, inside their worker process."""

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

from turnwise.envs.adapters.text_arena_moves import guess_moves
from turnwise.envs.adapters.worker import IllegalAction, InvalidSetting, WorkerEnv, WorkerStep, isolated_streams

PLAYERS: dict[str, int] = {}
"""Number of players of a game with these options."""
MAX_INVALID_MOVES = 10**9
"""Invalid moves in a row that a game allows: only the turn limit in the prompt ends an episode."""
WORD_LISTS = "words averaged_perceptron_tagger_eng"
"""Data of NLTK that nine games need."""


def _download_nothing(*_: Any, **__: Any) -> bool:
    """Replace `nltk.download`, which games call at import: a run must not use the network."""
    return False


nltk.download = _download_nothing


class TextArenaGame:
    """A game without TextArena's wrappers: each player sees every message once."""

    def __init__(self, id: str, options: dict[str, Any], players: int | None = None) -> None:
        """`players`: their number; None: 2 if the game can be played by two, else 1."""
        if id not in ENV_REGISTRY or f"{id}-raw" not in ENV_REGISTRY:
            raise InvalidSetting(f"TextArena has no game {id!r}: choose one such as TicTacToe-v0.", param="id")
        self.id, self.options = id, options
        self.brackets = ActionFormattingWrapper in (ENV_REGISTRY[id].default_wrappers or ())
        key = json.dumps([id, options, players], sort_keys=True)
        if key not in PLAYERS:  # found by trying, which is slow for games that are slow to generate
            PLAYERS[key] = self._count_players(players)
        self.players = PLAYERS[key]

    def start(self, seed: int) -> None:
        self.env = self._make(self.players, seed)
        self.env.state.error_allowance = MAX_INVALID_MOVES
        self.done = False
        self.shown: dict[int, list[str]] = {player: [] for player in range(self.players)}

    @property
    def current_player(self) -> int:
        return int(self.env.state.current_player_id)

    def new_messages(self, player: int) -> str:
        """Return what the player has not seen: without its own messages, and only the last of several boards."""
        state = self.env.state
        messages, state.observations[player] = state.observations[player], []
        boards = [index for index, message in enumerate(messages) if message[2] == Kind.GAME_BOARD]
        texts = [
            text.strip() if sender == textarena.GAME_ID else f"Player {sender}: {text}"
            for index, (sender, text, kind) in enumerate(messages)
            if index not in boards[:-1] and not (kind == Kind.PLAYER_ACTION and self._is_own(sender, player))
        ]
        self.shown[player] += texts
        return "\n".join(texts)

    def _is_own(self, sender: int, player: int) -> bool:
        return sender == player or self.players == 1

    def play(self, move: str) -> None:
        """Make a move of the current player. An invalid one changes nothing."""
        player, state = self.current_player, self.env.state
        errors = state.error_count
        done, _ = self.env.step(f"[{move}]" if self.brackets and "[" not in move and "]" not in move else move)
        if state.error_count > errors:
            state.observations[player] = []
            raise IllegalAction(move)
        self.done = bool(done)

    def outcome(self, player: int) -> tuple[float, str]:
        """Return the player's reward in a finished game, and why it ended."""
        rewards, info = self.env.close()
        return float(rewards[player]), str(info[player].get("reason") or "")

    def try_move(self, move: str) -> "TextArenaGame | None":
        """Return a copy of the game with the move made; None if it is invalid."""
        copied = copy.copy(self)
        copied.env, copied.shown = copy.deepcopy(self.env), {}
        try:
            copied.play(move)
        except IllegalAction:
            return None
        return copied

    def _count_players(self, wanted: int | None) -> int:
        """Return the wanted number; without one 2 if the game can be played by two, else 1."""
        for players in (2, 1) if wanted is None else (wanted,):
            try:
                self._make(players, seed=0)
            except AssertionError:
                continue
            return players
        if wanted is not None:
            raise InvalidSetting(f"{self.id} cannot be played by {wanted}: choose another number or game.", param="id")
        raise InvalidSetting(f"{self.id} is for more than two players: choose another.", param="id")

    def _make(self, players: int, seed: int) -> Any:
        try:
            env = textarena.make(f"{self.id}-raw", **self.options)
            env.reset(num_players=players, seed=seed)
        except AssertionError:  # raised if the game is not for this number of players
            raise
        except Exception as error:
            raise InvalidSetting(f"{self.id} {explain_failure(error)}", param="id") from error
        return env


def explain_failure(error: Exception) -> str:
    """Say in one line why a game does not start and what to do. NLTK's own message is a page."""
    if type(error) is LookupError:  # raised by NLTK; subclasses have other causes
        return f"needs word lists of NLTK: python -m nltk.downloader {WORD_LISTS}"
    if "API key" in str(error):
        return "calls a paid model over the network: choose another"
    if isinstance(error, SyntaxError):
        return "needs a newer Python: create .venv with Python 3.12, or choose another"
    return f"does not start: {type(error).__name__}: {error}"


MAX_OPPONENT_MOVES = 500
"""Moves of the opponent in a row."""
GREEDY_TRIES = 40


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
        self.player_choice, self.opponent, self.moves, self.success_at = player, opponent, moves, success_at

    def reset(self, seed: int) -> WorkerStep:
        self.reseed(seed)
        players = {"first": 0, "second": 1, "either": self.opponent_rng.randrange(2)}
        self.game.start(seed)
        self.player = players[self.player_choice] if self.game.players == 2 else 0
        self._play_opponent()
        return {"text": self.game.new_messages(self.player)}

    def reseed(self, seed: int) -> None:
        self.opponent_rng = random.Random(f"script {seed}")  # not the seed itself, from which the game draws

    def step(self, action: str) -> WorkerStep:
        self.game.play(action)
        self._play_opponent()
        text = self.game.new_messages(self.player)
        if not self.game.done:
            return {"text": text}
        reward, reason = self.game.outcome(self.player)
        return {"text": f"{text}\n{reason}", "reward": reward, "over": True, "success": reward >= self.success_at}

    def guess(self, seed: int) -> str | None:
        """Return a legal move of the agent, found by trying on copies."""
        with isolated_streams(seed):
            moves = self._guesses(self.player, random.Random(seed))
            return next((move for move in moves if self.game.try_move(move) is not None), None)

    def _play_opponent(self) -> None:
        """Make the opponent's moves until it is the agent's turn or the game is over."""
        for _ in range(MAX_OPPONENT_MOVES):
            if self.game.done or self.game.current_player == self.player:
                return
            self.game.new_messages(self.game.current_player)
            self._play_opponent_move()
        raise RuntimeError(f"{self.game.id}: the opponent moved {MAX_OPPONENT_MOVES} times in a row")

    def _play_opponent_move(self) -> None:
        """Make one move: guess until one is valid."""
        player = self.game.current_player
        winning = self._winning_move(player) if self.opponent == "greedy" else None
        for move in [winning] if winning else self._guesses(player, self.opponent_rng):
            try:
                return self.game.play(move)
            except IllegalAction:
                continue
        raise RuntimeError(f"{self.game.id}: the opponent finds no legal move: list them in env.params.moves")

    def _winning_move(self, player: int) -> str | None:
        """Return a move that wins at once, if one of the first guesses does."""
        seed = self.opponent_rng.getrandbits(63)
        with isolated_streams(seed):
            for move in islice(self._guesses(player, random.Random(seed)), GREEDY_TRIES):
                after = self.game.try_move(move)
                if after is not None and after.done and after.outcome(player)[0] >= 1:
                    return move
        return None

    def _guesses(self, player: int, rng: random.Random) -> Iterator[str]:
        return guess_moves(self.game.shown[player], self.moves, rng)


class TextArenaPlayersEnv(WorkerEnv):
    """A game whose players are all agents of the run."""

    def __init__(self, id: str, options: dict[str, Any], count: int, moves: list[str]) -> None:
        self.game, self.moves = TextArenaGame(id, options, count), moves

    def reset(self, seed: int) -> WorkerStep:
        self.game.start(seed)
        return self._show()

    def step(self, action: str) -> WorkerStep:
        self.game.play(action)
        return self._show()

    def _show(self) -> WorkerStep:
        """Return what the player who acts has not seen; at the end, what each of them has not, and their rewards."""
        game = self.game
        if not game.done:
            return {
                "player": game.current_player,
                "texts": {game.current_player: game.new_messages(game.current_player)},
            }
        outcomes = [game.outcome(player) for player in range(game.players)]
        texts = {player: f"{game.new_messages(player)}\n{reason}" for player, (_, reason) in enumerate(outcomes)}
        return {"over": True, "texts": texts, "rewards": [reward for reward, _ in outcomes]}

    def guess(self, seed: int) -> str | None:
        """Return a legal move of the player who acts, found by trying on copies."""
        with isolated_streams(seed):
            moves = guess_moves(self.game.shown[self.game.current_player], self.moves, random.Random(seed))
            return next((move for move in moves if self.game.try_move(move) is not None), None)
