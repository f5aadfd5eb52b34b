"""Call tools with OpenEnv's own MCP client, in OpenEnv's environment: URL, reset's arguments, tool, its arguments."""

import asyncio
import json
import sys

from openenv.core.env_server.mcp_types import CallToolAction
from openenv.core.mcp_client import MCPToolClient

url, arguments, tool, argument = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])


async def main() -> None:
    async with MCPToolClient(base_url=url) as env:
        tools = [found.name for found in await env.list_tools()]
        await env.reset(**arguments)
        stepped = await env.step(CallToolAction(tool_name=tool, arguments=argument))
        answered = await env.call_tool("answer", answer="Mars")
        print(json.dumps({"tools": tools, "result": stepped.observation.result, "answered": answered}))  # noqa: T201


asyncio.run(main())
