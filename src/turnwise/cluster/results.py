"""Results of actors as bytes, which any process can read. Needs no torch."""

import pickle
import traceback
from typing import Any

from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError


def encode_result(result: object) -> bytes:
    """Pickle a result or an exception. What cannot be pickled becomes an exception of this result alone."""
    if isinstance(result, Exception):
        return pickle.dumps(_portable(result))
    try:
        return pickle.dumps(result)
    except Exception as error:
        return pickle.dumps(
            EnvironmentFailure(f"The episode's info cannot be sent between processes ({error}). Use plain values.")
        )


def decode_result(encoded: bytes) -> Any:
    """Return the result, or raise it if it is an exception."""
    result = pickle.loads(encoded)
    if isinstance(result, Exception):
        raise result
    return result


def _portable(error: Exception) -> Exception:
    """Return an exception that any process can unpickle: our own as they are, others as text with their traceback."""
    if type(error).__module__.startswith("turnwise.") and isinstance(
        error, UserError | EnvironmentFailure | InfrastructureFailure
    ):
        return type(error)(str(error))
    return RuntimeError("".join(traceback.format_exception(error)).rstrip())
