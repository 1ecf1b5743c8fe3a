"""Are changes of task noticed in streams without boundaries, and is nothing else?

python benchmarks/boundaries.py laws [--runs 500]
    How often a stationary stream of scores raises an alarm, by the law of the scores: our test, and CUSUM.
python benchmarks/boundaries.py changes|returns|long BENCHMARK... [--seeds 0-9]
    Detection alone, without training. returns: tasks A B A C B. long: one task, ten times as long.
python benchmarks/boundaries.py accuracy BENCHMARK... [--seeds 0-9] [--epochs 2] [--method cuber] [--test-per-task 300]
    ACC with boundaries told and detected.

The paper's benchmarks use 2,000 training images per task and at most five tasks; CUBER_DATA names their directory.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import cuber
from cuber import Boundaries, Stream
from cuber.experiments import Experiment, run
from cuber.experiments.grid import numbers
from cuber.experiments.presets import BENCHMARKS
from cuber.streams.unmarked import UnmarkedStream
from cuber.subspace import Calibration, TwoSidedTest

EPOCHS = 5
"""Passes over each task's samples."""
BATCHES, SIZE, ALARMS = 400, 10, 0.05
"""Of the streams of scores: batches, scores in a batch, and the rate of false alarms that is wanted."""
LAWS: dict[str, Callable[[torch.Generator, int], Tensor]] = {
    "normal": lambda random, count: torch.randn(count, generator=random),
    "log-normal": lambda random, count: torch.randn(count, generator=random).exp(),
    "Cauchy": lambda random, count: torch.empty(count).cauchy_(generator=random),
    "two values": lambda random, count: (torch.rand(count, generator=random) < 0.05).float(),
}


def stream_of(name: str, seed: int) -> Stream:
    return Experiment(name, seed=seed, **sizes(name)).stream()


def sizes(name: str) -> dict[str, int]:
    return {} if name.endswith("digits") else {"tasks": 5, "train_per_task": 2000}


def detect(name: str, stream: Stream, epochs: int, seed: int) -> tuple[list[int], list[tuple[int, str, int]], int]:
    """Return the first batches after changes, what was noticed when, and the number of batches."""
    torch.manual_seed(seed)
    batch_size = BENCHMARKS[name].training.batch_size
    unmarked = UnmarkedStream(stream, batch_size, epochs, seed)
    boundaries = Boundaries(cuber.FineTune(BENCHMARKS[name].network(stream)))
    found = []
    for number, batch in enumerate(unmarked.batches()):
        seen = boundaries.observe(batch)
        if seen.kind != "same":
            found.append((number, seen.kind, seen.task))
    return unmarked.changes, found, len(unmarked)


def changes(name: str, seeds: list[int]) -> None:
    """Streams of different tasks."""
    _detect_all(name, seeds, lambda stream: stream, EPOCHS)


def returns(name: str, seeds: list[int]) -> None:
    """Two tasks that come back."""

    def order(stream: Stream) -> Stream:
        a, b, c, *_ = stream.tasks
        return Stream(stream.name, [a, b, a, c, b], shared_head=stream.shared_head)

    _detect_all(name, seeds, order, EPOCHS, expected=[1, 0, 2, 1])


def long(name: str, seeds: list[int]) -> None:
    """The first task alone, with ten times as many passes."""
    _detect_all(name, seeds, lambda stream: stream.first(1), 10 * EPOCHS)


def _detect_all(
    name: str, seeds: list[int], order: Callable[[Stream], Stream], epochs: int, expected: list[int] | None = None
) -> None:
    found_in_all, of, false, drifts, latest, wrong, length = 0, 0, 0, 0, 0, 0, 0
    for seed in seeds:
        true, found, length = detect(name, order(stream_of(name, seed)), epochs, seed)
        ends = [*true[1:], length]
        alarms = [(number, task) for number, kind, task in found if kind != "drift"]
        within = [
            [(number - change, task) for number, task in alarms if change <= number < end]
            for change, end in zip(true, ends, strict=False)
        ]
        noticed = [each[0] for each in within if each]
        latest = max([latest, *(delay + 1 for delay, _ in noticed)])
        found_in_all, of, drifts = found_in_all + len(noticed), of + len(true), drifts + len(found) - len(alarms)
        false += len(alarms) - len(noticed)
        tasks = expected or list(range(1, len(true) + 1))
        wrong += sum(not each or each[0][1] != task for each, task in zip(within, tasks, strict=True))
    print(
        f"{name}: {len(seeds)} seeds of {length} batches: {found_in_all} of {of} changes noticed, the latest in batch "
        f"{latest}; {false} false alarms, {drifts} drifts; {of - wrong} of {of} tasks numbered as expected",
        flush=True,
    )


