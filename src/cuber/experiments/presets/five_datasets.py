"""5-Datasets as the paper's authors ran it, and as their text has it."""

from __future__ import annotations

from torch import nn

from cuber.experiments.benchmark import Benchmark, Protocol
from cuber.experiments.presets.table import BATCH_NORM, ewc, subspaces
from cuber.networks import MultiHead, ReducedResNet18
from cuber.streams import Stream, five_datasets
from cuber.streams.paper_streams import ORDERS
from cuber.training import TrainingConfig

SETTINGS = {
    "ewc": ewc(lr=0.03, lam=5000, tasks=5),
    "hat": {"lr": 0.1, "smax": 400, "c": 0.75},
    "agem": {"lr": 0.1, "memory": 3000, "replay": 64},
    "er": {"lr": 0.1, "memory": 3000, "replay": 64},
    **subspaces(samples=100, threshold=0.965),
}
"""The paper's table of hyper-parameters; what it leaves open is as in its published code."""


def resnet(stream: Stream) -> nn.Module:
    """The reduced ResNet-18, its first stride 1, and a head for each task, without biases."""
    backbone = ReducedResNet18(side=32, first_stride=1)
    return MultiHead(backbone, backbone.features, [task.classes for task in stream], bias=False)


FIVE_DATASETS = Benchmark(
    name="five-datasets",
    help="CIFAR-10, MNIST, SVHN, Fashion-MNIST and notMNIST, a head each",
    stream=five_datasets,
    network=resnet,
    training=TrainingConfig(epochs=100, lr=0.1, batch_size=64, patience=5, factor=3.0, floor=1e-3),
    settings=SETTINGS,
    for_all_methods=BATCH_NORM,
    datasets=ORDERS["code"],
    options={"order": tuple(ORDERS), "mnist_twice": (False, True)},
    protocols={
        "code": Protocol(),
        "paper": Protocol(
            training={"epochs": 200, "patience": 6, "factor": 2.0, "floor": 1e-5}, options={"order": "paper"}
        ),
    },
)
