"""Errors of missing optional packages."""

import importlib

import pytest

from turnwise.core.errors import UserError, optional_packages


def test_missing_optional_package_names_what_installs_it() -> None:
    with (
        pytest.raises(UserError, match=r"viewer needs no_such_package\.part\. Run `pip install 'turnwise\[view\]'`"),
        optional_packages("The viewer", "view", "fastapi", "no_such_package"),
    ):
        raise ModuleNotFoundError("No module", name="no_such_package.part")


def test_missing_package_of_another_name_is_not_explained() -> None:
    with pytest.raises(ModuleNotFoundError), optional_packages("The viewer", "view", "fastapi"):
        importlib.import_module("no_such_package")
