"""Play an episode with OpenEnv's own client, in OpenEnv's environment: URL, reset's arguments and actions as JSON."""

import json
import sys

from openenv.core.generic_client import GenericEnvClient

url, arguments, actions = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
with GenericEnvClient(base_url=url).sync() as env:
    results = [env.reset(**arguments), *(env.step(action) for action in actions)]
    rows = [{"observation": r.observation, "reward": r.reward, "done": r.done, "metadata": r.metadata} for r in results]
    print(json.dumps({"results": rows, "state": env.state()}))  # noqa: T201
