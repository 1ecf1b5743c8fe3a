"""Scikit-learn's digits: small enough to be learnt in seconds, and nothing to download."""

from __future__ import annotations

from typing import Any

from torch import nn

from cuber.experiments.benchmark import Benchmark, Protocol
from cuber.methods.cuber import PAPER
from cuber.networks import MLP, MultiHead
from cuber.streams import Stream, overlap_digits, permuted_digits, split_digits
from cuber.training import TrainingConfig

# With a shared head old tasks have nothing of their own to fall back on: the paper's thresholds, by layer.
PAPER_THRESHOLDS = {"threshold": [0.95, 0.99, 0.99], "threshold_step": 0.0}

# As many replayed as there are in a batch; kept are a third of overlap-digits' samples, a tenth of split-digits', a
# hundredth of permuted-digits'.
REPLAY = {method: {"memory": 100, "replay": 10} for method in ("agem", "er")}


# Gates that are half open let half through, so a task of few epochs takes larger steps to be learnt; and ten tasks find
# more room with gates that can be moved for longer. Found on validation data, with seeds 100 to 102.
HAT = {"lr": 0.3}
HAT_SHARED_HEAD = {"lr": 0.2, "smax": 100}


def ewc(lam: float) -> dict[str, Any]:
    """Settings of EWC; the coefficients are chosen on validation data, and much more than that diverges."""
    return {"lam": lam, "anchors": "last"}


# Matrices this small are multiplied by one thread before a second has woken up, and on a machine that is busy otherwise
# waiting for the second takes many times as long as the work.
THREADS = 1

PROTOCOLS = {"usual": Protocol(), "paper": Protocol(settings={"cuber": PAPER})}
"""CUBER's own defaults, or with the paper's settings: docs/backward-transfer.md says what the difference is."""


def backbone_with_heads(stream: Stream) -> nn.Module:
    """64-100-100 and a head for each task, all without biases."""
    return MultiHead(MLP(64, 100, 100, last_relu=True), 100, [task.classes for task in stream], bias=False)


def perceptron(stream: Stream) -> nn.Module:
    """64-100-100-10, without biases: the paper's network for Permuted MNIST, with smaller images."""
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
    threads=THREADS,
    protocols=PROTOCOLS,
    settings={
        "cuber": PAPER_THRESHOLDS,
        "trgp": PAPER_THRESHOLDS,
        "gpm": PAPER_THRESHOLDS,
        "hat": HAT_SHARED_HEAD,
        "ewc": ewc(10.0),
        **REPLAY,
    },
)
