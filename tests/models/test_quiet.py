import pytest
from transformers.utils import logging

from turnwise.models.loading.pretrained import quiet_transformers


def state() -> tuple[int, bool]:
    return logging.get_verbosity(), logging.is_progress_bar_enabled()


def test_reports_and_bars_are_off_inside_and_as_they_were_afterwards() -> None:
    before = state()
    with pytest.raises(KeyError), quiet_transformers():
        assert state() == (logging.ERROR, False)
        raise KeyError
    assert state() == before


def test_bars_can_be_kept_for_downloads() -> None:
    logging.enable_progress_bar()
    with quiet_transformers(progress_bars=True):
        assert state() == (logging.ERROR, True)


def test_bars_that_were_off_stay_off() -> None:
    logging.disable_progress_bar()
    try:
        with quiet_transformers():
            pass
        assert not logging.is_progress_bar_enabled()
    finally:
        logging.enable_progress_bar()
