"""What a step of SoftCUBER costs beside one of GPM, and what makes the difference.

    OMP_NUM_THREADS=1 python -m benchmarks.soft_cuber_steps

The networks of ``benchmarks.subjects`` in the middle of their last task, in turns. Processor time is measured, which
other programs on the machine change less than time on the clock. The models of old losses are random: what matters is
that they hold back nine tenths of all directions.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.subjects import ALEXNET_SUBJECT, METHODS, MLP_SUBJECT, Subject, plain
from cuber import SoftCUBER
from cuber.subspace import QuadraticModel

ROWS = {
    "SoftCUBER": {},
    "  every=50": {"every": 50},
    "  without scalings": {"selected": 0},
    "  both": {"every": 50, "selected": 0},
}
TURNS = 5
HELD_BACK = 0.9
SUBJECTS = [MLP_SUBJECT, dataclasses.replace(ALEXNET_SUBJECT, steps=10)]  # a turn has whole intervals of ``every=10``


def soft_cuber(subject: Subject, **settings: float) -> Callable[[], None]:
    """Return the steps of SoftCUBER in the middle of the last task."""
    METHODS["SoftCUBER"] = SoftCUBER, {"eps1": 0.0, **settings}
    learner = subject.learner("SoftCUBER")
    assert isinstance(learner, SoftCUBER)
    for name, layer in learner.layers.items():
        rank = max(1, round(HELD_BACK * layer.dimension))
        directions = torch.linalg.qr(torch.randn(layer.dimension, rank)).Q.contiguous()
        gradient = 1e-3 * torch.randn(layer.outputs, layer.dimension)
        learner.models[name] = QuadraticModel(gradient, directions, torch.logspace(-1.5, 1.5, rank))
    return subject.steps_of(learner, plain)


def processor_seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    torch.set_num_threads(1)
    for subject in SUBJECTS:
        torch.manual_seed(0)
        works = {"GPM": subject.ours("GPM"), "TRGP": subject.ours("TRGP")}
        works |= {name: soft_cuber(subject, **settings) for name, settings in ROWS.items()}
        for work in works.values():
            work()
        taken = [{name: processor_seconds(work) for name, work in works.items()} for _ in range(TURNS)]
        for name in works:
            ratio = statistics.median(turn[name] / turn["GPM"] for turn in taken)
            print(f"{subject.name}, {name}: {ratio:.2f} x GPM", flush=True)


if __name__ == "__main__":
    main()
