"""Errors that a person can mend: one line that says what is wrong and what to do about it."""


class UserError(Exception):
    """Something the user gave is wrong. The command line prints the message alone and exits with 2."""


class Outage(UserError):
    """What a run depends on is gone, broken or refuses it, and no setting is wrong: mended, the run can go on."""


class DivergedError(UserError):
    """The weights are no longer finite. Nothing of the step that did it may be saved."""


class EnvironmentFailure(Exception):
    """The environment broke. The member is run again; it is never trained on as reward 0."""


class InfrastructureFailure(Exception):
    """An engine, tool server or network broke. The member is run again; it is never trained on as reward 0."""


class RewardFailure(InfrastructureFailure):
    """A reward came to no verdict, as where its judge is gone: told apart from what the agent's world breaks by."""


FOREIGN_ERRORS = (Exception, SystemExit)
"""What code of others may raise, to be typed where it is called: `sys.exit(0)` in it must not end the run. Ctrl-C and a
cancelled task pass."""


def format_times(count: int) -> str:
    """How often something was tried, at the end of a failure's line."""
    return "once" if count == 1 else f"{count} times"
