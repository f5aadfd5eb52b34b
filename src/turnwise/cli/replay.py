"""`turnwise replay` and `turnwise audit`."""

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from turnwise.cli.output import print_line, print_table, progress_bars
from turnwise.cli.parsing import command_app
from turnwise.core.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnwise.evaluation.replay import Branches, Difference
    from turnwise.record.selection import RecordedEpisode
    from turnwise.run.replay import Replay, ReplayResult

audit_app = command_app("audit", "RUN")
replay_app = command_app("replay", "RUN [--step N] [--group N] [--member N] [OPTIONS]")

Number = Annotated[int | None, Parameter(metavar="N")]
MAX_SHOWN = 60
"""Characters of a value or action in a line."""


@replay_app.default
def replay(
    run: str,
    /,
    *,
    step: Number = None,
    group: Number = None,
    member: Number = None,
    evaluation: Literal["before", "validation", "after"] | None = None,
    from_turn: Number = None,
    all_turns: Annotated[bool, Parameter(negative="")] = False,
    samples: Annotated[int, Parameter(metavar="N")] = 64,
    model: Annotated[str | None, Parameter(metavar="NAME")] = None,
) -> None:
    """Play recorded episodes again, and sample branches from their turns.

    Parameters
    ----------
    run
        Run: its folder, or its name in runs/.
    step
        Step of the episodes. Default: all.
    group
        Group of the episodes in each step, counted from 0 as in the viewer. Default: all.
    member
        Member of each group, counted from 0. Default: all.
    evaluation
        Episodes of this evaluation instead of training.
    from_turn
        Sample how the episode goes on from this turn; 1 is the first.
    all_turns
        Sample from every turn: shows at which one the episode was lost.
    samples
        Branches per turn. Default: 64.
    model
        What samples branches: a checkpoint of the run by its name, "start", another run, or a model. Default: the
        weights that sampled the episode, or the newest checkpoint if they are not kept.
    """
    if samples < 1:
        raise UserError(f"--samples {samples}: must be 1 or more.")
    from turnwise.files.run_folders import find_run_folder
    from turnwise.record.selection import Selection, branched_turns

    path = find_run_folder(run)  # before torch is imported
    turns = branched_turns(from_turn, all_turns=all_turns)
    selection = Selection(step=step, group=group, member=member, evaluation=evaluation)
    from turnwise.run.replay import replay as play_again

    with progress_bars() as show:
        result = play_again(path, selection, turns=turns, samples=samples, model=model, progress=show)
    _print_result(result)
    if result.branches:
        _print_branches(result.replays[0].recorded, result.branches, result.model)
    if result.differing:
        raise UserError(
            f"{len(result.differing)} of {len(result.replays)} episodes differ from their records: the environment, a "
            "package or the machine is not the one that played them."
        )


@audit_app.default
def audit(run: str, /) -> None:
    """Check the files of a run; the exit status is not 0 if something is wrong.

    Parameters
    ----------
    run
        Run: its folder, or its name in runs/.
    """
    from turnwise.files.run_folders import find_run_folder

    path = find_run_folder(run)
    from turnwise.run.audit import CHECKS
    from turnwise.run.audit import audit as check

    with progress_bars() as show:
        result = check(path, lambda done, total: show("steps", done, total))
    print_line(f"{result.steps:,} steps, {result.episodes:,} episodes, {result.dropped:,} dropped")
    for finding in result.findings:
        more = f" (and {len(finding.problems) - 1:,} more)" if len(finding.problems) > 1 else ""
        verdict = f"wrong  {finding.problems[0]}{more}" if finding.problems else f"ok     {CHECKS[finding.check]}"
        print_line(f"{finding.check:<8} {verdict}")
    if failed := sum(bool(finding.problems) for finding in result.findings):
        raise UserError(f"{failed} of {len(result.findings)} checks failed. Files of the run are missing or changed.")


def _print_result(result: "ReplayResult") -> None:
    _print_replays("environment, contexts and rewards", result.replays)
    if result.resampled:
        _print_replays(f"tokens, sampled again by {result.model}", result.resampled)
    elif len({replay.recorded.step for replay in result.replays}) > 1:
        print_line("not sampled again: each step has weights of its own. Name one with --step.")
    else:
        print_line("not sampled again: the run does not keep the weights that sampled them (checkpoint.keep_last).")


def _print_replays(what: str, replays: "Sequence[Replay]") -> None:
    differing = [replay for replay in replays if replay.difference is not None]
    if len(replays) == 1:
        print_line(f"{'different' if differing else 'equal'}: {what}, {_describe_length(replays[0].recorded)}")
    else:
        print_line(f"{len(replays) - len(differing):,} of {len(replays):,} episodes equal: {what}")
    if differing:
        first = differing[0]
        assert first.difference is not None
        print_line(f"{first.recorded.describe()}: {_describe_difference(first.difference)}")


def _describe_length(episode: "RecordedEpisode") -> str:
    trajectory = episode.trajectory
    return f"{len(trajectory.turns)} turns, {trajectory.num_sampled} sampled tokens, {trajectory.status.value}"


def _describe_difference(difference: "Difference") -> str:
    before, now = difference.recorded, difference.replayed
    place = "the episode" if difference.turn is None else f"turn {difference.turn + 1}"
    where = ""
    if isinstance(before, tuple) and isinstance(now, tuple):
        same = next((at for at, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), None)
        same = min(len(before), len(now)) if same is None else same
        before, now, where = before[same : same + 8], now[same : same + 8], f" from position {same} on"
    return f"{place}: {difference.name}{where} was {_shorten(before)} and is {_shorten(now)}"


def _shorten(value: object) -> str:
    text = " ".join(str(value).split())
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _print_branches(episode: "RecordedEpisode", branches: "Sequence[Branches]", model: str) -> None:
    """Print the value of the state before each turn, and where it fell most."""
    from turnwise.evaluation.replay import find_lost_turn

    turns, succeeded = episode.trajectory.turns, episode.trajectory.status.succeeded
    values = [branch.success for branch in branches]
    lost = find_lost_turn([*values, float(succeeded)]) if len(branches) == len(turns) else None
    rows = []
    for number, branch in enumerate(branches):
        low, high = branch.interval
        success = f"{100 * branch.success:5.1f} % ({100 * low:.1f} to {100 * high:.1f})"
        mark = "  <- lost here" if number == lost and not succeeded else ""
        rows.append((str(branch.turn + 1), success, f"{_shorten(turns[branch.turn].message.content)}{mark}"))
    print_line()
    print_table(("turn", "success from here", "what the agent did"), rows)
    print_line(f"{len(branches[0].episodes)} branches a turn, sampled by {model}")
