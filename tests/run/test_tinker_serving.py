"""`turnwise serve --tinker`: keys, options, and the process itself."""

import signal
from pathlib import Path

import pytest

from tinker_for_tests import KEY, OTHER_KEY, RawClient, served_process
from turnwise.cli.main import main
from turnwise.core.errors import UserError
from turnwise.run.tinker_serving import read_keys


def test_random_key_is_kept_in_the_folder(tmp_path: Path) -> None:
    first = read_keys(tmp_path, None, None)
    assert first == read_keys(tmp_path, None, None) and first["default"].startswith("tml-")
    assert (tmp_path / "api_key").stat().st_mode & 0o077 == 0
    assert read_keys(tmp_path, KEY, None) == {"default": KEY}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice", "line 1 must be NAME=KEY"),
        (f"alice={KEY}\nalice={OTHER_KEY}", "line 2 must be NAME=KEY"),
        (f"alice={KEY}\nbob={KEY}", "line 2 must be NAME=KEY"),
        ("alice=secret", "line 1 must start with tml-"),
        ("\n", "has no key"),
    ],
)
def test_key_files_that_are_wrong_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(text)
    with pytest.raises(UserError, match=message):
        read_keys(tmp_path, None, file)


def test_key_file_names_the_tenants(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(f"alice = {KEY}\n\nbob={OTHER_KEY}\n")
    assert read_keys(tmp_path, None, file) == {"alice": KEY, "bob": OTHER_KEY}
    with pytest.raises(UserError, match="exclude each other"):
        read_keys(tmp_path, KEY, file)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tinker", "--train"), "--train has an effect only without --tinker"),
        (("--tinker", "--admin-token", "x"), "--admin-token has an effect only without --tinker"),
        (("--keys", "x"), "--keys has an effect only with --tinker"),
        (("--tinker", "--model.name", "tniy"), 'did you mean "tiny"'),
        (("--tinker", "--model.name", "tiny", "--api-key", "secret"), "--api-key must start with tml-"),
        (("--tinker", "--model.name", "tiny_vlm"), "reads images"),
    ],
)
def test_command_refuses_options(
    options: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_command_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    with served_process(tmp_path / "served") as (url, child):
        client = RawClient(url)
        (model,) = client.call("get_server_capabilities", method="GET")["supported_models"]
        assert model == {"model_name": "tiny", "max_context_length": 4096, "trainable": True, "sampleable": True}
        client.create_model(client.open_session())
        child.send_signal(signal.SIGINT)
        assert child.wait(120) == 0
