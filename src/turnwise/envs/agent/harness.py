"""Command-line agents that play Harbor tasks: how each is started, and how it finds the model.

An agent runs inside the task's environment, with the rights of the task's shell. Of the network it reaches the gateway
alone.
"""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from turnwise.envs.agent.settings import AgentSettings
from turnwise.settings.needs import LOCAL_EPISODES, WHOLE_CONTEXT, Need, Package

HARBOR_ENV = "harbor"
"""`env.kind` of the tasks that these agents play."""
MODEL = "turnwise"
"""Name of the model in the agents' settings. The gateway answers to any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAccess:
    """The model, as an agent inside a task reaches it."""

    url: str
    """Address without a path."""
    max_tokens: int
    """Tokens of a context, above which agents compact it if they can."""
    max_new_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Command, files and variables that start an agent on one task."""

    arguments: Sequence[str]
    """Arguments of the program."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables besides those with the gateway's address and the key."""


class Harness(AgentSettings):
    """A command-line agent that plays the tasks of env.kind harbor."""

    train_on: tuple[Literal["timeout", "crash"], ...] = ("timeout", "crash")
    """Episodes that are not retried: timeout, as truncated; crash, an exit status that is not 0. The tests decide."""

    takes_rewards: ClassVar[bool] = False  # the tests decide, and the model's commands could post any
    program_name: ClassVar[str]
    """Name of the program in PATH."""
    install_command: ClassVar[str]
    """Command that installs the program."""

    @abstractmethod
    def launch(self, instruction: str, model: ModelAccess) -> Launch:
        """Return how to start the agent on an instruction."""

    def packages(self) -> list[Package]:
        return [Package("An agent", "starlette", "gateway")]

    def needs(self) -> list[Need]:
        return [
            Need(WHOLE_CONTEXT, "An agent decides itself what it sends to the model"),
            Need(LOCAL_EPISODES, "An agent runs beside an engine in this process"),
        ]


class MiniSwe(Harness, kind="mini-swe"):
    """mini-SWE-agent: a loop around one tool, bash."""

    program_name: ClassVar[str] = "mini"
    install_command: ClassVar[str] = "pipx install mini-swe-agent && pipx inject mini-swe-agent mcp"

    def launch(self, instruction: str, model: ModelAccess) -> Launch:
        quiet = {"MSWEA_CONFIGURED": "true", "MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}
        offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "MSWEA_GLOBAL_CONFIG_DIR": "/tmp/mini-swe-agent"}
        loop = ("-c", "mini.yaml", "-c", "agent.step_limit=0", "--cost-limit", "0", "--agent-class", "default")
        task = ("-m", f"openai/{MODEL}", "-t", instruction)
        return Launch(arguments=(*loop, "--yolo", "--exit-immediately", *task), environment=quiet | offline)


class ClaudeCode(Harness, kind="claude-code"):
    """Claude Code: tools for files, search and bash, sub-agents and compaction."""

    program_name: ClassVar[str] = "claude"
    install_command: ClassVar[str] = "npm install -g @anthropic-ai/claude-code"

    def launch(self, instruction: str, model: ModelAccess) -> Launch:
        names = ("HAIKU", "SONNET", "OPUS")
        environment = {
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(model.max_new_tokens),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(model.max_tokens),
            "ANTHROPIC_MODEL": MODEL,
            **{f"ANTHROPIC_DEFAULT_{name}_MODEL": MODEL for name in names},
        }
        return Launch(arguments=("--dangerously-skip-permissions", "-p", instruction), environment=environment)


class Codex(Harness, kind="codex"):
    """Codex CLI: a shell, patches, a plan and compaction."""

    program_name: ClassVar[str] = "codex"
    install_command: ClassVar[str] = "npm install -g @openai/codex"

    def launch(self, instruction: str, model: ModelAccess) -> Launch:
        provider = {"name": MODEL, "base_url": f"{model.url}/v1", "env_key": "OPENAI_API_KEY", "wire_api": "responses"}
        settings = {
            "model_provider": json.dumps(MODEL),
            **{f"model_providers.{MODEL}.{name}": json.dumps(value) for name, value in provider.items()},
            "model_context_window": str(model.max_tokens),
            "model_auto_compact_token_limit": str(max(1, model.max_tokens - 2 * model.max_new_tokens)),
            "web_search": '"disabled"',
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        rights = ("--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check")  # it is in a sandbox already
        return Launch(arguments=("exec", *rights, "-m", MODEL, *options, instruction))


class OpenCode(Harness, kind="opencode"):
    """OpenCode: tools for files, search and bash, sub-agents and compaction."""

    program_name: ClassVar[str] = "opencode"
    install_command: ClassVar[str] = "npm install -g opencode-ai"

    def launch(self, instruction: str, model: ModelAccess) -> Launch:
        limit = {"context": model.max_tokens, "output": model.max_new_tokens}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": f"{model.url}/v1", "apiKey": "{env:OPENAI_API_KEY}"},
            "models": {MODEL: {"limit": limit, "tool_call": True}},
        }
        name = f"{MODEL}/{MODEL}"
        settings = {
            "provider": {MODEL: provider},
            "model": name,
            "small_model": name,
            "share": "disabled",
            "autoupdate": False,
            "permission": "allow",
        }
        environment = {
            "OPENCODE_CONFIG_CONTENT": json.dumps(settings),
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        }
        return Launch(arguments=("run", "--title", "task", "-m", name, instruction), environment=environment)
