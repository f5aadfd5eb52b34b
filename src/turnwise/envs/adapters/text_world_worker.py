"""One generated game of TextWorld, in its own process."""

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

DRAWS = 30
IDLE = ("examine ", "look", "inventory")
"""Commands that change nothing: the facts are told in any case."""
ENDING = re.compile(r"\n>|\nWould you like to RESTART")
QUEST = "Quest: "
INFOS = {"admissible_commands", "policy_commands", "won", "lost", "facts", "description", "intermediate_reward"}


class InMemoryGame(TextWorldEnv):
    """A game played from memory: its file, read back, would take longer than its generation."""

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
        longest: int,
    ) -> None:
        if quest_length > longest:
            raise InvalidSetting(f"a quest of {quest_length} commands in {longest} actions: raise env.params.max_turns")
        self.rooms, self.objects, self.quest_length, self.longest = rooms, objects, quest_length, longest
        self.objective, self.narrator, self.commands = objective, narrator, commands
        self.progress_reward = progress_reward

    def reset(self, seed: int) -> WorkerStep:
        """Draws until the quest can be fulfilled within the limits."""
        draws = random.Random(seed)
        for _ in range(DRAWS):
            options = self._options(draws)
            try:
                game = make_game(options)
            except (QuestGenerationError, NoFreeExitError, NotEnoughNounsError):
                continue
            self.env = self._started(game, options)
            self.state, self.score = self.env.reset(), 0
            if 0 < len(self.state.policy_commands) <= self.longest:
                quest = " ".join(game.objective.split())
                text = self._text(str(self.state.description or ""))
                return {"text": f"{QUEST}{quest}\n{text}", "moves": self._moves()}
        raise InvalidSetting("env.params: no game like this is found: choose more rooms or objects, or a shorter quest")

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
        return commands if self.narrator == "inform7" else [each for each in commands if not each.startswith(IDLE)]

    def _text(self, prose: str) -> str:
        seen = trimmed(prose) if self.narrator == "inform7" else describe_facts(plain_facts(self.state.facts))
        return f"{seen}\nCommands: {', '.join(self._moves())}." if self.commands else seen

    def _options(self, draws: random.Random) -> Any:
        options = textworld.GameOptions()
        options.seeds = {name: draws.getrandbits(32) for name in ("map", "objects", "quest", "grammar")}
        options.nb_rooms, options.nb_objects, options.quest_length = self.rooms, self.objects, self.quest_length
        options.grammar.only_last_action = self.objective == "goal"
        options.kb = knowledge()
        return options

    def _started(self, game: Any, options: Any) -> Any:
        infos = textworld.EnvInfos(**dict.fromkeys(INFOS, True))
        if self.narrator == "facts":
            env = InMemoryGame(infos)
            env.load(game)
            return env
        self.folder = TemporaryDirectory()  # kept as long as the world is
        options.path = str(Path(self.folder.name) / "game.z8")
        return textworld.start(compile_game(game, options), infos)


def trimmed(prose: str) -> str:
    """Without the prompt, its status line, and the question what to do when all is over."""
    text = ENDING.split(prose)[0]
    return re.sub(r"\s*\n\s*", "\n", text).strip()


@cache
def knowledge() -> Any:
    """TextWorld's rules, parsed once a process."""
    return KnowledgeBase.default()
