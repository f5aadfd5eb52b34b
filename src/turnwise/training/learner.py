"""Learner in this process: scores sampled tokens and updates the policy in place."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from turnwise.algos.entropy import logprobs_and_entropy
from turnwise.core.learner import LossTerm, Needs, Scores, StepSettings
from turnwise.core.protocols import WeightSource
from turnwise.core.samples import Batch, TrainBatch, on_device
from turnwise.models.allowed_tokens import NEVER, find_forbidden
from turnwise.models.attention.interface import check_attention
from turnwise.models.critic import HeadCritic, TrunkCritic
from turnwise.models.forward import batch_attention, packed_hidden, packed_logits, uses_active_plan
from turnwise.models.head import head_logprobs, output_head
from turnwise.models.loading.lora import swap_adapter
from turnwise.models.loading.save import write_model
from turnwise.models.weights import copy_parameters
from turnwise.training.learner_state import load_tensors, save_tensors
from turnwise.training.objective import Objective, SamplerMismatch
from turnwise.training.optimizer import Optimizer, check_finite

Result = TypeVar("Result")


class AuxiliaryNetwork(Protocol):
    """Network trained and checkpointed with the policy, such as an utterance-level critic."""

    def tensors(self) -> dict[str, Tensor]: ...
    def load_tensors(self, tensors: dict[str, Tensor]) -> None: ...


class LocalLearner:
    """Learner whose model may be the engine's: its parameters are only changed in place.

    `reference`: frozen copy of the initial policy, for KL. `reference_adapter`: initial LoRA adapter, used as the
    reference of a LoRA policy.
    """

    ranks = 1

    def __init__(
        self,
        model: Any,
        objective: Objective,
        optimizer: Optimizer,
        *,
        kl_coef: float = 0.0,
        entropy_coef: float = 0.0,
        reference: Any | None = None,
        reference_adapter: dict[str, Tensor] | None = None,
        critic: TrunkCritic | HeadCritic | None = None,
        critic_optimizer: Optimizer | None = None,
        critic_warmup_steps: int = 0,
    ) -> None:
        check_attention(model)
        self.model = model
        self.objective = objective
        self.optimizer = optimizer
        self.critic, self.critic_optimizer = critic, critic_optimizer
        self.critic_warmup_steps = critic_warmup_steps
        self.settings = StepSettings(step=0, kl_coef=kl_coef, entropy_coef=entropy_coef)
        self.reference, self.reference_adapter = reference, reference_adapter
        self.auxiliary: dict[str, AuxiliaryNetwork] = {}
        """By name, which is also the prefix of their tensors in a checkpoint."""
        self._skipped_steps = 0
        self._mismatch = SamplerMismatch()

    @property
    def device(self) -> torch.device:
        return self.model.get_input_embeddings().weight.device

    @property
    def max_grad_norm(self) -> float:
        return self.optimizer.settings.max_grad_norm

    @property
    def skipped_steps(self) -> int:
        return self._skipped_steps

    @property
    def policy_learns(self) -> bool:
        return self.settings.step >= self.critic_warmup_steps

    def begin_step(self, settings: StepSettings) -> None:
        self.settings = settings

    @torch.no_grad()
    def score(self, batches: Sequence[Batch], needs: Needs) -> list[Scores]:
        scores = []
        for batch in batches:
            here = on_device(batch, self.device)
            with batch_attention(self.model, here):
                scores.append(self._score(here, needs))
        return [_to_cpu(batch_scores) for batch_scores in scores]

    def _score(self, batch: Batch, needs: Needs) -> Scores:
        policy_logprobs = entropy = values = end_values = ref_logprobs = None
        count = len(batch.sources)
        keep = torch.cat([batch.sources, batch.ends])  # [M + B]
        head = self.critic if needs.values and isinstance(self.critic, HeadCritic) else None
        hidden: Tensor | None = None
        if needs.policy_logprobs or needs.entropy:
            positions = batch.sources if head is None else keep
            policy_logprobs, entropy, hidden = self._run(token_logprobs, self.model, batch, positions)
        if head is not None:
            if hidden is None:
                hidden = self._run(trunk_hidden, self.model, batch, keep)
            values, end_values = head(hidden).tensor_split([count])
        if needs.values and isinstance(self.critic, TrunkCritic):
            values, end_values = self.critic(batch, keep).tensor_split([count])
        if needs.ref_logprobs:
            with self._as_reference() as reference:
                ref_logprobs, *_ = self._run(token_logprobs, reference, batch)
        return Scores(
            policy_logprobs=policy_logprobs,
            entropy=entropy,
            values=values,
            end_values=end_values,
            ref_logprobs=ref_logprobs,
        )

    def _run(self, function: Callable[..., Result], model: Any, *inputs: Any) -> Result:
        """Return `function(model, *inputs)`, a forward pass."""
        return function(model, *inputs)

    @contextmanager
    def _as_reference(self) -> Iterator[Any]:
        """Yield the reference: a copy of the initial policy, or the model with its initial adapter."""
        if self.reference_adapter is None:
            yield self.reference
            return
        with swap_adapter(self.model, self.reference_adapter):
            yield self.model

    def forward_backward(self, batches: Iterable[TrainBatch], *, tokens: bool = False) -> list[dict[str, Tensor]]:
        """Accumulate the batches' gradients; return each batch's sums of metrics, and `tokens`, its number of tokens.

        With `tokens`, also `token_logprobs` and `token_entropies` [M], unless only the critic is trained. Tensors stay
        on the model's device, so that the host does not wait.
        """
        results = []
        for batch in batches:
            here = on_device(batch, self.device)
            sums, scores = self._forward_backward(here)
            if scores:
                self._mismatch.add(scores["token_logprobs"], here.sampler_logprobs, here.batch.counts)
            results.append(sums | (scores if tokens else {}))
        return results

    def _forward_backward(self, batch: TrainBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Backpropagate a micro-batch; return sums of metrics, and log-probabilities and entropies [M], if computed."""
        metrics, scores = dict[str, Tensor](), dict[str, Tensor]()
        with batch_attention(self.model, batch.batch):
            if self.policy_learns or isinstance(self.critic, HeadCritic):
                learnt, scores = self._policy_backward(batch)
                metrics |= learnt
            if isinstance(self.critic, TrunkCritic):
                loss, more = self.objective.critic(batch, self.critic(batch.batch, batch.batch.sources))
                loss.backward()
                metrics |= more
        sums = {name: values.detach().double().sum() for name, values in metrics.items()}
        return sums | {"tokens": torch.tensor(float(len(batch.weights)))}, scores

    def _policy_backward(self, batch: TrainBatch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Backpropagate the policy loss; return metrics [M], and log-probabilities and entropies [M]."""
        policy_logprobs, entropy, hidden = self._run(token_logprobs, self.model, batch.batch)
        loss, metrics = self.objective.policy(
            batch, policy_logprobs, entropy, kl_coef=self.settings.kl_coef, entropy_coef=self.settings.entropy_coef
        )
        if not self.policy_learns:
            loss = loss.new_zeros(())
        if isinstance(self.critic, HeadCritic):
            # During the critic's warm-up the trunk, which is the policy's, gets no gradient.
            value_term, more = self.objective.critic(
                batch, self.critic(hidden if self.policy_learns else hidden.detach())
            )
            loss, metrics = loss + value_term, metrics | more
        loss.backward()
        return metrics, {"token_logprobs": policy_logprobs.detach(), "token_entropies": entropy.detach()}

    def step(self, *, rate_scale: float = 1.0) -> dict[str, float]:
        """Take an optimizer step. `rate_scale`: factor of both learning rates, besides the schedule."""
        metrics = self._mismatch.take()
        if self.policy_learns:
            metrics |= self._step(self.optimizer, rate_scale * self.settings.rate_scale)
        if self.critic_optimizer is not None:
            critic_metrics = self._step(self.critic_optimizer, rate_scale)
            metrics |= {f"critic_{name}": value for name, value in critic_metrics.items()}
        return metrics

    def _step(self, optimizer: Optimizer, rate_scale: float) -> dict[str, float]:
        norm, stepped = optimizer.step(self.settings.step, rate_scale)
        self._skipped_steps += not stepped
        return {"grad_norm": norm, **optimizer.learning_rates(self.settings.step, rate_scale)}

    def gradient_norm(self, batches: Sequence[TrainBatch], term: LossTerm) -> float:
        """Return the norm of the policy's gradient of one loss term over the batches. Takes no step.

        The other terms get coefficient 0; for a term other than "task" the batches must have advantages of 0.
        """
        objective, settings, critic = self.objective, self.settings, self.objective.critic_settings
        self.objective = replace(objective, critic_settings=critic and critic.model_copy(update={"value_coef": 0.0}))
        self.settings = replace(
            settings,
            kl_coef=settings.kl_coef if term == "kl" else 0.0,
            entropy_coef=settings.entropy_coef if term == "entropy" else 0.0,
        )
        try:
            self.forward_backward(batches)
            return self._take_gradient_norm()
        finally:
            self.objective, self.settings = objective, settings

    def _take_gradient_norm(self) -> float:
        """Return the norm of the policy's accumulated gradients, and clear all gradients."""
        self._mismatch.take()
        norm = float(self.optimizer.gradient_norm())
        for optimizer in (self.optimizer, self.critic_optimizer):
            if optimizer is not None:
                optimizer.masters.drop_gradients()
        return norm

    def weights(self) -> WeightSource:
        return self.model

    def named_weights(self, *, trained: bool) -> Iterator[tuple[str, Tensor]]:
        """Yield the trained or the frozen parameters with their names."""
        return (
            (name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad == trained
        )

    def value_head(self) -> dict[str, Tensor]:
        """Return the parameters of a critic on the policy's trunk. Return {} for other critics."""
        return dict(self.critic.named_parameters()) if isinstance(self.critic, HeadCritic) else {}

    def save_model(self, folder: Path, tokenizer: Any) -> None:
        write_model(self.model, tokenizer, folder)

    def load_weights(self, weights: WeightSource) -> None:
        copy_parameters(self.model, weights)

    def check_finite(self, when: str) -> None:
        check_finite([*self.model.parameters(), *self.state_dict()["tensors"].values()], when)

    def save_state(self, folder: Path) -> None:
        save_tensors(self.state_dict()["tensors"], folder)

    def load_state(self, folder: Path, *, skipped_steps: int) -> None:
        """Load a state that this learner or any number of ranks saved."""
        self.load_state_dict({"tensors": load_tensors(folder), "skipped_steps": skipped_steps})

    def state_dict(self) -> dict[str, Any]:
        """Return the state besides the policy's weights: optimizers, critic and reference adapter, as flat tensors.

        A reference model is not saved: the configuration loads it again. A reference adapter is small, and the folder
        that it came from may change.
        """
        tensors = {f"optimizer.{name}": value for name, value in self.optimizer.tensors().items()}
        if self.critic is not None and self.critic_optimizer is not None:
            tensors |= {f"critic.{name}": value for name, value in self.critic.state_dict().items()}
            tensors |= {f"critic_optimizer.{name}": value for name, value in self.critic_optimizer.tensors().items()}
        if self.reference_adapter is not None:
            tensors |= {f"reference.{name}": value for name, value in self.reference_adapter.items()}
        for prefix, part in self.auxiliary.items():
            tensors |= {f"{prefix}.{name}": value for name, value in part.tensors().items()}
        return {"tensors": tensors, "skipped_steps": self.skipped_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tensors: dict[str, Tensor] = state["tensors"]

        def part(prefix: str) -> dict[str, Tensor]:
            return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}

        self.optimizer.load_tensors(part("optimizer."))
        if self.critic is not None and self.critic_optimizer is not None:
            self.critic.load_state_dict(part("critic."))
            self.critic_optimizer.load_tensors(part("critic_optimizer."))
        if self.reference_adapter is not None:
            for name, value in part("reference.").items():
                self.reference_adapter[name].copy_(value)
        for prefix, auxiliary in self.auxiliary.items():
            auxiliary.load_tensors(part(f"{prefix}."))
        self._skipped_steps = state["skipped_steps"]


def _to_cpu(scores: Scores) -> Scores:
    columns = {field.name: getattr(scores, field.name) for field in fields(scores)}
    return Scores(**{name: None if column is None else column.cpu() for name, column in columns.items()})


def trunk_hidden(model: Any, batch: Batch, keep: Tensor) -> Tensor:
    """Return the hidden states [K, H] of the model's trunk at positions `keep`. Call it inside `batch_attention`."""
    return packed_hidden(model.base_model, batch, keep)


def token_logprobs(model: Any, batch: Batch, keep: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probabilities and entropies [M] and hidden states [K, H]. Call it inside `batch_attention`.

    `keep`: positions of the hidden states, first `batch.sources`; None for these alone.
    """
    keep, count = batch.sources if keep is None else keep, len(batch.sources)
    head = output_head(model) if uses_active_plan(batch) else None
    if head is not None:
        hidden = packed_hidden(model.base_model, batch, keep)
        return *head_logprobs(head, hidden[:count], batch.targets, batch.temperatures, batch.allowed), hidden
    logits, hidden = packed_logits(model, batch, keep)
    logits = logits[:count]
    if batch.allowed is not None:
        logits = logits.masked_fill(find_forbidden(batch.allowed, slice(None), logits.shape[1]), NEVER)
    return *logprobs_and_entropy(logits, batch.targets, batch.temperatures), hidden
