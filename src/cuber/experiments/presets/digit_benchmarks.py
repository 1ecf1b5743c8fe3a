"""Benchmarks on scikit-learn's digits, which train in seconds and need no download."""

from __future__ import annotations

from torch import nn

from cuber.experiments.benchmark import Benchmark, Protocol
from cuber.methods.cuber import PAPER
from cuber.networks import MLP, MultiHead
from cuber.streams import Stream, overlap_digits, permuted_digits, split_digits
from cuber.training import TrainingConfig

# As many replayed samples as in a batch. The memory holds a third of the samples of overlap-digits, a tenth of
# split-digits and a hundredth of permuted-digits.
REPLAY = {method: {"memory": 100, "replay": 10} for method in ("agem", "er")}

# Half-open gates halve activations, so tasks of few epochs need a larger learning rate; with a shared head, a smaller
# smax lets gates change for longer, which leaves capacity for ten tasks. Chosen on validation data of seeds 100 to 102.
HAT = {"lr": 0.3}
HAT_SHARED_HEAD = {"lr": 0.2, "smax": 100}

# With a shared head old tasks have no parameters of their own: the thresholds of the paper, by layer.
PAPER_THRESHOLDS = {"threshold": [0.95, 0.99, 0.99], "threshold_step": 0.0}

# The matrices are so small that starting a second thread takes longer than the product.
THREADS = 1

PROTOCOLS = {"usual": Protocol(), "paper": Protocol(settings={"cuber": PAPER})}
"""CUBER's own defaults, or the settings of the paper; docs/backward-transfer.md explains the difference."""


def ewc(lam: float) -> dict[str, float | str]:
    """Settings of EWC; ``lam`` was chosen on validation data, and much larger values diverge."""
    return {"lam": lam, "anchors": "last"}


def backbone_with_heads(stream: Stream) -> nn.Module:
    """64-100-100 with a head for each task, without biases."""
    return MultiHead(MLP(64, 100, 100, last_relu=True), 100, [task.classes for task in stream], bias=False)


def perceptron(stream: Stream) -> nn.Module:
    """64-100-100-10 without biases: the paper's network for Permuted MNIST, for smaller images."""
    return MLP(64, 100, 100, stream[0].classes)


OVERLAP_DIGITS = Benchmark(
    name="overlap-digits",
    help="tasks of 4 digits that share 2 with the next, few samples, a head each",
    stream=overlap_digits,
    network=backbone_with_heads,
    training=TrainingConfig(epochs=20, lr=0.05, batch_size=10),
    settings={"hat": HAT, "ewc": ewc(100.0), **REPLAY},
    threads=THREADS,
    protocols=PROTOCOLS,
)

SPLIT_DIGITS = Benchmark(
    name="split-digits",
    help="tasks of 2 digits, a head each",
    stream=split_digits,
    network=backbone_with_heads,
    training=TrainingConfig(epochs=10, lr=0.05, batch_size=10),
    settings={"hat": HAT, "ewc": ewc(300.0), **REPLAY},
    threads=THREADS,
    protocols=PROTOCOLS,
)

PERMUTED_DIGITS = Benchmark(
    name="permuted-digits",
    help="all 10 digits, the pixels permuted in each task, one head for all",
    stream=permuted_digits,
    network=perceptron,
    training=TrainingConfig(epochs=5, lr=0.05, batch_size=10),
    settings={
        **dict.fromkeys(("cuber", "trgp", "gpm"), PAPER_THRESHOLDS),
        "hat": HAT_SHARED_HEAD,
        "ewc": ewc(10.0),
        **REPLAY,
    },
    threads=THREADS,
    protocols=PROTOCOLS,
)

ALL = (OVERLAP_DIGITS, SPLIT_DIGITS, PERMUTED_DIGITS)
