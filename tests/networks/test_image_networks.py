"""The networks for images compute faster than torch's defaults, and give what those give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from cuber import EWC, GPM
from cuber.networks import AlexNet5, ReducedResNet18, backbones
from tests.loops import learn, loss_fn


@pytest.mark.parametrize("build", [AlexNet5, ReducedResNet18])
def test_images_are_laid_out_channels_last_and_outputs_stay_the_same(
    build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, x, seen = build().double().eval(), torch.randn(2, 3, 32, 32, dtype=torch.float64), []
    convolutions = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    hooks = [m.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])) for m in convolutions]
    found = model(x)
    assert len(seen) == len(hooks)
    assert all(image.is_contiguous(memory_format=torch.channels_last) for image in seen)
    monkeypatch.setattr(backbones, "FORMAT", torch.contiguous_format)
    assert torch.allclose(model(x), found, atol=1e-10)
    assert seen[len(hooks)].is_contiguous()


def test_a_protected_network_learns_the_same_in_both_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    def learned() -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(ReducedResNet18(), nn.Linear(640, 2)).double()
        learner = GPM(model, threshold=0.9)
        for _ in range(2):
            loader = [(torch.randn(4, 3, 32, 32, dtype=torch.float64), torch.tensor([0, 1, 0, 1]))]
            learner.begin_task(loader, loss_fn)
            optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.05))
            for x, y in loader * 2:
                optimizer.zero_grad()
                loss_fn(model(x), y).backward()
                optimizer.step()
            learner.end_task(loader)
        return [parameter.detach() for parameter in model.parameters()]

    last = learned()
    monkeypatch.setattr(backbones, "FORMAT", torch.contiguous_format)
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(last, learned(), strict=True))


def test_dropout_of_nothing_and_of_everything() -> None:
    x = torch.ones(3, 5)
    assert torch.equal(backbones.Dropout(0.0)(x), x)
    assert not backbones.Dropout(1.0)(x).any()


@pytest.mark.parametrize("build", [AlexNet5, ReducedResNet18])
def test_gradients_of_single_samples_can_be_computed_at_once(build: Callable[[], nn.Module]) -> None:
    """EWC warns where torch.func cannot take a model; warnings of ours are errors here."""
    torch.manual_seed(0)
    model = build()
    learner = EWC(nn.Sequential(model, nn.Linear(model.features, 2)), norm_statistics="batch")  # type: ignore[arg-type]
    learn(learner, [(torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 0, 1]))])
    assert learner.tasks == 1


@pytest.mark.parametrize("p", [0.2, 0.5])
@pytest.mark.parametrize("shape", [(257, 1001), (33, 7, 15, 13)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_dropout_keeps_its_share_scaled_and_passes_the_same_gradient(
    p: float, shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    x = torch.rand(shape) + 1
    x = (x.contiguous(memory_format=layout) if len(shape) == 4 else x.T.contiguous().T).requires_grad_()
    dropout = backbones.Dropout(p)
    y = dropout(x)
    kept = y != 0
    assert torch.allclose(y[kept], x[kept] / (1 - p), rtol=1e-4)
    rate, deviation = float(kept.float().mean()), (p * (1 - p) / kept.numel()) ** 0.5
    assert abs(rate - (1 - p)) < 4 * deviation
    neighbors = float((kept.flatten()[1:] == kept.flatten()[:-1]).float().mean())
    assert abs(neighbors - (p**2 + (1 - p) ** 2)) < 4 * deviation
    y.sum().backward()
    assert torch.allclose(x.grad, kept / (1 - p), rtol=1e-4)  # type: ignore[arg-type]
    assert not torch.equal(dropout(x) != 0, kept)
    assert dropout.eval()(x) is x
