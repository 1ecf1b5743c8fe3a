"""Split miniImageNet as the paper's authors ran it, and as their text has it."""

from __future__ import annotations

from torch import nn

from cuber.experiments.benchmark import Benchmark, Protocol
from cuber.experiments.presets.table import BATCH_NORM, ewc, subspaces
from cuber.networks import MultiHead, ReducedResNet18
from cuber.streams import Stream, split_miniimagenet
from cuber.training import TrainingConfig

SETTINGS = {
    "ewc": ewc(lr=0.03, lam=5000, tasks=20),
    "hat": {"lr": 0.03, "smax": 400, "c": 0.75},
    "agem": {"lr": 0.1, "memory": 500, "replay": 64},
    "er": {"lr": 0.1, "memory": 500, "replay": 64},
    **subspaces(samples=100, threshold=0.985),
}
"""The paper's table of hyper-parameters, but for the growing threshold, which only its text has."""

GROWING = {method: {"threshold_step": 0.003} for method in ("gpm", "trgp", "cuber")}


def resnet(stream: Stream) -> nn.Module:
    """The reduced ResNet-18, its first stride 2, and a head for each task, without biases."""
    backbone = ReducedResNet18(side=84, first_stride=2)
    return MultiHead(backbone, backbone.features, [task.classes for task in stream], bias=False)


SPLIT_MINIIMAGENET = Benchmark(
    name="split-miniimagenet",
    help="miniImageNet in 20 tasks of 5 classes, a head each",
    stream=split_miniimagenet,
    network=resnet,
    training=TrainingConfig(epochs=100, lr=0.1, batch_size=64, patience=5, factor=3.0, floor=1e-3),
    settings=SETTINGS,
    for_all_methods=BATCH_NORM,
    datasets=("miniimagenet",),
    protocols={
        "code": Protocol(),
        "paper": Protocol(training={"patience": 6, "factor": 2.0, "floor": 1e-5}, settings=GROWING),
    },
)
