"""`import turnwise as tw`: light, and every public name is there when it is asked for."""

import importlib
import subprocess
import sys

import pytest

import turnwise as tw


@pytest.mark.parametrize("name", sorted(tw.PUBLIC))
def test_a_public_name_is_the_thing_it_points_to(name: str) -> None:
    module, _, attribute = tw.PUBLIC[name].partition(":")
    assert getattr(tw, name) is getattr(importlib.import_module(module), attribute)


def test_importing_the_package_imports_nothing_else_of_it_and_nothing_heavy() -> None:
    code = (
        "import sys, turnwise; print([n for n in sys.modules if n.split('.')[0] in ('turnwise', 'torch', 'pydantic')])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "['turnwise']"


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = tw.trian


def test_the_names_are_listed() -> None:
    assert {*tw.PUBLIC, "__version__"} <= set(dir(tw))
    assert tw.__version__.count(".") == 2


def test_train_is_the_function_and_training_the_package() -> None:
    """In a process of its own: here both may have been loaded already."""
    code = "import turnwise as tw, turnwise.training.loop; print(tw.train.__module__, tw.training.loop.Loop.__name__)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["turnwise.recipes.run", "Loop"]
