"""A player that looks a few plies ahead, by alpha-beta search. What lies beyond counts as even: it is not perfect.

The score of a position for the player to move: who wins gets the plies that are left then, 1 to `depth`, so that sooner
is more; who loses gets minus that; 0 if nobody wins within `depth` plies. The last plies are not played but seen:
cells that complete four, and cells below one that would complete the other player's.
"""

from functools import lru_cache

from turnwise.envs.connect_four.board import Board
from turnwise.envs.connect_four.game import ConnectFourGame


@lru_cache(maxsize=1 << 14)
def best_moves(game: ConnectFourGame, depth: int) -> tuple[str, ...]:
    """All moves that look best `depth` plies ahead, those nearest to the middle first."""
    board, mine, theirs = game.board, game.stones[game.player], game.stones[1 - game.player]
    if wins := game.landing & board.completing(mine):
        return _names(board, wins)
    if depth == 1:
        return _names(board, game.landing)
    threats, safe = _threats_and_safe(board, game.landing, theirs)
    if not safe:
        return _names(board, threats or game.landing)
    scores: dict[str, int] = {}
    best = -depth
    for move in _names(board, safe):
        cell = safe & board.columns_by_name[move]
        scores[move] = -look_ahead(board, theirs, mine | cell, depth - 1, -depth, 1 - best)  # exact from `best` on
        best = max(best, scores[move])
    return tuple(move for move, score in scores.items() if score == best)


def look_ahead(board: Board, mine: int, theirs: int, depth: int, alpha: int, beta: int) -> int:
    """The score for a player who is to move and cannot win at once. Exact between `alpha` and `beta`, else a bound."""
    landing = board.landing(mine | theirs)
    if depth == 1 or not landing:
        return 0
    _, safe = _threats_and_safe(board, landing, theirs)
    if not safe:
        return 1 - depth
    if depth == 2:
        return 0
    best, most = -depth, min(beta, depth - 2)
    for column in board.columns_from_middle:
        if best >= most:
            break
        if cell := safe & column:
            best = max(best, -look_ahead(board, theirs, mine | cell, depth - 1, -most, -max(alpha, best)))
    return best


def _threats_and_safe(board: Board, landing: int, theirs: int) -> tuple[int, int]:
    """Where the other player would win with the next piece; and the moves after which it cannot."""
    danger = board.completing(theirs)
    threats = landing & danger
    if threats & (threats - 1):  # two of them: both cannot be stopped
        return threats, 0
    return threats, (threats or landing) & ~(danger >> 1)


def _names(board: Board, cells: int) -> tuple[str, ...]:
    return tuple(move for move in board.moves_from_middle if cells & board.columns_by_name[move])
