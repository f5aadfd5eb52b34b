import threading
from typing import Any

import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

from turnwise.core.errors import UserError
from turnwise.models.loading import hub
from turnwise.models.loading.hub import is_hub_available, is_hub_name


def answer_with(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    def model_info(self: Any, name: str, timeout: float) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(hub.HfApi, "model_info", model_info)


def http_error(kind: type[Exception]) -> Exception:
    """Build an error without the server response that its constructor requires."""
    error = kind.__new__(kind)
    Exception.__init__(error, "from the hub")
    return error


def test_is_hub_name_requires_an_owner() -> None:
    assert is_hub_name("Qwen/Qwen2.5-0.5B-Instruct")
    for name in ("tiny", "a/b/c", "", "a b/c", "/a", "a/", "../x"):
        assert not is_hub_name(name), name


def test_hub_is_available_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, None)
    assert is_hub_available("owner/name")


def test_unreachable_hub_falls_back_to_the_local_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ConnectionError("no route"))
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: "/somewhere/config.json")
    assert not is_hub_available("owner/name")
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: None)
    with pytest.raises(UserError, match="cannot be reached"):
        is_hub_available("owner/name")


def test_unknown_hub_model_suggests_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, http_error(RepositoryNotFoundError))
    with pytest.raises(UserError, match=r'did you mean "Qwen/Qwen2.5-0.5B-Instruct"\?'):
        is_hub_available("Qwen/Qwen2.5-0.5B-Instuct")


def test_gated_hub_model_links_to_its_terms(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, http_error(GatedRepoError))
    with pytest.raises(UserError, match=r"accept its terms at https://huggingface\.co/owner/name"):
        is_hub_available("owner/name")


def test_hub_that_never_answers_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP client's own timeout applies per address and not to the name lookup."""
    answered = threading.Event()
    monkeypatch.setattr(hub.HfApi, "model_info", lambda self, name, timeout: answered.wait(600))
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: None)
    with pytest.raises(
        UserError, match="is not in the local cache and the Hugging Face hub cannot be reached: connect"
    ):
        is_hub_available("owner/name")
    assert not answered.is_set(), "the call returned before the answer"
    answered.set()
