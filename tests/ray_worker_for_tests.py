"""Program with which the nodes of the tests' Ray cluster start a worker: it asks the test process to fork one.

A worker that starts with `python` imports torch and transformers first, which takes most of the time of a test.
"""

import json
import os
import socket
import sys
from pathlib import Path

SOCKET = "TURNWISE_TEST_WORKERS"
"""Variable with the path of the socket on which `ray_forks_for_tests` listens."""

if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[SOCKET])
        socket.send_fds(server, [b"\n"], [0, 1, 2])
        server.sendall(json.dumps([sys.argv[1:], os.environ.copy(), str(Path.cwd())]).encode())
        server.shutdown(socket.SHUT_WR)
        server.recv(1)  # nothing comes; closed when the worker has ended
