"""A checkpoint that is loaded, with one episode and one conversation at a time."""

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import torch

from turnwise.config.schema import Config
from turnwise.core.errors import EnvironmentFailure, InfrastructureFailure, UserError
from turnwise.core.images import find_images
from turnwise.core.messages import Message, system, user
from turnwise.core.protocols import Policy
from turnwise.core.task import EpisodeKey, Task
from turnwise.envs.play import find_hint, format_reply
from turnwise.envs.seeds import seed_for
from turnwise.envs.spec import EnvRunner
from turnwise.envs.text_env import TextEnv
from turnwise.models.loading.load import LoadedModel
from turnwise.record.images import span_to_row
from turnwise.record.jsonl import encode_row
from turnwise.record.trajectories import trajectory_to_row
from turnwise.render.renderer import Renderer
from turnwise.rollout.context import Context, FullContext
from turnwise.rollout.failures import creation_boundary, guard_env
from turnwise.rollout.stepped_episode import SteppedEpisode
from turnwise.run.build import build_engine, build_renderer, episode_limits, evaluation_sampling
from turnwise.run.build_context import build_context
from turnwise.run.environment_mix import EnvironmentMix, build_environment_mix
from turnwise.run.evaluation.models import build_models
from turnwise.run.load_policy import load_policy
from turnwise.run.training_run import resolve
from turnwise.studio.agent_requests import AgentCommand, AgentRequest, Part
from turnwise.viewer.trajectories import draw_pictures, find_image_hashes, token_ids

CONVERSATION = Task(env="conversation", seed=0)
SESSIONS = 2
"""Contexts of the engine: that of the episode and that of the conversation."""


