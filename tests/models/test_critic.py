import pytest
import torch

from episodes_for_tests import trajectory_of, turn_of
from models_for_tests import FAMILIES, random_model
from turnwise.core.samples import Batch
from turnwise.core.trajectory import Trajectory
from turnwise.data.packing import pack, unpack
from turnwise.data.samples import build_samples
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.critic import HeadCritic, TrunkCritic, value_head
from turnwise.models.forward import packed_logits


def talk(middle: int = 20, last: int = 22) -> Trajectory:
    return trajectory_of([turn_of([3] * 10, [middle, 21], extends=False), turn_of([30, 31], [last])])


def values(critic: TrunkCritic | HeadCritic, model: object, batch: Batch) -> torch.Tensor:
    if isinstance(critic, TrunkCritic):
        return critic(batch, batch.sources)
    return critic(packed_logits(model, batch, batch.sources)[1])


def with_random_head(critic: TrunkCritic | HeadCritic) -> TrunkCritic | HeadCritic:
    torch.nn.init.normal_(critic.head.weight, generator=torch.Generator().manual_seed(1))
    torch.nn.init.constant_(critic.head.bias, 0.3)
    return critic


def test_value_head_starts_at_zero() -> None:
    head = value_head(random_model("llama", ATTENTION))
    assert (head.weight == 0).all() and (head.bias == 0).all()
    assert head.weight.shape == (1, 64)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", [TrunkCritic, HeadCritic])
def test_critic_values_come_from_the_position_before_the_token(kind: type, family: str) -> None:
    """Compared with the hidden states of a forward over each sample alone."""
    model, plain = random_model(family, ATTENTION), random_model(family, "eager")
    critic = with_random_head(kind(model))
    samples = build_samples([talk(), talk(middle=25), talk(last=40)])
    batch = pack(samples)
    for sample, ours in zip(samples, unpack(batch, values(critic, model, batch)), strict=True):
        hidden = plain.base_model(sample.ids[None]).last_hidden_state[0]
        expected = critic.head(hidden).squeeze(-1)[sample.mask.nonzero().squeeze(1) - 1]
        torch.testing.assert_close(ours, expected, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", [TrunkCritic, HeadCritic])
def test_critic_value_depends_on_earlier_tokens_only(kind: type) -> None:
    model = random_model("llama", ATTENTION)
    critic = with_random_head(kind(model))
    first, second = (values(critic, model, pack(build_samples([talk(middle=token)]))) for token in (20, 55))
    torch.testing.assert_close(first[0], second[0])
    assert ((first[1:] - second[1:]).abs() > 1e-4).all()


def test_trunk_critic_does_not_change_the_policy() -> None:
    model = random_model("llama", ATTENTION)
    critic = TrunkCritic(model)
    trunk = dict(model.base_model.named_parameters())
    for name, parameter in critic.trunk.named_parameters():
        assert torch.equal(parameter, trunk[name])
        assert parameter.data_ptr() != trunk[name].data_ptr()
    critic = with_random_head(critic)
    values(critic, model, pack(build_samples([talk()]))).sum().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert critic.trunk.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


def test_head_critic_has_only_the_parameters_of_its_head() -> None:
    assert [name for name, _ in HeadCritic(random_model("llama", ATTENTION)).named_parameters()] == [
        "head.weight",
        "head.bias",
    ]
