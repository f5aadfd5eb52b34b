"""No jail: resource limits alone. For `unsafe_subprocess`, whose name says it; never chosen by itself."""

import os
import signal

from turnwise.sandbox.limits import SandboxLimits, set_resource_limits
from turnwise.sandbox.process_files import first_to_be_killed, open_proc, virtual_bytes
from turnwise.sandbox.scratch_folders import ScratchFolders, remove_tree
from turnwise.sandbox.syscalls import die_with_parent


class NoJail:
    """Code runs as the user who started it, with all that this user may do."""

    one_process = True
    """Its children are not hunted: without a pid namespace nobody knows them all."""

    def __init__(self, limits: SandboxLimits, scratch: str) -> None:
        self.limits = limits
        self.folders = ScratchFolders(scratch)
        self.base_bytes = 0

    def build(self) -> None:
        """Nothing is built."""

    def loaded(self) -> None:
        self.base_bytes = virtual_bytes(open_proc())

    def before_fork(self) -> str:
        return self.folders.create(None)

    def after_fork(self) -> None:
        """Nothing: the zygote did not change for the fork."""

    def enter(self, scratch: str) -> None:
        os.setsid()
        first_to_be_killed(open_proc())
        os.chdir(scratch)

    def seal(self) -> None:
        set_resource_limits(self.limits, base_bytes=self.base_bytes, count_processes=False)
        die_with_parent(signal.SIGKILL)

    def remove(self, scratch: str) -> int | None:
        return self.folders.remove(scratch)

    def describe(self) -> str:
        return "no isolation"

    def close(self) -> None:
        remove_tree(self.folders.base)
