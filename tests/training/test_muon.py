import pytest
import torch
from torch import nn

from turnwise.training.optimizer import CpuMuon, Optimizer, OptimizerSettings


def trained(kind: type[torch.optim.Muon], shape: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return how far three steps moved the parameter, and the moments after them."""
    torch.manual_seed(0)
    parameter = nn.Parameter(start := torch.randn(shape))
    before = start.clone()
    muon = kind([parameter], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        parameter.grad = torch.randn(shape)
        muon.step()
    return parameter.detach() - before, muon.state[parameter]["momentum_buffer"]


@pytest.mark.parametrize("shape", [(24, 24), (48, 16), (16, 48)])
def test_muon_matches_torch_to_bfloat16_precision(shape: tuple[int, int]) -> None:
    (ours, our_moment), (theirs, their_moment) = trained(CpuMuon, shape), trained(torch.optim.Muon, shape)
    assert torch.equal(our_moment, their_moment)
    assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_muon_multiplies_in_float32() -> None:
    """All singular values of 3 Q are equal, so one Python float follows the iteration on the matrix."""
    matrix = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)))[0]
    parameter = nn.Parameter(torch.zeros(12, 12))
    muon = CpuMuon([parameter], lr=1.0, weight_decay=0.0)
    parameter.grad = 3 * matrix
    muon.step()
    value = 12**-0.5
    for _ in range(5):
        value = 3.4445 * value - 4.775 * value**3 + 2.0315 * value**5
    assert torch.allclose(parameter.detach(), -value * matrix, atol=1e-5)


def test_optimizer_uses_cpu_muon_for_cpu_matrices() -> None:
    settings = OptimizerSettings(learning_rate=1e-3, weight_decay=0.0, max_grad_norm=1.0, muon_learning_rate=0.02)
    optimizer = Optimizer([nn.Parameter(torch.ones(4, 4))], settings, lambda step: 1.0)
    assert [type(part) for part in optimizer._parts] == [CpuMuon]
