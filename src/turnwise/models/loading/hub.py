"""The Hugging Face hub: what can be said of a name before anything is downloaded."""

import logging
import threading
from collections.abc import Callable

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from turnwise.core.errors import UserError
from turnwise.core.suggestions import nearest
from turnwise.models.loading.catalogue import model_names

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0


def is_hub_name(name: str) -> bool:
    """owner/name. A bare name is not looked up: it is more often a mistyped name of ours."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1


def is_hub_available(name: str) -> bool:
    """Whether the hub can be asked for this model; False: it must come, and can come, from the local cache.

    One short question first, because the library itself tries for half a minute and then blames the connection.
    """
    try:
        run_with_timeout(TIMEOUT_S, lambda: HfApi().model_info(name, timeout=TIMEOUT_S))
    except GatedRepoError as error:
        raise UserError(
            f'model "{name}" asks for your agreement: accept its terms at https://huggingface.co/{name}, '
            "then log in with: hf auth login"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f'no model "{name}" on the Hugging Face hub (a private one needs: hf auth login);'
            f"{nearest(name, model_names())}"
        ) from error
    except Exception as error:  # offline in one of many ways: each HTTP library has its own errors
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            raise UserError(
                f'model "{name}" is not on this machine and the Hugging Face hub cannot be reached: '
                "connect, or give a model folder (tiny and smollm2-135m need no hub)"
            ) from error
        logger.info("the Hugging Face hub cannot be reached: %s comes from the local cache", name)
        return False
    return True


def run_with_timeout(limit_s: float, ask: Callable[[], object]) -> None:
    """What `ask` raises, or a TimeoutError. A client's own time-out is of each step, and of each of a host's
    addresses, and looking up its name has none: where packets vanish, that comes to minutes.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            ask()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="hub", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise TimeoutError(f"no answer within {limit_s:g} s")
    if raised:
        raise raised[0]
