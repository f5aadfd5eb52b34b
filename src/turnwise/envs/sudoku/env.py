"""Sudoku: fill the empty cells of a board with one solution; digits may be replaced."""

import random
from functools import lru_cache
from math import isqrt
from typing import Annotated, Any, Literal

from pydantic import Field

from turnwise.core.messages import Content, Picture
from turnwise.envs.picture_env import PictureEnv
from turnwise.envs.sudoku.puzzle import Board, candidates, format_placement, generate_puzzle, parse_placement
from turnwise.envs.text_env import Outcome, StrictParams, goes_on, won

EMPTY = "_"
TEXT_LEGEND = f"{EMPTY} empty. Row numbers are left, column numbers are on top."
PICTURE_LEGEND = "The image shows the board; rows count from the top, columns from the left, both from 1."


def default_blanks(params: dict[str, Any]) -> int:
    return 6 if params["size"] == 4 else 30


class Sudoku(PictureEnv):
    """Write digits into the empty cells."""

    split_start_states = True
    max_turns = 10
    max_actions_per_turn = 5
    fact_example = "3 at row 1 col 2"

    class Params(StrictParams):
        size: Literal[4, 9] = 4
        """Rows and columns, 4 or 9."""
        blanks: Annotated[int, Field(ge=1, le=64, default_factory=default_blanks)]
        """Empty cells, fewer if the limits or a unique solution require it. Default: 6, or 30 for size 9."""
        correct_reward: float = 1.0
        """Reward of a cell with the right digit."""
        legal_reward: float = 0.5
        """Reward of a cell with a wrong digit that breaks no rule."""
        illegal_reward: float = -0.1
        """Reward of a placement that breaks a rule; it changes nothing."""
        solved_reward: float = 10.0
        """Reward of completing the board, in addition to the last cell's."""

    params: Params

    def rules(self) -> str:
        size, box = self.params.size, isqrt(self.params.size)
        return (
            f"{super().rules()} Each row, each column and each {box} by {box} box must have every digit from 1 to "
            f"{size} once. {TEXT_LEGEND if self.shows_text else PICTURE_LEGEND}\n"
            "Action: place 3 at row 2 col 1, or the same as 2,1,3 (row, col, digit). "
            "You may write over your digits, and 0 to make a cell empty."
        )

    def reset(self, rng: random.Random) -> Content:
        self.puzzle = generate_puzzle(rng, size=self.params.size, blanks=min(self.params.blanks, self.action_budget))
        self.board = self.puzzle.start
        return self.observe()

    def observe(self, before: str = "") -> Content:
        """An image does not show which cells may be changed."""
        after = "" if self.shows_text else changed_cells(self.puzzle.start, self.board)
        return self.show(self.state_key(), before=before, after=after)

    def step(self, action: str) -> Outcome:
        """A cell's reward depends on its digit, so replacing a digit pays the difference."""
        cell, digit = parse_placement(action, self.params.size)
        if rule_violation := self.rule_violation(cell, digit):
            return goes_on(self.observe(f"Not legal: {rule_violation}"), self.params.illegal_reward)
        before = self.cell_reward(cell)
        self.board = (*self.board[:cell], digit, *self.board[cell + 1 :])
        reward = self.cell_reward(cell) - before
        if self.board == self.puzzle.solution:
            return won(self.observe(), reward + self.params.solved_reward)
        return goes_on(self.observe(), reward)

    def rule_violation(self, cell: int, digit: int) -> str:
        """Return the rule that this placement breaks; empty if none."""
        if self.puzzle.start[cell]:
            return "that is not your cell."
        if digit and digit not in candidates(self.board, cell):
            return f"its row, column or box has {digit}."
        return ""

    def cell_reward(self, cell: int) -> float:
        if not self.board[cell]:
            return 0.0
        right = self.board[cell] == self.puzzle.solution[cell]
        return self.params.correct_reward if right else self.params.legal_reward

    def random_action(self, rng: random.Random) -> str:
        """A legal digit in an empty cell; if there is none, clear one of the agent's cells."""
        cells = [cell for cell, digit in enumerate(self.board) if not digit]
        for cell in rng.sample(cells, len(cells)):
            if digits := candidates(self.board, cell):
                return format_placement(cell, rng.choice(digits), self.params.size)
        filled = [cell for cell, digit in enumerate(self.puzzle.start) if not digit and self.board[cell]]
        return format_placement(rng.choice(filled), 0, self.params.size)

    def solve(self) -> list[str]:
        """Clear wrong cells, then fill the others, the most constrained cell first."""
        board, solution = list(self.board), self.puzzle.solution
        wrong = [cell for cell, digit in enumerate(board) if digit not in (0, solution[cell])]
        actions = [format_placement(cell, 0, self.params.size) for cell in wrong]
        for cell in wrong:
            board[cell] = 0
        while 0 in board:
            empty = (cell for cell, digit in enumerate(board) if not digit)
            cell = min(empty, key=lambda empty_cell: len(candidates(board, empty_cell)))
            board[cell] = solution[cell]
            actions.append(format_placement(cell, solution[cell], self.params.size))
        return actions

    def draw(self) -> Picture:
        return draw_board(self.board)

    def state_key(self) -> str:
        return board_text(self.puzzle.start, self.board)


@lru_cache(maxsize=4096)
def draw_board(board: Board) -> Picture:
    """Cached: asked for several times per turn."""
    size = isqrt(len(board))
    names = [str(digit) if digit else "empty" for digit in board]
    return Picture(rows=tuple(tuple(names[first : first + size]) for first in range(0, len(board), size)))


@lru_cache(maxsize=4096)
def board_text(start: Board, board: Board) -> str:
    """The board and the cells that may be changed: all that is needed to act without earlier observations."""
    size = isqrt(len(board))
    symbols = [str(digit) if digit else EMPTY for digit in board]
    lines = ["   " + " ".join(str(col) for col in range(1, size + 1))]
    lines += [f"{row + 1}: {' '.join(symbols[row * size : (row + 1) * size])}" for row in range(size)]
    return "\n".join(line for line in (*lines, changed_cells(start, board)) if line)


def changed_cells(start: Board, board: Board) -> str:
    """List the cells that the agent filled; empty if there are none."""
    size = isqrt(len(board))
    filled = [cell for cell, digit in enumerate(start) if not digit and board[cell]]
    return "Your cells: " + " ".join(f"{cell // size + 1},{cell % size + 1}" for cell in filled) if filled else ""
