"""The queue of jobs: order, stopping, failures, and what a killed studio leaves behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turnwise.core.errors import UserError
from turnwise.studio.jobs import Job, JobFolder, JobStatus
from turnwise.studio.queue import Queue
from turnwise.studio.supervise import LOG, STATE
from work_for_tests import wait_until

PYTHON = (sys.executable, "-c")
WAITS = "import time; print('started', flush=True); time.sleep(600)"
SAVES = """import time
try:
    print('started', flush=True); time.sleep(600)
except KeyboardInterrupt:
    print('saved'); raise SystemExit(130)
"""
STUBBORN = """import signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
print('started', flush=True); time.sleep(600)
"""


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue(tmp_path, program=PYTHON) as opened:
        yield opened
        for job in opened.jobs():
            opened.stop(job.number, now=True)
        assert wait_until(lambda: all(job.status.ended for job in opened.jobs()))


def add(queue: Queue, code: str, **given: Any) -> Job:
    return queue.add([code], **{"title": "a job", "run": queue.folder / "run", **given})


def find(queue: Queue, job: Job) -> Job:
    return next(each for each in queue.jobs() if each.number == job.number)


def wait_for(queue: Queue, job: Job, status: JobStatus) -> Job:
    assert wait_until(lambda: find(queue, job).status is status), find(queue, job)
    return find(queue, job)


def wait_for_output(queue: Queue, job: Job, text: str = "started") -> None:
    assert wait_until(lambda: text in queue.read_log(job.number, 0)[0]), queue.read_log(job.number, 0)


def test_jobs_run_one_at_a_time_in_order(queue: Queue) -> None:
    first, second = add(queue, WAITS), add(queue, "print('second')")
    wait_for_output(queue, first)
    queue.start_waiting()
    assert [job.status for job in queue.jobs()] == [JobStatus.RUNNING, JobStatus.WAITING]
    queue.stop(first.number, now=True)
    ended = wait_for(queue, second, JobStatus.FINISHED)
    assert (ended.returncode, queue.read_log(second.number, 0)[0]) == (0, "second\n")
    assert find(queue, first).status is JobStatus.STOPPED
    assert ended.started is not None
    assert ended.ended is not None
    assert ended.created <= ended.started <= ended.ended


def test_stop_lets_a_job_save(queue: Queue) -> None:
    job = add(queue, SAVES)
    wait_for_output(queue, job)
    assert queue.stop(job.number).status in (JobStatus.STOPPING, JobStatus.STOPPED)
    assert wait_for(queue, job, JobStatus.STOPPED).returncode == 130
    assert queue.read_log(job.number, 0)[0] == "started\nsaved\n"


def test_stop_kills_after_the_grace_time(tmp_path: Path) -> None:
    with Queue(tmp_path, program=PYTHON, grace_s=0.3) as queue:
        job = add(queue, STUBBORN)
        wait_for_output(queue, job)
        queue.stop(job.number)
        assert wait_for(queue, job, JobStatus.STOPPED).returncode == -signal.SIGKILL


def test_stop_now_does_not_wait_for_the_grace_time(queue: Queue) -> None:
    job = add(queue, STUBBORN)
    wait_for_output(queue, job)
    assert queue.stop(job.number).status is JobStatus.STOPPING
    queue.stop(job.number, now=True)
    wait_for(queue, job, JobStatus.STOPPED)


def test_waiting_job_is_cancelled_and_never_starts(queue: Queue) -> None:
    first, second = add(queue, WAITS), add(queue, "print('ran')")
    wait_for_output(queue, first)
    assert queue.stop(second.number).status is JobStatus.CANCELLED
    queue.stop(first.number, now=True)
    wait_for(queue, first, JobStatus.STOPPED)
    queue.start_waiting()
    assert find(queue, second).status is JobStatus.CANCELLED
    assert not (queue.folder / f"{second.number:06d}" / STATE).exists()


def test_job_that_starts_while_it_is_looked_at_is_not_lost(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock was free when it was looked at, and then the supervisor wrote the state."""
    job = add(queue, WAITS)
    wait_for_output(queue, job)
    looks = iter([False])
    locked = JobFolder.is_locked
    monkeypatch.setattr(JobFolder, "is_locked", lambda folder: next(looks, None) is not False and locked(folder))
    assert JobFolder(queue.folder / "000001").read() == find(queue, job)
    assert find(queue, job).status is JobStatus.RUNNING


def test_failed_job_has_its_last_line_as_error(queue: Queue) -> None:
    job = add(queue, "import sys; print('turnwise: unknown key a.b', file=sys.stderr); sys.exit(2)")
    failed = wait_for(queue, job, JobStatus.FAILED)
    assert (failed.returncode, failed.error) == (2, "unknown key a.b")


def test_killed_job_explains_that_memory_may_have_run_out(queue: Queue) -> None:
    job = add(queue, "import os; os.kill(os.getpid(), 9)")
    assert "memory" in (wait_for(queue, job, JobStatus.FAILED).error or "")


