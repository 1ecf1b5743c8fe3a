"""Split CIFAR-100 as the paper runs it."""

from __future__ import annotations

from torch import nn

from cuber.experiments.benchmark import AGREED, Benchmark
from cuber.experiments.presets.table import BATCH_NORM, ewc, subspaces
from cuber.networks import AlexNet5, MultiHead
from cuber.streams import Stream, split_cifar100
from cuber.training import TrainingConfig

# The published code keeps as many input vectors of each layer: an image has many in a convolution.
SAMPLES = [24, 100, 100, 125, 125]

SETTINGS = {
    "owm": {"lr": 0.01},
    "ewc": ewc(lr=0.05, lam=5000, tasks=10),
    "hat": {"lr": 0.05, "smax": 400, "c": 0.75},
    "agem": {"lr": 0.05, "memory": 2000, "replay": 64},
    "er": {"lr": 0.05, "memory": 2000, "replay": 64},
    **subspaces(SAMPLES, threshold=0.97, step=0.003),
}
"""The paper's table of hyper-parameters; what it leaves open is as in its published code."""

TRAINING = TrainingConfig(epochs=200, lr=0.01, batch_size=64, patience=6, factor=2.0, floor=1e-5)


def alexnet(stream: Stream) -> nn.Module:
    """AlexNet-5 and a head for each task, without biases."""
    return MultiHead(AlexNet5(), AlexNet5.features, [task.classes for task in stream], bias=False)


SPLIT_CIFAR100 = Benchmark(
    name="split-cifar100",
    help="CIFAR-100 in 10 tasks of 10 classes, a head each",
    stream=split_cifar100,
    network=alexnet,
    training=TRAINING,
    settings=SETTINGS,
    for_all_methods=BATCH_NORM,
    datasets=("cifar-100",),
    protocols=AGREED,
)
