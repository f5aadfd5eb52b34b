"""Workers of the tests' Ray cluster as forked processes: see `ray_worker_for_tests`."""

import json
import os
import runpy
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer

from processes_for_tests import Forked, start_process
from ray_worker_for_tests import SOCKET


@contextmanager
def fork_ray_workers(folder: Path) -> Iterator[dict[str, str]]:
    """Fork the workers of a cluster; yield the environment variable that its nodes need."""
    path = str(folder / "workers.sock")
    start_process(os.getpid).join()  # starts the process that forks
    with ThreadingUnixStreamServer(path, _Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {SOCKET: path}
        finally:
            server.shutdown()


class _Handler(StreamRequestHandler):
    """Starts one worker and waits for its end."""

    def handle(self) -> None:
        _, streams, *_ = socket.recv_fds(self.request, 1, 3)
        arguments, variables, folder = json.load(self.rfile)
        stdin, stdout, stderr = streams
        worker = Forked(
            _run_worker, arguments, stdin=stdin, stdout=stdout, stderr=stderr, cwd=Path(folder), env=variables
        )
        for each in streams:
            os.close(each)
        worker.wait()


def _run_worker(arguments: list[str]) -> None:
    """Run Ray's program of a worker, like its setup_worker.py without a runtime environment."""
    from ray._private.workers.setup_worker import parser

    _, rest = parser.parse_known_args(arguments)
    sys.argv = rest
    runpy.run_path(rest[0], run_name="__main__")
