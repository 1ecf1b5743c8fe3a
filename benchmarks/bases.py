"""What is done once per task: the bases, beside the SVD that the papers use, and the look at old gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.subjects import ALEXNET_SUBJECT, resnet
from benchmarks.timing import Figure, seconds
from cuber import GPM, TRGP
from cuber.layers import ProtectedLayer, evaluation_mode, observed

SAMPLES = 125


def measure(quick: bool) -> list[Figure]:
    torch.manual_seed(0)
    samples = 16 if quick else SAMPLES
    learner = GPM(ALEXNET_SUBJECT.build(), samples=samples)
    batch = ALEXNET_SUBJECT.data(samples)
    ours = _bases_take(learner, batch)
    matrices = _representations(learner, batch)
    svd = sum(seconds(lambda matrix=matrix: torch.linalg.svd(matrix, full_matrices=False)) for matrix in matrices)  # type: ignore[misc]
    at_84 = GPM(resnet(84), samples=samples)
    at_84_takes = _bases_take(at_84, (torch.randn(samples, 3, 84, 84), torch.randint(10, (samples,))))
    return [
        Figure(f"bases, AlexNet-5, {samples} samples", ours, "s", at_most=3.0),
        Figure(f"bases, AlexNet-5, SVD beside ours, {samples} samples", svd / ours, at_least=15.0),
        Figure(f"bases, ResNet-18 at 84 x 84, {samples} samples", at_84_takes, "s", at_most=5.0),
        Figure("correlation step beside a forward and backward pass", _correlation(quick), at_most=2.0),
    ]


def _begin(learner: GPM, batch: tuple[Tensor, Tensor]) -> None:
    learner.begin_task([batch], functional.cross_entropy)
    learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.01))


def _bases_take(learner: GPM, batch: tuple[Tensor, Tensor]) -> float:
    _begin(learner, batch)
    return seconds(lambda: learner._extend(learner._input_grams([batch])))


def _representations(learner: GPM, batch: tuple[Tensor, Tensor]) -> list[Tensor]:
    """The matrices whose columns are the input vectors of each layer, in the precision that ours are summed in."""
    found: list[Tensor] = []

    def observe(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> None:
        found.append(layer.vectors(module, x).T.double())

    with torch.no_grad(), evaluation_mode(learner.model), observed(learner.layers.values(), observe):
        learner.loss(batch)
    return found


def _correlation(quick: bool) -> float:
    """How a new task stands to nine old ones, beside the gradient of the same samples alone."""
    learner = ALEXNET_SUBJECT.learner("CUBER")
    assert isinstance(learner, TRGP)
    batch = ALEXNET_SUBJECT.data(64 if quick else 128)
    _begin(learner, batch)
    model = ALEXNET_SUBJECT.build()

    def plain() -> None:
        functional.cross_entropy(model(batch[0]), batch[1]).backward()

    plain()
    turns = [(seconds(learner.correlate), seconds(plain)) for _ in range(3 if quick else 7)]
    return sorted(one / other for one, other in turns)[len(turns) // 2]
