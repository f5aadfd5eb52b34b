"""The environment that a server offers: its schemas, its tasks, and new episodes of it."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from turnwise.core.errors import UserError
from turnwise.core.random_streams import address
from turnwise.core.task import Split, Task
from turnwise.envs.seeds import FIRST_SEED, SEEDS_PER_SPLIT, seed_for
from turnwise.envs.spec import EnvRunner, EnvSpec
from turnwise.envs.tool_env import ToolEnv
from turnwise.service.openenv.wire import CALL_TOOL, LIST_TOOLS, ResetArguments, TextAction, invalid

ActionForm = Literal["auto", "reply", "tools"]
"""Form of an action: the agent's whole reply, or a call of a tool. auto: tools where the environment has some."""
MESSAGES = {"type": "array", "items": {"type": "object"}, "description": "Chat messages to the agent."}
METADATA = {"type": "object", "description": "success, terminated, truncated and invalid, as truth values."}


@dataclass(frozen=True, kw_only=True)
class ServedEnv:
    """An environment with its parameters."""

    spec: EnvSpec
    params: Mapping[str, Any]
    actions: ActionForm = "auto"

    @cached_property
    def calls_tools(self) -> bool:
        """Whether actions are calls of tools."""
        tool_env = self.spec.subclass_of(ToolEnv)
        params = self.spec.params_model.model_validate(dict(self.params))
        has_tools = tool_env is not None and bool(tool_env.build_tools(params) or tool_env.make_sources(params))
        if self.actions == "tools" and not has_tools:
            raise UserError(f"--actions tools: {self.spec.name} has no tools. Use --actions reply.")
        return has_tools and self.actions != "reply"

    @cached_property
    def sizes(self) -> dict[Split, int]:
        """Tasks of each split. Environments that generate theirs have one for every seed."""
        sizes = self.spec.split_sizes(self.params)
        return {split: sizes.get(split, SEEDS_PER_SPLIT) for split in FIRST_SEED}

    @cached_property
    def rules(self) -> str:
        """Description of the environment, without a task."""
        text_env = self.spec.text_env
        return self.spec.summary if text_env is None else text_env(dict(self.params)).rules()

    def choose_task(self, arguments: ResetArguments) -> Task:
        """Return the task of the arguments. Raises ProtocolError if the split has no such task."""
        split, size = arguments.split, self.sizes[arguments.split]
        if not size:
            raise invalid("split", f"{split} has no tasks")
        index = arguments.index
        if index is None:
            index = secrets.randbelow(size) if arguments.seed is None else arguments.seed % size
        if index >= size:
            raise invalid("index", f"{split} has the tasks 0 to {size - 1}")
        return Task(env=self.spec.name, seed=seed_for(split, index), split=split, params=self.params)

    def make(self, task: Task, episode_id: str | None) -> EnvRunner:
        """Make an episode. Its randomness after the start comes from the id."""
        return self.spec.make(task, member=0 if episode_id is None else address("served episode", episode_id))

    def schemas(self) -> dict[str, Any]:
        """Return the JSON schemas of actions, observations and states."""
        shown: dict[str, Any] = {"messages": MESSAGES}
        if self.calls_tools:
            shown |= {"tool_name": {"type": "string"}, "result": {}, "error": {}}
        base = {"done": {"type": "boolean"}, "reward": {"type": ["number", "null"]}, "metadata": METADATA}
        return {
            "action": TOOL_ACTION_SCHEMA if self.calls_tools else TextAction.model_json_schema(),
            "observation": {"title": "Observation", "type": "object", "properties": {**base, **shown}},
            "state": STATE_SCHEMA,
        }


TOOL_ACTION_SCHEMA = {
    "title": "CallToolAction",
    "type": "object",
    "additionalProperties": False,
    "required": ["tool_name"],
    "properties": {
        "type": {"type": "string", "const": CALL_TOOL, "default": CALL_TOOL, "description": f"Or {LIST_TOOLS}."},
        "tool_name": {"type": "string", "description": "Name of the tool to call."},
        "arguments": {"type": "object", "default": {}, "description": "Arguments of the tool."},
        "metadata": {"type": "object", "default": {}, "description": "Not read."},
    },
}
STATE_SCHEMA = {
    "title": "State",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
        "split": {"type": ["string", "null"]},
        "index": {"type": ["integer", "null"]},
    },
}
