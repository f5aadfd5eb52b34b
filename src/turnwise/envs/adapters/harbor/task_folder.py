"""Folders of Harbor tasks: read once, checked, and divided into splits by their contents."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from turnwise.core.errors import UserError
from turnwise.core.task import Split
from turnwise.envs.adapters.harbor.dockerfile import Plan, check_image, read_dockerfile
from turnwise.envs.adapters.harbor.installs import check_script
from turnwise.envs.adapters.harbor.settings import TaskSettings, read_settings
from turnwise.envs.adapters.harbor.types import Unsupported
from turnwise.envs.param_setting import param_setting
from turnwise.envs.seeds import FIRST_SEED, split_of_state
from turnwise.text.truncation import first_line

SETTINGS_FILE = "task.toml"
CANARY = re.compile(r"^(<!--.*canary.*-->|#.*canary.*)$", re.IGNORECASE)
"""Lines at the start of instructions by which benchmarks are found in training data. Agents do not see them."""
HASHED = ("instruction.md", "environment", "tests")
"""Contents that identify a task: folders that share them are one task, whatever their names."""
READABLE_ROOTS = ("/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec", "/usr/share")
"""Folders of this machine that agents can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarborTask:
    """One task folder."""

    name: str
    folder: Path
    instruction: str = ""
    settings: TaskSettings = field(default_factory=TaskSettings)
    plan: Plan = field(default_factory=Plan)
    key: str = ""
    """Hash of the contents."""
    split: Split | None = None
    problem: str = ""
    """Why the task cannot run here; empty if it can."""
    container: str = ""
    """Why the task needs a container; empty if the sandbox can run it."""
    tests_need_network: bool = False
    """Whether the tests install or download something, which only a container can."""

    @property
    def has_json_reward(self) -> bool:
        """Whether the tests name reward.json. If they do not, such a file is the agent's."""
        return any(b"reward.json" in path.read_bytes() for path in files_below(self.folder / "tests"))

    @property
    def solution(self) -> str | None:
        """The commands of solve.sh; None without it, or if it needs other files of its folder."""
        path = self.folder / "solution" / "solve.sh"
        if not path.is_file() or len(files_below(path.parent)) > 1:
            return None
        lines = path.read_text(encoding="utf-8").splitlines()
        if lines and lines[0].startswith("#!"):
            lines.pop(0)
        exports = [f"export {name}={value!r}" for name, value in self.settings.solution.env.items()]
        script = "\n".join([*exports, *lines]).strip("\n")
        return None if "/solution" in script or "$0" in script or "BASH_SOURCE" in script else script


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """The tasks of a folder that can run, by split."""

    folder: Path
    splits: dict[Split, tuple[HarborTask, ...]]
    unsupported: tuple[HarborTask, ...]

    @property
    def tasks(self) -> tuple[HarborTask, ...]:
        return tuple(task for tasks in self.splits.values() for task in tasks)

    @property
    def packages(self) -> tuple[str, ...]:
        """Python packages that some task installs."""
        return tuple(sorted({package for task in self.tasks for package in task.plan.packages}))

    def of_split(self, split: Split) -> tuple[HarborTask, ...]:
        if tasks := self.splits[split]:
            return tasks
        raise UserError(
            f"{self.folder} has no task for the split {split}: a hash divides its {len(self.tasks)} different tasks. "
            f'Add tasks, or write split = "{split}" into [metadata] of some.'
        )


def load_tasks(folder: str, images: Sequence[str] = (), *, containers: bool = False) -> TaskSet:
    """Read all tasks below a folder, once. Raises UserError if there is none, or one is in two splits."""
    path = Path(folder).expanduser().resolve()
    if any(path.is_relative_to(root) for root in READABLE_ROOTS):
        raise UserError(f"{path} is in a folder that agents can read, with its tests: move the tasks elsewhere.")
    return _load(path, tuple(images), containers)


@lru_cache(maxsize=16)
def _load(folder: Path, images: tuple[str, ...], containers: bool) -> TaskSet:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: {param_setting('folder')} is a folder of Harbor tasks.")
    folders = {path.parent for path in folder.rglob(SETTINGS_FILE)}
    outermost = sorted(path for path in folders if folders.isdisjoint(path.parents))  # a task may contain such a file
    if not outermost:
        raise UserError(f"{folder} has no Harbor task: none of its folders has a {SETTINGS_FILE}.")
    tasks = [
        _read_task(path, path.relative_to(folder).as_posix() or path.name, images, containers) for path in outermost
    ]
    return TaskSet(
        folder=folder,
        splits=_divide([task for task in tasks if not task.problem]),
        unsupported=tuple(task for task in tasks if task.problem),
    )


