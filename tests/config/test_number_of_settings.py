"""Settings are what a user has to read. A feature that adds one removes another."""

from turnwise.config.keys import all_keys

MAX_SETTINGS = 170


def test_number_of_settings_does_not_grow() -> None:
    assert len(all_keys()) <= MAX_SETTINGS
