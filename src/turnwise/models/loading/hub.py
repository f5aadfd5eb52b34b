"""The Hugging Face hub: check a name before anything is downloaded."""

import logging
import threading
from collections.abc import Callable

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError
from huggingface_hub.utils import validate_repo_id

from turnwise.core.errors import UserError
from turnwise.models.loading.catalogue import model_names
from turnwise.text.suggestions import suggest

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0


def is_hub_name(name: str) -> bool:
    """Return whether the name has the form owner/name. A bare name is more often a mistyped catalogue name."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return name.count("/") == 1


def is_hub_available(name: str) -> bool:
    """Return whether the hub can serve the model; False: the hub is not reachable, but the model is in the local cache.

    Raises UserError if the model can come from neither. One short request first: transformers itself retries for half a
    minute and then reports a connection error.
    """
    try:
        run_with_timeout(TIMEOUT_S, lambda: HfApi().model_info(name, timeout=TIMEOUT_S))
    except GatedRepoError as error:
        raise UserError(
            f'Model "{name}" is gated: accept its terms at https://huggingface.co/{name}, '
            "then log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise UserError(
            f'No model "{name}" on the Hugging Face hub (for a private model, log in with `hf auth login`);'
            f"{suggest(name, model_names())}"
        ) from error
    except Exception as error:  # offline: every HTTP library has its own errors
        if not isinstance(try_to_load_from_cache(name, "config.json"), str):
            raise UserError(
                f'Model "{name}" is not in the local cache and the Hugging Face hub cannot be reached: '
                "connect to the network, or use a model folder, tiny or smollm2-135m."
            ) from error
        logger.info("the Hugging Face hub cannot be reached: loading %s from the local cache", name)
        return False
    return True


def run_with_timeout(timeout_s: float, function: Callable[[], object]) -> None:
    """Call the function in a thread; raise its exception, or TimeoutError.

    An HTTP client's own timeout applies per step and per address of the host, and not to the name lookup: where packets
    are dropped, that adds up to minutes.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="hub", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError(f"no response within {timeout_s:g} s")
    if raised:
        raise raised[0]
