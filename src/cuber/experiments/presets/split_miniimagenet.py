"""Split miniImageNet as the paper's authors ran it, and as their text has it."""

from __future__ import annotations

from torch import nn

from cuber.experiments.benchmark import Benchmark, Protocol, Settings
from cuber.experiments.presets.batch_means import for_single_samples
from cuber.networks import MultiHead, ReducedResNet18
from cuber.streams import Stream, split_miniimagenet
from cuber.training import Training

BATCH = {"norm_statistics": "batch"}
GPM = {**BATCH, "samples": 100, "threshold": 0.985, "threshold_step": 0.0}
TRGP = {**GPM, "eps1": 0.5}
CUBER = {**TRGP, "eps2": 0.0, "lam": 1.0, "penalty": "norm"}

LAM_OF_BATCH_MEANS = 5000
"""EWC's coefficient in the paper's table."""
EWC = {"lr": 0.03, "lam": for_single_samples(LAM_OF_BATCH_MEANS, tasks=20), "anchors": "last"}

PAPER: Settings = {
    "ewc": EWC,
    "hat": {"lr": 0.03, "smax": 400, "c": 0.75},
    "agem": {"lr": 0.1, "memory": 500, "replay": 64},
    "er": {"lr": 0.1, "memory": 500, "replay": 64},
    "gpm": GPM,
    "trgp": TRGP,
    "cuber": CUBER,
    "finetune": BATCH,
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
    training=Training(epochs=100, lr=0.1, batch_size=64, patience=5, factor=3.0, floor=1e-3),
    settings=PAPER,
    datasets=("miniimagenet",),
    protocols={
        "code": Protocol(),
        "paper": Protocol(training={"patience": 6, "factor": 2.0, "floor": 1e-5}, settings=GROWING),
    },
)
