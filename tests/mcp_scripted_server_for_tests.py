"""MCP server in plain Python that answers from a script. `python FILE SCRIPT.json`

{"tools": [...], "later": [...], "answers": {how: {"result": ...} or {"error": ...}}}. After the call `change`
its tools are those of `later`.
"""

import json
import sys
from pathlib import Path
from typing import Any


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def main(script: dict[str, Any]) -> None:
    tools = script["tools"]
    for line in sys.stdin:
        request = json.loads(line)
        method, number = request["method"], request.get("id")
        if method == "initialize":
            info = {
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "scripted", "version": "1"},
            }
            send(id=number, result={"protocolVersion": "2025-06-18", **info})
        elif method == "tools/list":
            send(id=number, result={"tools": tools})
        elif method == "tools/call":
            how = request["params"]["arguments"]["how"]
            if how == "change":
                tools = script["later"]
                send(method="notifications/tools/list_changed")
            send(id=number, **script["answers"][how])
        elif number is not None:
            send(id=number, error={"code": -32601, "message": "Method not found"})


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
