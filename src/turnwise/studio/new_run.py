"""Turn requests of the page into jobs of the queue. The page names runs by their ids in the viewed folder."""

import re
from pathlib import Path
from threading import Lock
from typing import Any

from turnwise.core.errors import UserError
from turnwise.files.disk import unused_path
from turnwise.record.resume_command import resuming_command
from turnwise.record.run_folder import is_finished
from turnwise.studio.form import check_request
from turnwise.studio.jobs import Job
from turnwise.studio.labels import short_path
from turnwise.studio.queue import Queue
from turnwise.studio.requests import RunRequest
from turnwise.viewer.viewed_folder import ViewedFolder

MAX_NAME = 60


class RequestedRuns:
    """Checks and starts the runs of one folder."""

    def __init__(self, root: ViewedFolder, folder: Path, queue: Queue) -> None:
        self._root, self._folder, self._queue = root, folder, queue
        self._starting = Lock()
        """Held from the choice of a run's name until its job is in the queue."""

    def complete(self, request: RunRequest) -> RunRequest:
        """Replace ids of runs by paths. A new run is created in the viewed folder."""
        if request.resume:
            run = self._path_of(request.resume)
            command = resuming_command(run)
            if command is None:
                raise UserError(f"{request.resume} is a loop of your own: continue it with tw.Trainer(resume=...)")
            return request.model_copy(update={"command": command, "resume": str(run)})
        settings = {**request.settings, "record.folder": str(self._folder)}
        parent = str(self._path_of(request.start_from)) if request.start_from else ""
        if request.weights:
            settings = {"model.name": parent, **settings}
        return request.model_copy(update={"start_from": parent, "settings": settings})

    def start(self, request: RunRequest) -> Job:
        """Check a run as the command line does, and add it to the queue. Raises UserError."""
        completed = self.complete(request)
        with self._starting:
            checked = check_request(completed)
            if "error" in checked:
                raise UserError(checked["error"])
            if completed.resume:
                run = Path(completed.resume).resolve()
                self._check_unused(run)
                if is_finished(run):
                    raise UserError(f"{request.resume} is finished. Fork it to train it further.")
                return self._queue.add(completed.spell(), title=f"resume {request.resume}", run=run)
            name = completed.settings.get("record.name") or self._choose_name(checked["settings"])
            run = (self._folder / name).resolve()
            self._check_unused(run)
            named = completed.model_copy(update={"settings": {**completed.settings, "record.name": name}})
            return self._queue.add(named.spell(), title=describe(request), run=run)

    def id_of(self, run: str) -> str:
        """Return the id of a run's folder in the viewed folder."""
        return self._root.shorten_path(run)

    def _path_of(self, run_id: str) -> Path:
        """Return the folder of a run, relative to the working directory if it is below it."""
        return short_path(self._root.find_run(run_id))

    def _choose_name(self, settings: dict[str, dict[str, Any]]) -> str:
        """Return a name that no run and no job has: environment, model and seed."""
        environment, model, seed = (settings[key]["value"] for key in ("env.kind", "model.name", "seed"))
        base = "-".join((_short(environment.rpartition(":")[2]), _short(model), f"seed{seed}"))
        taken = {Path(job.run).name for job in self._queue.jobs() if not job.status.ended}
        path, number = unused_path(self._folder / base), 2
        while path.name in taken:
            path, number = unused_path(self._folder / f"{base}-{number}"), number + 1
        return path.name

    def _check_unused(self, run: Path) -> None:
        for job in self._queue.jobs():
            if not job.status.ended and Path(job.run) == run:
                raise UserError(f"Job {job.number} already writes {self.id_of(str(run))}. Wait for it, or stop it.")


def _short(name: str) -> str:
    """Return the last part of a path or hub name, without characters that a folder's name should not have."""
    last = name.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^\w.-]+", "-", last)[:MAX_NAME].strip(".-") or "run"


def describe(request: RunRequest) -> str:
    """Return the title of a new run's job."""
    if request.start_from:
        return f"fork of {request.start_from}"
    return f"{'SFT on ' if request.command == 'sft' else ''}{request.target}"
