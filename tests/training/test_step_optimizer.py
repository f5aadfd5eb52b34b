"""Steps of the optimizer are those of torch: gradients above the limit are scaled down, those below it are not."""

import pytest
import torch
from torch import nn

from turnwise.training.optimizer import BETAS, Optimizer, OptimizerSettings


@pytest.mark.parametrize("scales", [(0.01, 0.3, 0.002, 0.2), (40.0, 0.1, 5.0, 0.01)])
def test_optimizer_matches_torch_with_clipped_gradients(scales: tuple[float, ...]) -> None:
    """AdamW hides a constant factor of the gradients, so they differ from step to step."""
    generator = torch.Generator().manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(4, 3)) for _ in range(2))
    settings = OptimizerSettings(learning_rate=0.1, weight_decay=0.01, max_grad_norm=1.0)
    optimizer = Optimizer([ours], settings, schedule=lambda step: 1.0)
    plain = torch.optim.AdamW([theirs], lr=0.1, betas=BETAS, weight_decay=0.01)
    for step, scale in enumerate(scales):
        gradient = scale * torch.randn(4, 3, generator=generator)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        norm, stepped = optimizer.step(step)
        torch.nn.utils.clip_grad_norm_([theirs], 1.0)
        plain.step()
        assert stepped and norm == pytest.approx(float(gradient.norm()), rel=1e-5)
        torch.testing.assert_close(ours, theirs)