def _read_task(folder: Path, name: str, images: Sequence[str], containers: bool) -> HarborTask:
    task = HarborTask(name=folder.name if name == "." else name, folder=folder)
    try:
        return _check_task(task, images, containers)
    except Unsupported as error:
        return replace(task, problem=first_line(str(error)))
    except (OSError, UnicodeDecodeError) as error:
        return replace(task, problem=f"it cannot be read ({first_line(str(error))})")


def _check_task(task: HarborTask, images: Sequence[str], containers: bool) -> HarborTask:
    """Return the task with all that was read. Raises Unsupported for what it cannot be run without."""
    settings = read_settings(task.folder / SETTINGS_FILE)
    for file in ("instruction.md", "tests/test.sh"):
        if not (task.folder / file).is_file():
            raise Unsupported(file, "it is missing")
    for file in ("trajectory.json", "environment/docker-compose.yaml", "tests/Dockerfile"):
        if (task.folder / file).exists():
            raise Unsupported(file, "it is not supported")
    for path in files_below(task.folder):
        if not path.resolve().is_relative_to(task.folder):
            raise Unsupported(str(path.relative_to(task.folder)), "it leads out of the task's folder")
    checked = replace(
        task,
        settings=settings,
        instruction=strip_canary((task.folder / "instruction.md").read_text(encoding="utf-8")),
        key=_hash(task.folder),
        split=settings.split,
    )
    try:
        return replace(checked, plan=_plan_for_sandbox(task.folder, settings, images))
    except Unsupported as error:
        if not containers:
            raise
        return replace(checked, container=first_line(str(error)), tests_need_network=_needs_network(task.folder))


def _plan_for_sandbox(folder: Path, settings: TaskSettings, images: Sequence[str]) -> Plan:
    """Return how the sandbox builds a task. Raises Unsupported for what only a container can do."""
    if (folder / "environment/.dockerignore").exists():
        raise Unsupported("environment/.dockerignore", "it is not supported")
    plan = _read_plan(folder, settings, images)
    for file in ("tests/test.sh", "solution/solve.sh"):
        if (folder / file).is_file():
            plan.packages |= check_script((folder / file).read_text(encoding="utf-8"), file)
    return plan


def _needs_network(folder: Path) -> bool:
    try:
        check_script((folder / "tests/test.sh").read_text(encoding="utf-8"), "tests/test.sh")
    except Unsupported:
        return True
    return False


def _read_plan(folder: Path, settings: TaskSettings, images: Sequence[str]) -> Plan:
    dockerfile = folder / "environment" / "Dockerfile"
    if settings.environment.docker_image is not None:
        check_image(settings.environment.docker_image, "task.toml: environment.docker_image", images)
        plan = Plan()
    elif dockerfile.is_file():
        plan = read_dockerfile(dockerfile, more_images=images)
    else:
        raise Unsupported("environment/Dockerfile", "it is missing")
    plan.env |= settings.environment.env
    plan.workdir = settings.environment.workdir or plan.workdir
    if not plan.workdir.startswith("/"):
        raise Unsupported("task.toml: environment.workdir", "it is not an absolute path")
    return plan


def strip_canary(text: str) -> str:
    """Remove the canary lines at the start, and the empty lines after them."""
    lines = text.split("\n")
    while lines and CANARY.match(lines[0].strip()):
        lines.pop(0)
    while lines and not lines[0].strip():
        lines.pop(0)
    return "\n".join(lines)


def files_below(folder: Path) -> list[Path]:
    """Return the files and links below a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink())


def _hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for name in HASHED:
        for path in [folder / name] if (folder / name).is_file() else files_below(folder / name):
            data = path.read_bytes() if path.is_file() else str(path.readlink()).encode()
            digest.update(f"{path.relative_to(folder).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def _divide(tasks: Sequence[HarborTask]) -> dict[Split, tuple[HarborTask, ...]]:
    """Divide by [metadata] split, else by a hash of the task. Equal tasks count once."""
    unique: dict[str, HarborTask] = {}
    for task in tasks:
        other = unique.setdefault(task.key, task)
        if task.split not in (None, other.split) and other.split is not None:
            raise UserError(
                f"{task.name} and {other.name} are the same task in the splits {task.split} and {other.split}: "
                "remove one of them."
            )
        if other.split is None and task.split is not None:
            unique[task.key] = task
    chosen: dict[Split, list[HarborTask]] = {split: [] for split in FIRST_SEED}
    for task in unique.values():
        chosen[task.split or split_of_state(task.key)].append(task)
    _fill_empty(chosen)
    return {split: tuple(sorted(tasks, key=lambda task: task.key)) for split, tasks in chosen.items()}


def _fill_empty(chosen: dict[Split, list[HarborTask]]) -> None:
    """Move a task into each empty split of a small set, if a hash decides and another split can spare one."""
    for split, tasks in chosen.items():
        rich = max(chosen.values(), key=len)
        free = sorted((task for task in rich if task.split is None), key=lambda task: task.key)
        if not tasks and len(rich) > 1 and free:
            rich.remove(free[0])
            chosen[split].append(free[0])
