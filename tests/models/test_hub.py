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
    """These want a server's response, which is not what is tested here."""
    error = kind.__new__(kind)
    Exception.__init__(error, "from the hub")
    return error


def test_hub_names_have_an_owner() -> None:
    assert is_hub_name("Qwen/Qwen2.5-0.5B-Instruct")
    for name in ("tiny", "a/b/c", "", "a b/c", "/a", "a/", "../x"):
        assert not is_hub_name(name), name


def test_the_hub_is_asked_when_it_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, None)
    assert is_hub_available("owner/name")


def test_an_unreachable_hub_means_the_cache_if_the_model_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ConnectionError("no route"))
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: "/somewhere/config.json")
    assert not is_hub_available("owner/name")
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: None)
    with pytest.raises(UserError, match="cannot be reached"):
        is_hub_available("owner/name")


def test_a_model_that_the_hub_does_not_have_is_answered_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, http_error(RepositoryNotFoundError))
    with pytest.raises(UserError, match=r'did you mean "Qwen/Qwen2.5-0.5B-Instruct"\?'):
        is_hub_available("Qwen/Qwen2.5-0.5B-Instuct")


def test_a_gated_model_says_where_to_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, http_error(GatedRepoError))
    with pytest.raises(UserError, match=r"accept its terms at https://huggingface\.co/owner/name"):
        is_hub_available("owner/name")


def test_a_hub_that_swallows_what_is_sent_is_given_up_in_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's time-out is of each address that the name has, and none is of looking the name up."""
    answered = threading.Event()
    monkeypatch.setattr(hub.HfApi, "model_info", lambda self, name, timeout: answered.wait(600))
    monkeypatch.setattr(hub, "TIMEOUT_S", 0.05)
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda name, file: None)
    with pytest.raises(
        UserError, match="is not on this machine and the Hugging Face hub cannot be reached: connect, or"
    ):
        is_hub_available("owner/name")
    assert not answered.is_set(), "nobody waited for it"
    answered.set()
