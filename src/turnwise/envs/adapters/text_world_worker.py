"""Generated games of TextWorld, inside their worker process."""

import random
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import textworld
from textworld.envs.tw import TextWorldEnv
from textworld.generator import compile_game, make_game
from textworld.generator.chaining import QuestGenerationError
from textworld.generator.data import KnowledgeBase
from textworld.generator.inform7 import Inform7Game
from textworld.generator.vtypes import NotEnoughNounsError
from textworld.generator.world import NoFreeExitError

from turnwise.envs.adapters.text_world_facts import describe_facts, plain_facts
from turnwise.envs.adapters.worker import IllegalAction, InvalidSetting, WorkerEnv, WorkerStep

MAX_DRAWS = 30
"""Games that are generated until one can be solved within the limits."""
IDLE = ("examine ", "look", "inventory")
"""Commands that change nothing; observations contain the facts anyway."""
ENDING = re.compile(r"\n>|\nWould you like to RESTART")
QUEST = "Quest: "
INFOS = {"admissible_commands", "policy_commands", "won", "lost", "facts", "description", "intermediate_reward"}


class InMemoryGame(TextWorldEnv):
    """A game that is played from memory. Reading it back from a file would take longer than generating it."""

    def load(self, game: Any) -> None:
        self._gamefile, self._game, self._game_progression = None, game, None
        self._inform7 = Inform7Game(game)


class TextWorldWorkerEnv(WorkerEnv):
    def __init__(
        self,
        rooms: int,
        objects: int,
        quest_length: int,
        objective: str,
        narrator: str,
        commands: bool,
        progress_reward: float,
        action_budget: int,
    ) -> None:
        if quest_length > action_budget:
            raise InvalidSetting(
                f"{action_budget} actions are too few for a quest of {quest_length}: raise it.", param="max_turns"
            )
        self.rooms, self.objects, self.quest_length, self.action_budget = rooms, objects, quest_length, action_budget
        self.objective, self.narrator, self.commands = objective, narrator, commands
        self.progress_reward = progress_reward

    def reset(self, seed: int) -> WorkerStep:
        """Generate games until one can be solved within the limits."""
        rng = random.Random(seed)
        for _ in range(MAX_DRAWS):
            options = self._options(rng)
            try:
                game = make_game(options)
            except (QuestGenerationError, NoFreeExitError, NotEnoughNounsError):
                continue
            self.env = self._start(game, options)
            self.state, self.score = self.env.reset(), 0
            if 0 < len(self.state.policy_commands) <= self.action_budget:
                quest = " ".join(game.objective.split())
                text = self._text(str(self.state.description or ""))
                return {"text": f"{QUEST}{quest}\n{text}", "moves": self._moves()}
        raise InvalidSetting("No such game is possible: choose more rooms or objects, or a shorter quest.", param="")

    def step(self, action: str) -> WorkerStep:
        by_name = {command.casefold(): command for command in self.state.admissible_commands}
        command = by_name.get(" ".join(action.split()).casefold())
        if command is None:
            raise IllegalAction(action)
        before = self.score
        self.state, self.score, _ = self.env.step(command)
        won, lost = bool(self.state.won), bool(self.state.lost)
        reward = self.score - before + self.progress_reward * self.state.intermediate_reward
        text = self._text(str(self.state.feedback or ""))
        return {"text": text, "reward": reward, "over": won or lost, "success": won, "moves": self._moves()}

    def solve(self) -> list[str] | None:
        return [str(command) for command in self.state.policy_commands] or None

    def _moves(self) -> list[str]:
        commands = [str(command) for command in self.state.admissible_commands]
        return commands if self.narrator == "inform7" else [move for move in commands if not move.startswith(IDLE)]

    def _text(self, prose: str) -> str:
        seen = trim_prose(prose) if self.narrator == "inform7" else describe_facts(plain_facts(self.state.facts))
        return f"{seen}\nCommands: {', '.join(self._moves())}." if self.commands else seen

    def _options(self, rng: random.Random) -> Any:
        options = textworld.GameOptions()
        options.seeds = {name: rng.getrandbits(32) for name in ("map", "objects", "quest", "grammar")}
        options.nb_rooms, options.nb_objects, options.quest_length = self.rooms, self.objects, self.quest_length
        options.grammar.only_last_action = self.objective == "goal"
        options.kb = knowledge()
        return options

    def _start(self, game: Any, options: Any) -> Any:
        infos = textworld.EnvInfos(**dict.fromkeys(INFOS, True))
        if self.narrator == "facts":
            env = InMemoryGame(infos)
            env.load(game)
            return env
        self.folder = TemporaryDirectory()  # kept as long as the environment
        options.path = str(Path(self.folder.name) / "game.z8")
        return textworld.start(compile_game(game, options), infos)


def trim_prose(prose: str) -> str:
    """Remove the prompt, its status line and the final question whether to restart."""
    text = ENDING.split(prose)[0]
    return re.sub(r"\s*\n\s*", "\n", text).strip()


@cache
def knowledge() -> Any:
    """Return TextWorld's rules, which are parsed once per process."""
    return KnowledgeBase.default()
