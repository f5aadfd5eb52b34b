import pytest
import torch

from models_for_tests import FAMILIES, VOCABULARY, random_model
from turnwise.core.samples import Sample
from turnwise.data.packing import pack, unpack
from turnwise.models.attention.interface import ATTENTION
from turnwise.models.forward import packed_logits


def make_sample(ids: list[int], first_sampled: int, trajectory: int = 0) -> Sample:
    mask = torch.arange(len(ids)) >= first_sampled
    mask[-2] = False  # an observation inside
    return Sample(
        trajectory=trajectory,
        ids=torch.tensor(ids),
        mask=mask,
        turn_ids=torch.where(mask, 0, -1),
        sampler_logprobs=torch.zeros(len(ids)),
        temperatures=torch.ones(len(ids)),
    )


def mixed_samples(generator: torch.Generator) -> list[Sample]:
    """Three samples with one prompt, two with another and two alone, of different lengths, in mixed order."""

    def ids(count: int) -> list[int]:
        return torch.randint(3, VOCABULARY, (count,), generator=generator).tolist()

    first, second = [50, *ids(11)], [51, *ids(8)]  # no common beginning with the others
    return [
        make_sample(first + ids(5), 12),
        make_sample([52, *ids(6)], 3),
        make_sample(second + ids(3), 9),
        make_sample(first + ids(11), 12),
        make_sample(second + ids(8), 9),
        make_sample(first + ids(4), 12),
        make_sample([53, *ids(19)], 15),
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_batch_matches_each_sample_alone(family: str) -> None:
    samples = mixed_samples(torch.Generator().manual_seed(1))
    plain, packed = random_model(family, "eager"), random_model(family, ATTENTION)
    batch = pack(samples)
    assert -1 in batch.parents and max(batch.parents) >= 1, "the case must have shared prompts and samples alone"
    logits, _ = packed_logits(packed, batch, batch.sources)
    by_sample = unpack(batch, logits)
    loss = sum(part.log_softmax(-1).square().mean() for part in by_sample)
    plain_loss = torch.zeros(())
    for sample, part in zip(samples, by_sample, strict=True):
        alone = plain(sample.ids[None]).logits[0][sample.mask.nonzero().squeeze(1) - 1]
        torch.testing.assert_close(part, alone, atol=2e-5, rtol=1e-4)
        plain_loss = plain_loss + alone.log_softmax(-1).square().mean()
    loss.backward()
    plain_loss.backward()
    for (name, ours), theirs in zip(packed.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=2e-4, rtol=1e-3, msg=name)


def test_shared_prompt_is_computed_once() -> None:
    samples = mixed_samples(torch.Generator().manual_seed(2))
    batch = pack(samples)
    assert len(batch.ids) == sum(map(len, samples)) - 2 * 11 - 1 * 8


def test_different_prompts_share_their_common_prefix() -> None:
    rules = list(range(3, 23))
    samples = [make_sample([*rules, 30 + number, 40, 50, 51, 52], 22) for number in range(4)]
    batch = pack(samples)
    assert batch.lengths == (20, 5, 5, 5, 5) and batch.parents == (-1, 0, 0, 0, 0)
    model, plain = random_model("llama", ATTENTION), random_model("llama", "eager")
    for sample, part in zip(samples, unpack(batch, packed_logits(model, batch, batch.sources)[0]), strict=True):
        alone = plain(sample.ids[None]).logits[0][sample.mask.nonzero().squeeze(1) - 1]
        torch.testing.assert_close(part, alone, atol=2e-5, rtol=1e-4)


def test_packed_samples_do_not_influence_each_other() -> None:
    samples = mixed_samples(torch.Generator().manual_seed(3))
    model = random_model("llama", ATTENTION)
    changed = [*samples[:-1], make_sample([5] * 20, 15)]
    first, second = (
        unpack(batch, packed_logits(model, batch, batch.sources)[0]) for batch in (pack(samples), pack(changed))
    )
    for ours, theirs in zip(first[:-1], second[:-1], strict=True):
        torch.testing.assert_close(ours, theirs)
    assert not torch.allclose(first[-1], second[-1])


def test_sampled_token_without_context_is_an_error() -> None:
    with pytest.raises(ValueError, match="has no token before it"):
        pack([make_sample([1, 2, 3], 0)])


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_last_feed_forward_runs_only_where_its_output_is_used(family: str) -> None:
    model = random_model(family, ATTENTION)
    layers = model.base_model.h if family == "gpt2" else model.base_model.layers
    rows: list[int] = []
    for layer in layers:
        layer.mlp.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[1]))
        # Registered first, so it receives the layer's input; the last layer's work shows in its first matrix.
    first = layers[-1].mlp.c_fc if family == "gpt2" else layers[-1].mlp.up_proj
    first.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[1]))
    batch = pack(mixed_samples(torch.Generator().manual_seed(4)))
    packed_logits(model, batch, batch.sources)
    assert rows == [len(batch.ids)] * 3 + [len(batch.sources)]
