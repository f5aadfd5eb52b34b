"""`turnwise serve`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from turnwise.cli.output import print_now
from turnwise.cli.parsing import LISTEN, ListenArguments, Settings, command_app, merge_settings
from turnwise.core.errors import UserError, optional_packages
from turnwise.network.ports import check_port

serve_app = command_app("serve", "--model.name RUN|MODEL [OPTIONS] [--SECTION.KEY VALUE]...")


@serve_app.default
def serve(
    *,
    listen: ListenArguments = LISTEN,
    train: bool = False,
    tinker: bool = False,
    resume: Annotated[str | None, Parameter(metavar="RUN")] = None,
    name: Annotated[str | None, Parameter(metavar="NAME")] = None,
    seed: int | None = None,
    api_key: Annotated[str | None, Parameter(metavar="TEXT")] = None,
    admin_token: Annotated[str | None, Parameter(metavar="TEXT")] = None,
    keys: Annotated[Path | None, Parameter(metavar="FILE")] = None,
    out: Annotated[Path | None, Parameter(metavar="PATH")] = None,
    overrides: Settings = (),
) -> None:
    """Serve a model to agents.

    Parameters
    ----------
    train
        Train the model on the episodes of a `tw.Trainer(url=...)` on another machine. Takes all settings of `train`.
    tinker
        Serve Tinker's training API: programs with Tinker's SDK train adapters of the model, and sample from them.
    resume
        With --train: run to continue from its last checkpoint.
    name
        With --train: name of the run folder.
    seed
        With --train: random seed.
    api_key
        API key of the agents. Default: a random one. With the same key, a restarted server continues earlier calls.
        With --tinker, the key of Tinker's SDK. Default: a random one, which is kept in --out.
    admin_token
        Token of the routes that open and close episodes. Default: there are no such routes. With --train, the api_key
        of `tw.Trainer`. Default: a random one.
    keys
        With --tinker: file with a line NAME=KEY for each of several tenants, who do not see each other's models.
    out
        SQLite file of the recorded calls; their images are in images/ beside it. Default: runs/serve/calls.sqlite.
        With --tinker, the folder of models and requests. Default: runs/tinker.
    """
    check_port(listen.port)
    if tinker:
        others = {"--train": train or None, "--resume": resume, "--name": name, "--seed": seed}
        _refuse("only without --tinker", {**others, "--admin-token": admin_token})
        _serve_tinker(overrides, host=listen.host, port=listen.port, api_key=api_key, keys=keys, out=out)
        return
    _refuse("only with --tinker", {"--keys": keys})
    if train:
        _refuse("only without --train", {"--api-key": api_key, "--out": out})
    else:
        from turnwise.run.setting_names import check_served_model

        _refuse("only with --train", {"--resume": resume, "--name": name, "--seed": seed})
        _check_calls_file(out)
        check_served_model(overrides)
    with optional_packages("The gateway", "gateway", "starlette", "uvicorn"):
        from turnwise.run.serving import CALLS, SECTIONS, serve_training
        from turnwise.run.serving import serve as serve_model
    options: dict[str, Any] = {"host": listen.host, "port": listen.port, "admin_token": admin_token, "write": print_now}
    if train:
        serve_training(merge_settings(overrides, record__name=name, seed=seed), resume=resume, **options)
    else:
        serve_model(merge_settings(overrides, SECTIONS), api_key=api_key, out=out or CALLS, **options)


def _serve_tinker(
    overrides: Settings, *, host: str, port: int, api_key: str | None, keys: Path | None, out: Path | None
) -> None:
    from turnwise.run.setting_names import check_served_model

    check_served_model(overrides)
    with optional_packages("Tinker's API", "tinker", "starlette", "uvicorn", "google"):
        from turnwise.run.tinker_serving import SECTIONS, serve_tinker
    settings = merge_settings(overrides, SECTIONS)
    serve_tinker(settings, host=host, port=port, api_key=api_key, keys=keys, folder=out, write=print_now)


def _check_calls_file(out: Path | None) -> None:
    """Raise UserError if the calls cannot be recorded there."""
    from turnwise.files.disk import check_can_create, wrap_disk_errors

    if out is not None and out.is_dir():
        raise UserError(f"--out {out} is a folder. Name a file, e.g. {out / 'calls.sqlite'}.")
    if out is not None:
        with wrap_disk_errors(out, "start again, or choose another file with --out"):
            check_can_create(out.parent)


def _refuse(when: str, options: Mapping[str, object]) -> None:
    for option, value in options.items():
        if value is not None:
            raise UserError(f"{option} has an effect {when}: remove it.")
