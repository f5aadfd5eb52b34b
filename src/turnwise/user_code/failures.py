"""Failures of environment code, which are retried and never rewarded."""

from collections.abc import Iterator
from contextlib import contextmanager

from turnwise.core.errors import FOREIGN_ERRORS, EnvironmentFailure, ImageError, InfrastructureFailure, UserError
from turnwise.user_code.source_location import describe_bug


@contextmanager
def failure_boundary(where: str, passing: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Convert an exception of environment code into EnvironmentFailure: the member is retried, not rewarded 0.

    Typed failures, `passing`, and errors that the user has to fix (a rejected API key, an exhausted budget) pass. An
    image that cannot be used fails only its episode: a camera or a download may break one of thousands.
    """
    typed: tuple[type[Exception], ...] = (UserError, EnvironmentFailure, InfrastructureFailure, *passing)
    try:
        yield
    except ImageError as error:
        raise EnvironmentFailure(f"{where}: {error}") from error
    except typed:
        raise
    except FOREIGN_ERRORS as error:
        raise EnvironmentFailure(f"{where} raised {describe_bug(error)}") from error
