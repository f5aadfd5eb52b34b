"""Errors that a person can mend: one line that says what is wrong and what to do about it."""


class UserError(Exception):
    """Something the user gave is wrong. The command line prints the message alone and exits with 2."""


class EnvironmentFailure(Exception):
    """The environment broke. The member is run again; it is never trained on as reward 0."""


class InfrastructureFailure(Exception):
    """An engine, tool server or network broke. The member is run again; it is never trained on as reward 0."""