def load_agent(request: AgentRequest) -> "LoadedAgent":
    """Load the model of a checkpoint with the settings of its run, as `turnwise eval` does."""
    overrides: list[tuple[str, Any]] = [("rollout.in_flight", str(SESSIONS))]
    if request.temperature is not None:
        overrides.append(("eval.temperature", str(request.temperature)))
    (model,) = build_models([request.source], None, None, overrides)
    config = resolve(model.config)
    torch.set_num_threads(config.system.threads)
    environments = build_environment_mix(config.env, config.agent)
    if environments.has_agent:  # a program, which cannot be run turn by turn
        environments = EnvironmentMix(specs={}, entries=())
    loaded, _ = load_policy(config, environments, lambda done, total: None)
    return LoadedAgent(config, environments, loaded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opened:
    """The running episode or conversation. `env` is None for a conversation."""

    key: EpisodeKey
    episode: SteppedEpisode
    env: EnvRunner | None
    stack: AsyncExitStack
    opening: tuple[Message, ...] = ()
    """Messages before the first one that a person writes in a conversation."""


class LoadedAgent:
    def __init__(self, config: Config, environments: EnvironmentMix, loaded: LoadedModel) -> None:
        self._config, self._environments, self._images = config, environments, loaded.images
        self._renderer: Renderer = build_renderer(config.rollout, loaded)
        self._policy: Policy = build_engine(config.engine, config.rollout, loaded.model, self._renderer)
        self._limits = episode_limits(config.rollout, evaluation_sampling(config.rollout, config.eval))
        self._opened: dict[Part, _Opened] = {}
        self._starts = 0

    async def close(self) -> None:
        for part in list(self._opened):
            await self._end(part)

    async def run(self, command: AgentCommand) -> dict[str, Any]:
        """Run a command and return what the page shows. An episode whose environment failed is discarded."""
        if command.do == "hint":
            return self.describe() | {"hint": self._find_hint()}
        try:
            await (self._start(command) if command.do == "start" else self._take_turn(command))
        except (EnvironmentFailure, InfrastructureFailure) as failure:
            await self._end(command.part)
            raise UserError(f"{failure}. Start another episode.") from failure
        return self.describe()

    def describe(self) -> dict[str, Any]:
        parts = {part: self._describe_part(opened) for part, opened in self._opened.items()}
        return {
            "environments": list(self._environments.specs),
            "sampler": self._limits.sampling.sampler.describe(),
            "episode": parts.get("episode"),
            "chat": parts.get("chat"),
        }

    async def _start(self, command: AgentCommand) -> None:
        await self._end(command.part)
        self._starts += 1  # another try of a task draws other random numbers
        is_chat = command.part == "chat"
        task = CONVERSATION if is_chat else self._task(command)
        key = EpisodeKey(run_seed=0, round=0, task=task, member=self._starts)
        async with AsyncExitStack() as stack:
            env = guarded = None
            if not is_chat:
                with creation_boundary():
                    env = self._environments.make(task, key.member)
                guarded = await stack.enter_async_context(guard_env(env, self._limits.timeout_s))
            episode = SteppedEpisode(
                env=guarded,
                session=await stack.enter_async_context(self._policy.open(key)),
                context=self._build_context(is_chat),
                limits=self._limits,
                renderer=self._renderer,
                prefix=self._config.rollout.prefix,
            )
            await episode.start()
            opening = (system(command.text),) if is_chat and command.text.strip() else ()
            self._opened[command.part] = _Opened(
                key=key, episode=episode, env=env, stack=stack.pop_all(), opening=opening
            )

    def _build_context(self, is_chat: bool) -> Context:
        if is_chat:
            return FullContext(self._renderer)
        return build_context(self._config.context, self._config.rollout, self._renderer)

    async def _take_turn(self, command: AgentCommand) -> None:
        opened = self._find(command.part)
        match command.do:
            case "sample":
                await opened.episode.sample()
            case "reply" if opened.env is not None:
                await opened.episode.reply(format_reply(opened.env, command.text))
            case "say" if opened.env is None:
                opening = () if opened.episode.has_started else opened.opening
                await opened.episode.say((*opening, user(command.text)))
                await opened.episode.sample()
            case _:
                raise UserError(f"{command.do} is not for the {command.part}. Use the other part of the page.")

    async def _end(self, part: Part) -> None:
        opened = self._opened.pop(part, None)
        if opened is not None:
            await opened.stack.aclose()

    def _find(self, part: Part) -> _Opened:
        opened = self._opened.get(part)
        if opened is None:
            raise UserError("Nothing is open. Start an episode or a conversation first.")
        return opened

    def _find_hint(self) -> str:
        env = self._find("episode").env
        return find_hint(env.env) if env is not None and isinstance(env.env, TextEnv) else "hint: none"

    def _task(self, command: AgentCommand) -> Task:
        entries = {entry.env: entry for entry in self._environments.entries}
        if not entries:
            raise UserError("The run has no environment that can be played. Chat with its model.")
        name = command.environment or next(iter(entries))
        if name not in entries:
            raise UserError(f"The run has no environment {name!r}. Choose from {', '.join(entries)}.")
        sizes = entries[name].sizes
        if (size := sizes.get(command.split)) is not None and command.task >= size:
            raise UserError(f"Task {command.task}: the {command.split} split has {size} tasks, counted from 0.")
        seed = seed_for(command.split, command.task)
        return Task(env=name, params=dict(entries[name].params), split=command.split, seed=seed)

    def _describe_part(self, opened: _Opened) -> dict[str, Any]:
        """Return the episode as the viewer gets a recorded one, and the context that the next reply answers."""
        trajectory = opened.episode.build(opened.key)
        row = json.loads(encode_row(trajectory_to_row(trajectory, step=0, group=0, decode=self._renderer.decode)))
        pending = opened.episode.pending
        waiting = None if pending is None else self._describe_context(pending.ids)
        shown = {"turns": [*row["turns"], *([] if waiting is None else [waiting])]}
        names = {token: self._renderer.name_token(token) for token in token_ids(shown)}
        pictures, cut = draw_pictures(row)
        env = None if opened.env is None else opened.env.env
        return {
            "row": row,
            "tokens": {str(token): {"text": name.text, "special": name.special} for token, name in names.items()},
            "pictures": pictures,
            "pictures_cut": cut,
            "images": self._encode_images(find_image_hashes(shown)),
            "pending": waiting,
            "actions": list(env.action_names) if isinstance(env, TextEnv) else [],
            "over": not opened.episode.status.ongoing,
        }

    def _describe_context(self, ids: Sequence[int]) -> dict[str, Any]:
        """Return a turn that has no reply yet."""
        spans = [span_to_row(span) for span in find_images(ids)]
        return {"context": self._renderer.decode(ids), "context_ids": list(ids), "images": spans}

    def _encode_images(self, hashes: list[str]) -> Mapping[str, str]:
        """Return PNG files as data addresses, by hash."""
        if self._images is None:
            return {}
        store = self._images.store
        return {key: f"data:image/png;base64,{base64.b64encode(store.get(key)).decode()}" for key in set(hashes)}