def accuracy(name: str, seeds: list[int], method: str, epochs: int, test: int | None) -> None:
    """ACC with boundaries told and detected; the batches are the same."""
    rows = []
    for seed in seeds:
        common = {"seed": seed, "epochs": epochs, "patience": 0, "test_per_task": test, **sizes(name)}
        told = run(Experiment(name, method, **common))
        found = run(Experiment(name, method, **common, boundaries="detect"))
        rows.append((told.acc, found.acc))
        print(f"{name} {method} seed {seed}: told {told.acc:.2f}, detected {found.acc:.2f}", flush=True)
    differences = [found - told for told, found in rows]
    print(
        f"{name} {method}: {len(rows)} seeds, {epochs} epochs: told {statistics.mean(told for told, _ in rows):.2f}, "
        f"detected {statistics.mean(found for _, found in rows):.2f}, differences {min(differences):+.2f} to "
        f"{max(differences):+.2f}",
        flush=True,
    )


def laws(runs: int) -> None:
    """Alarms in stationary streams of scores; CUSUM has the threshold that gives it the same rate for normal scores."""
    thresholds = sorted((max(_cusum(LAWS["normal"], seed)) for seed in range(runs)), reverse=True)
    threshold = thresholds[round(ALARMS * runs)]
    for law, draw in LAWS.items():
        ours = sum(max(_martingale(draw, seed)) >= -math.log(ALARMS) for seed in range(runs, 2 * runs))
        cusum = sum(max(_cusum(draw, seed)) > threshold for seed in range(runs, 2 * runs))
        rates = f"alarms in {ours / runs:.1%} of {runs} streams, CUSUM in {cusum / runs:.1%}"
        print(f"{law}: {rates} ({ALARMS:.0%} wanted)")


def _martingale(draw: Callable[[torch.Generator, int], Tensor], seed: int) -> Iterator[float]:
    random = torch.Generator().manual_seed(seed)
    calibration, test = Calibration.around(draw(random, 200)), TwoSidedTest()
    for _ in range(BATCHES):
        bins = calibration.bins(draw(random, SIZE))
        ties = torch.rand(SIZE, dtype=torch.float64, generator=random)
        test.add(calibration.p_values(bins, ties, add=True))
        yield test.log_evidence


def _cusum(draw: Callable[[torch.Generator, int], Tensor], seed: int) -> Iterator[float]:
    """CUSUM for a rise of the mean by one standard deviation, both from the first 200 scores."""
    random = torch.Generator().manual_seed(seed)
    first, largest = draw(random, 200), 0.0
    for _ in range(BATCHES):
        scores = (draw(random, SIZE) - first.mean()) / first.std().clamp_min(1e-6)
        largest = max(0.0, largest + float((scores - 0.5).sum()))
        yield largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("laws", "changes", "returns", "long", "accuracy"))
    parser.add_argument("benchmarks", nargs="*", metavar="BENCHMARK")
    parser.add_argument("--seeds", type=numbers, default=list(range(10)))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--method", default="cuber")
    parser.add_argument("--test-per-task", type=int, help="test samples per task, at most (default: all)")
    parser.add_argument("--runs", type=int, default=500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "laws":
        laws(options.runs)
    for name in options.benchmarks:
        if options.what == "accuracy":
            accuracy(name, options.seeds, options.method, options.epochs, options.test_per_task)
        elif options.what != "laws":
            {"changes": changes, "returns": returns, "long": long}[options.what](name, options.seeds)


if __name__ == "__main__":
    main()
