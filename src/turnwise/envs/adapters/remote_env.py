"""Base of environments behind a server of OpenEnv's protocol: a session per episode."""

import json
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from turnwise.core.messages import ToolSpec
from turnwise.envs.adapters.openenv.wire import Result
from turnwise.envs.runner import TextEnvRunner
from turnwise.envs.text_env import TextEnv, reasoning_params

if TYPE_CHECKING:
    from turnwise.envs.adapters.openenv.connection import Endpoint, Session


class RemoteEnv(TextEnv):
    """An environment in another process."""

    max_turns = 20
    needs = MappingProxyType({"websockets": "'turnwise[openenv]'"})

    def __init__(self, params: Mapping[str, Any] | None = None, rng: random.Random | None = None) -> None:
        super().__init__(params, rng)
        self.session: Session | None = None
        self.last: Result | None = None
        """The server's last answer."""

    @classmethod
    def common_params(cls) -> dict[str, Any]:
        """Return the limits. What an agent knows of the state cannot be scored here."""
        reasoning = reasoning_params(knows_state=False)
        return {name: field for name, field in super().common_params().items() if name not in reasoning}

    @property
    def answer(self) -> Result:
        if self.last is None:
            raise RuntimeError("an observation before reset")
        return self.last

    async def exchange(self, action: Mapping[str, Any]) -> Result:
        """Send an action and return the server's answer. Raises RejectedAction if it does not fit the schema."""
        if self.session is None:
            raise RuntimeError("step before reset")
        self.last = await self.session.step(action)
        return self.last

    async def end(self) -> None:
        """Release the session."""
        session, self.session = self.session, None
        if session is not None:
            await session.close()

    def start_key(self) -> str:
        return json.dumps(self.answer.observation, sort_keys=True)


class RemoteRunner(TextEnvRunner):
    """One episode of a `RemoteEnv`, with the tools that the server lists."""

    def __init__(self, env: Any, start_rng: random.Random, seed: int = 0) -> None:
        super().__init__(env, start_rng, seed)
        self.remote: Any = env
        self._tools: tuple[ToolSpec, ...] = ()
        self._words: list[str] = []
        """Words of the first messages, for random calls."""

    async def close(self) -> None:
        await self.remote.end()


def endpoint(url: str, token: str | None, params: Any) -> "Endpoint":
    """Return a server with the limits of `params`."""
    from turnwise.envs.adapters.openenv.connection import Endpoint

    return Endpoint(
        url=url,
        token=token,
        timeout_s=params.timeout_s,
        wait_s=params.wait_s,
        max_bytes=params.max_message_mb << 20,
    )
