"""What is done once per task: the bases, beside the SVD that the papers use, and the look at old gradients."""

from __future__ import annotations

import statistics

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.subjects import ALEXNET_SUBJECT, resnet
from benchmarks.timing import Figure, seconds
from cuber import GPM
from cuber.layers import ProtectedLayer, evaluation_mode, observed
from cuber.methods.cuber import SubspaceMethod

SAMPLES = 125


def measure(quick: bool) -> list[Figure]:
    figures = []
    samples = 32 if quick else SAMPLES
    for threads in (1,) if quick else (1, 2):
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        ours, forward, svd = _alexnet(samples)
        of = f"{samples} samples, threads {threads}"
        figures += [
            Figure(f"bases, AlexNet-5, {of}", ours, "s", at_most=3.0),
            # Both need the network's forward pass, so it is part of neither.
            Figure(
                f"bases, AlexNet-5, SVD beside ours, {of}", svd / (ours - forward), at_least=None if quick else 15.0
            ),
        ]
        if not quick:
            at_84 = (torch.randn(samples, 3, 84, 84), torch.randint(10, (samples,)))
            takes, _ = _bases_take(GPM(resnet(84), samples=samples), at_84)
            figures.append(Figure(f"bases, ResNet-18 at 84 x 84, {of}", takes, "s", at_most=5.0))
    torch.set_num_threads(1)
    correlation = _correlation(quick)
    return [*figures, Figure("correlation step beside a forward and backward pass", correlation, at_most=2.0)]


def _alexnet(samples: int) -> tuple[float, float, float]:
    """How long our bases take, how much of that is the forward pass, and how long the SVD of the same matrices."""
    batch = ALEXNET_SUBJECT.data(samples)
    turns = []
    for _ in range(3):
        learner = GPM(ALEXNET_SUBJECT.build(), samples=samples)
        ours, forward = _bases_take(learner, batch)
        matrices = _representations(learner, batch)
        svd = sum(seconds(lambda matrix=matrix: torch.linalg.svd(matrix, full_matrices=False)) for matrix in matrices)  # type: ignore[misc]
        turns.append((ours, forward, svd))
    ours, forward, svd = (statistics.median(each) for each in zip(*turns, strict=True))
    return ours, forward, svd


def _begin(learner: GPM, batch: tuple[Tensor, Tensor]) -> None:
    learner.begin_task([batch], functional.cross_entropy)
    learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.01))


def _bases_take(learner: GPM, batch: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """How long it takes to find a task's bases, and how long the forward pass alone."""
    _begin(learner, batch)
    with torch.no_grad(), evaluation_mode(learner.model):
        learner.loss(batch)
        forward = seconds(lambda: learner.loss(batch))

    def extend() -> None:
        for name, gram in learner.input_grams([batch]).items():
            learner.memory[name].add_task(gram, learner.threshold_of(name))

    return seconds(extend), forward


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
    assert isinstance(learner, SubspaceMethod)
    batch = ALEXNET_SUBJECT.data(64 if quick else 128)
    _begin(learner, batch)
    model = ALEXNET_SUBJECT.build()

    def plain() -> None:
        functional.cross_entropy(model(batch[0]), batch[1]).backward()

    def correlate() -> None:
        for name, gradient in learner.mean_gradients(learner.sample).items():
            learner.decide_regimes(learner.memory[name], gradient)

    plain()
    turns = [(seconds(correlate), seconds(plain)) for _ in range(3 if quick else 7)]
    return sorted(one / other for one, other in turns)[len(turns) // 2]
