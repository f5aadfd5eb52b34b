"""MCP server in plain Python that starts quickly and fails on request. `python FILE [PID_FILE]`"""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

SCHEMA = {"type": "object", "properties": {"how": {"type": "string"}}, "required": ["how"]}
TOOLS = [{"name": "do", "description": "Breaks.", "inputSchema": SCHEMA}]
LATE_TOOL = {"name": "late", "inputSchema": {"type": "object", "properties": {}}}
COUNTED: list[str] = []
KILLER = """
import os, signal, subprocess, sys, time
how, guard, reaper, clear, file = sys.argv[1:]
if os.fork(): os._exit(0)
os.setsid()
[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]
open(file, "a").write(f"{os.getpid()}\\n")
number = signal.SIGSTOP if how == "stop" else signal.SIGKILL
if how in ("reaper", "both", "stop"): os.kill(int(reaper), number)
if how in ("guard", "both", "stop"): os.kill(int(guard), number)
time.sleep(600)
"""
"""Daemon that kills or stops the processes that would kill it."""
CHILD = "import os, signal, time; os.setsid(); [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]; time.sleep(600)"


def send(message: dict) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def text(answer: str) -> dict:
    return {"content": [{"type": "text", "text": answer}]}


def do(how: str, number: int) -> None:
    answer = {"jsonrpc": "2.0", "id": number, "result": text(how)}
    if how == "noise":
        sys.stdout.write("listening on nothing\n{not json\n\n")
    elif how == "huge":
        answer["result"] = text("x" * (17 << 20))
    elif how == "huge, number last":
        answer = {"result": text("x" * (17 << 20)), "jsonrpc": "2.0", "id": number}
    elif how == "unpaired surrogate":
        sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {number}, "result": {{"content": "\\ud800"}}}}\n')
        sys.stdout.flush()
        return
    elif how == "refused":
        answer = {"jsonrpc": "2.0", "id": number, "error": {"code": -32602, "message": "no such thing"}}
    elif how == "internal":
        answer = {"jsonrpc": "2.0", "id": number, "error": {"code": -32603, "message": "disk full"}}
    elif how == "its own code":
        answer = {"jsonrpc": "2.0", "id": number, "error": {"code": 7, "message": "not today"}}
    elif how == "more tools":
        TOOLS.append(LATE_TOOL)
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    elif how.startswith("says "):  # text that an agent cannot write into a call
        answer["result"] = text(bytes.fromhex(how.removeprefix("says ")).decode())
    elif how == "environment":
        answer["result"] = text(json.dumps(dict(os.environ)))
    elif how == "count":
        COUNTED.append(how)
        answer["result"] = text(str(len(COUNTED)))
    elif how == "die":
        sys.stderr.write(f"\x1b[31mout of memory {os.environ.get('KEY', '')}\x1b[0m\n\n")
        sys.stderr.flush()
        os.kill(os.getpid(), 9)
    elif how.startswith("kill "):  # kill WHOM FILE
        _, whom, clear, file = how.split()
        guard = os.getppid()
        reaper = Path(f"/proc/{guard}/stat").read_text().rpartition(")")[2].split()[1]
        environment = {} if clear == "cleared" else None
        words = [sys.executable, "-I", "-S", "-c", KILLER, whom, str(guard), reaper, clear, file]
        subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        return
    elif how == "silent":
        return
    elif how.startswith("/"):  # exits, the first time
        if not Path(how).exists():
            Path(how).touch()
            os._exit(1)
    elif how == "stuck":
        time.sleep(600)
    elif how == "partial line":
        sys.stdout.write('{"jsonrpc": "2.0", "id"')
        sys.stdout.flush()
        os._exit(0)
    elif how == "flood":
        threading.Thread(target=lambda: [sys.stderr.write("e" * 1000 + "\n") for _ in range(5000)]).start()
    send(answer)


def handle(request: dict) -> None:
    method, number = request["method"], request.get("id")
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}}
        info = {
            "protocolVersion": "2025-06-18",
            "capabilities": capabilities,
            "serverInfo": {"name": "raw", "version": "1"},
        }
        send({"jsonrpc": "2.0", "id": number, "result": info})
    elif method == "tools/list":
        send({"jsonrpc": "2.0", "id": number, "result": {"tools": TOOLS}})
    elif method == "tools/call":
        do(request["params"]["arguments"].get("how", ""), number)
    elif number is not None:
        send({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "Method not found"}})


if __name__ == "__main__":
    if len(sys.argv) > 1:  # start a child in its own session that ignores signals
        child = subprocess.Popen([sys.executable, "-I", "-S", "-c", CHILD])
        with Path(sys.argv[1]).open("a") as file:
            file.write(f"{os.getpid()} {child.pid}\n")
    for line in sys.stdin:
        handle(json.loads(line))
    if len(sys.argv) > 1:
        time.sleep(600)  # do not exit when the input ends