def test_command_that_cannot_start_fails_once(tmp_path: Path) -> None:
    with Queue(tmp_path, program=(str(tmp_path / "missing"),)) as queue:
        job = add(queue, "")
        assert "No such file" in (wait_for(queue, job, JobStatus.FAILED).error or "")
        state = (queue.folder / "000001" / STATE).read_bytes()
        queue.start_waiting()
        assert (queue.folder / "000001" / STATE).read_bytes() == state


def test_job_whose_files_are_damaged_fails_once(queue: Queue) -> None:
    blocker = add(queue, WAITS)
    wait_for_output(queue, blocker)
    job = add(queue, "print(1)")
    path = queue.folder / f"{job.number:06d}"
    description = json.loads((path / "job.json").read_text())
    del description["cwd"]
    (path / "job.json").write_text(json.dumps(description))
    queue.stop(blocker.number, now=True)
    assert "cwd" in (wait_for(queue, job, JobStatus.FAILED).error or "")


def test_several_slots_run_several_jobs(tmp_path: Path) -> None:
    with Queue(tmp_path, program=PYTHON, slots=2) as queue:
        jobs = [add(queue, WAITS) for _ in range(3)]
        for job in jobs[:2]:
            wait_for_output(queue, job)
        assert [job.status for job in queue.jobs()] == [JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.WAITING]
        for job in jobs:
            queue.stop(job.number, now=True)
        assert wait_until(lambda: all(job.status.ended for job in queue.jobs()))


def test_two_studios_cannot_share_a_folder(queue: Queue, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Another studio works on"), Queue(tmp_path):
        pass


def test_log_is_read_from_an_offset_and_from_its_end(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    job = add(queue, "print('0123456789' * 3)")
    wait_for(queue, job, JobStatus.FINISHED)
    assert queue.read_log(job.number, 0) == ("0123456789" * 3 + "\n", 31)
    assert queue.read_log(job.number, 25) == ("56789\n", 31)
    assert queue.read_log(job.number, 31) == ("", 31)
    assert queue.read_log(job.number, 99) == ("", 31)
    monkeypatch.setattr("turnwise.studio.jobs.MAX_LOG", 4)
    assert queue.read_log(job.number, -1) == ("789\n", 31)
    assert queue.read_log(job.number, 0) == ("0123", 4)


def test_ended_job_can_be_removed(queue: Queue) -> None:
    job, running = add(queue, "print(1)"), add(queue, WAITS)
    wait_for(queue, job, JobStatus.FINISHED)
    queue.remove(job.number)
    assert [each.number for each in queue.jobs()] == [running.number]
    with pytest.raises(UserError, match="No job 1"):
        queue.stop(job.number)
    wait_for_output(queue, running)
    with pytest.raises(UserError, match="has not ended"):
        queue.remove(running.number)


STUDIO = """import signal, sys
from pathlib import Path
from turnwise.studio.queue import Queue
with Queue(Path(sys.argv[1]), program=(sys.executable, "-c")) as queue:
    for code in sys.argv[2:]:
        queue.add([code], title="a job", run=Path("run"))
    signal.pause()
"""
"""A studio that is killed."""


def test_killed_studio_loses_no_job(tmp_path: Path) -> None:
    """The running job goes on without the studio, and the next studio follows it and starts the one that waits."""
    process = subprocess.Popen([*PYTHON, STUDIO, str(tmp_path), SAVES, "print('second')"])
    log = tmp_path / ".studio/jobs/000001" / LOG
    assert wait_until(lambda: log.exists() and "started" in log.read_text())
    process.kill()
    process.wait()
    with Queue(tmp_path, program=PYTHON) as queue:
        assert [job.status for job in queue.jobs()] == [JobStatus.RUNNING, JobStatus.WAITING]
        queue.stop(1)
        assert wait_until(lambda: all(job.status.ended for job in queue.jobs()))
        assert [job.status for job in queue.jobs()] == [JobStatus.STOPPED, JobStatus.FINISHED]
        assert queue.read_log(1, 0)[0].endswith("saved\n")


def test_job_goes_on_without_its_supervisor_and_holds_its_slot(queue: Queue, tmp_path: Path) -> None:
    job, second = add(queue, f"import os; print('pid', os.getpid(), flush=True)\n{WAITS}"), add(queue, "print(2)")
    wait_for_output(queue, job)
    supervisor = queue._supervisors[0][0]
    supervisor.kill()
    assert wait_until(lambda: supervisor.poll() is not None)
    queue.start_waiting()
    assert [each.status for each in queue.jobs()] == [JobStatus.RUNNING, JobStatus.WAITING]
    pid = int(queue.read_log(job.number, 0)[0].split()[1])
    os.kill(pid, signal.SIGKILL)
    wait_for(queue, job, JobStatus.LOST)
    wait_for(queue, second, JobStatus.FINISHED)


def test_numbers_of_jobs_are_not_reused_after_a_half_written_one(queue: Queue) -> None:
    (queue.folder / "000007").mkdir()
    assert add(queue, "print(1)").number == 8
    assert [job.number for job in queue.jobs()] == [8]
