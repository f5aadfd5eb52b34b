"""List of the built-in environments. Imports none of them, so that listing is instant."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvEntry:
    """Copy of what the class declares; a test keeps both equal."""

    entry_point: str
    """module:Class."""
    summary: str
    """First line of the class's docstring."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Optional dependencies: module -> package to install."""


def install_command(needs: Mapping[str, str]) -> str | None:
    """Return the command that installs missing packages; None if none is missing. Imports nothing."""
    missing = [package for module, package in needs.items() if find_spec(module) is None]
    return f"pip install {' '.join(missing)}" if missing else None


CATALOGUE: dict[str, EnvEntry] = {
    "bandit": EnvEntry(
        entry_point="turnwise.envs.bandit.env:Bandit",
        summary="Two machines: find the one that pays more on average.",
    ),
    "frozen_lake": EnvEntry(
        entry_point="turnwise.envs.frozen_lake.env:FrozenLake",
        summary="Walk over the ice to the goal. A hole ends the game.",
    ),
    "sokoban": EnvEntry(
        entry_point="turnwise.envs.sokoban.env:Sokoban",
        summary="Push every box onto a target. You cannot pull.",
    ),
    "countdown": EnvEntry(
        entry_point="turnwise.envs.countdown.env:Countdown",
        summary="Reach the target with an expression of the numbers.",
    ),
    "sudoku": EnvEntry(
        entry_point="turnwise.envs.sudoku.env:Sudoku",
        summary="Write digits into the empty cells.",
    ),
    "game_2048": EnvEntry(
        entry_point="turnwise.envs.game_2048.env:Game2048",
        summary="The game 2048: all tiles slide, two equal tiles merge into their sum.",
    ),
    "rubiks_cube": EnvEntry(
        entry_point="turnwise.envs.rubiks_cube.env:RubiksCube",
        summary="Turn the faces of a 2 by 2 cube until each has one color.",
    ),
    "tic_tac_toe": EnvEntry(
        entry_point="turnwise.envs.tic_tac_toe.env:TicTacToe",
        summary="Get three in a row, column or diagonal before the opponent does.",
    ),
    "connect_four": EnvEntry(
        entry_point="turnwise.envs.connect_four.env:ConnectFour",
        summary="Pieces fall to the bottom of a column. "
        "Get four in a row, column or diagonal before the opponent does.",
    ),
    "twenty_questions": EnvEntry(
        entry_point="turnwise.envs.twenty_questions.env:TwentyQuestions",
        summary="I think of a thing: ask questions, then guess it.",
    ),
    "guess_city": EnvEntry(
        entry_point="turnwise.envs.guess_city.env:GuessCity",
        summary="I think of a city: ask questions, then guess it.",
    ),
    "math_code": EnvEntry(
        entry_point="turnwise.envs.math_code.env:MathCode",
        summary="Solve the problem. You may run Python.",
    ),
    "code_tests": EnvEntry(
        entry_point="turnwise.envs.code_tests.env:CodeTests",
        summary="Write the function f(xs) of a list of whole numbers. "
        "Code is handed in and tested; you have a few tries.",
    ),
    "text_to_sql": EnvEntry(
        entry_point="turnwise.envs.text_to_sql.env:TextToSql",
        summary="Write a SQLite query that answers the question.",
    ),
    "web_shop": EnvEntry(
        entry_point="turnwise.envs.web_shop.env:WebShop",
        summary="Buy what is asked for in a web shop.",
    ),
    "tools": EnvEntry(
        entry_point="turnwise.envs.tools.env:Tools",
        summary="Answer the question; use the tools where they help.",
    ),
    "lookup": EnvEntry(
        entry_point="turnwise.envs.lookup.env:Lookup",
        summary="In which room is the person? Only the tool knows: rooms differ every time.",
    ),
    "search_qa": EnvEntry(
        entry_point="turnwise.envs.search_qa.env:SearchQA",
        summary="Answer the question in a few words; search for what you need.",
        needs={"bm25s": "'turnwise[search]'"},
    ),
    "deep_search": EnvEntry(
        entry_point="turnwise.envs.search_qa.env:DeepSearch",
        summary="Answer the question in a few words; it takes several searches, each for what the last one told.",
        needs={"bm25s": "'turnwise[search]'"},
    ),
    "svg_reconstruction": EnvEntry(
        entry_point="turnwise.envs.svg_reconstruction.env:SvgReconstruction",
        summary="Write SVG that draws the picture.",
        needs={"resvg_py": "'turnwise[svg]'", "PIL": "'turnwise[svg]'"},
    ),
    "gymnasium": EnvEntry(
        entry_point="turnwise.envs.adapters.package_envs:GymnasiumEnv",
        summary="An environment of Gymnasium with discrete actions, in words or images.",
        needs={"gymnasium": "'turnwise[gymnasium]'"},
    ),
    "reasoning_gym": EnvEntry(
        entry_point="turnwise.envs.adapters.package_envs:ReasoningGymEnv",
        summary="A generated task with one answer, of reasoning-gym.",
        needs={"reasoning_gym": "'turnwise[reasoning-gym]'"},
    ),
    "text_arena": EnvEntry(
        entry_point="turnwise.envs.adapters.package_envs:TextArenaEnv",
        summary="A game of TextArena, for one player or against a scripted opponent.",
        needs={"textarena": "'turnwise[textarena]'"},
    ),
    "text_world": EnvEntry(
        entry_point="turnwise.envs.adapters.package_envs:TextWorldEnv",
        summary="Fulfil the quest of a generated text adventure, of TextWorld.",
        needs={"textworld": "'turnwise[textworld]'"},
    ),
}
