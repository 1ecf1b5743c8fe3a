"""How much could old tasks still gain? Measured with old data, which no method has: for diagnosis only.

    python -m benchmarks.headroom overlap-digits --epochs 80 --seeds 200-203
    CUBER_DATA=... python -m benchmarks.headroom overlap-fashion --options train_per_class=100
    CUBER_DATA=... python -m benchmarks.headroom overlap-cifar100 --epochs 25 --seeds 0 --runs DIR

After the last task, for each old task and apart from the others:

- weights: each layer's weight is the best mixture of the one at which the task was learned and the present one, by
  the loss on the task's validation data;
- head: its head is fitted again to the present features of its training data, held near the present head as strongly
  as its validation loss wants;
- head, later data too: the same, with the training data of its classes in later tasks as well.

Joint training is the last row, with as many epochs times the number of tasks, because a task has only its share of
each batch there. BWT compares with the accuracy when the task was learned, that of joint training with what the first
method had then.

With --runs, the finished runs that `cuber grid --out DIR` has left are read, and nothing is trained. They have no
weights of the time between, so there is no row for them, and joint training is the run of multitask as it is.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.common import keyword, standard_error
from cuber.core.learner import Method
from cuber.errors import CuberError
from cuber.experiments import Experiment
from cuber.experiments.grid import Cell, grid, numbers
from cuber.experiments.results import FINISHED, load
from cuber.layers import evaluation_mode
from cuber.networks import MultiHead
from cuber.streams import FixedLoader, Split, Stream
from cuber.streams.paper_streams import OVERLAPPING
from cuber.training import ProgressEvent, evaluate, learn

STARTS: dict[str, Sequence[int]] = {
    "overlap-digits": range(0, 10, 2),
    "overlap-fashion": range(0, 10, 2),
    "overlap-cifar100": OVERLAPPING,
    "split-cifar100": range(0, 100, 10),
}
"""Class of label 0 in each task; the other labels count on from it."""
CLASSES = {"overlap-digits": 10, "overlap-fashion": 10}
"""Number of classes, where the last tasks begin again with the first ones."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the present weight in a mixture."""
ROUNDS = 2
"""How often the share of each layer is chosen anew, given those of the others."""
HOLDS = (1.0, 0.1, 0.01, 0.001)
"""Weights of the squared distance between a new head and the present one."""
BATCH = 256


class OldTask:
    """A task that was learned before the last one, and the network as it is now."""

    def __init__(self, learner: Method, stream: Stream, number: int, learned: dict[str, Tensor]) -> None:
        self.learner, self.stream, self.number, self.learned = learner, stream, number, learned
        self.task = stream[number]

    def _score(self, split: Split) -> tuple[float, float]:
        """Return accuracy and loss."""
        with self.learner.as_task(self.number) as model:
            score = evaluate(model, split, BATCH, functional.cross_entropy)
        return score.accuracy, score.loss

    def with_mixed_weights(self) -> float:
        """Return the accuracy with the best mixture of old and present weights in each layer."""
        layers = self.learner.layers
        present = {name: layers[name].matrix().detach().clone() for name in self.learned}

        def score(shares: dict[str, float], split: Split) -> tuple[float, float]:
            for name, old in self.learned.items():
                layers[name].set_matrix(torch.lerp(old, present[name], shares[name]))
            return self._score(split)

        best = dict.fromkeys(present, 1.0)
        for name in list(best) * ROUNDS:
            choices = [{**best, name: share} for share in SHARES]
            best = min(choices, key=lambda shares: score(shares, self.task.validation)[1])
        accuracy, _ = score(best, self.task.test)
        score(dict.fromkeys(best, 1.0), self.task.validation)  # put the present weights back
        return accuracy

    def with_new_head(self, classes: list[list[int]] | None = None) -> float:
        """Return the accuracy with the head fitted again.

        Args:
            classes: of all tasks, by label, to fit it to the data of its classes in later tasks too.
        """
        x, y = self.features(self.task.train)
        for later in range(self.number + 1, len(self.stream)) if classes else ():
            more, labels = self.features(self.stream[later].train)
            own = {number: label for label, number in enumerate(classes[self.number])}
            labels = torch.tensor([own.get(number, -1) for number in classes[later]])[labels]
            x, y = torch.cat([x, more[labels >= 0]]), torch.cat([y, labels[labels >= 0]])
        head = self.head().detach().clone()
        candidates = [head, *(fit_head(head, x, y, hold) for hold in HOLDS)]
        x, y = self.features(self.task.validation)
        best = min(candidates, key=lambda weight: float(functional.cross_entropy(x @ weight.T, y)))
        x, y = self.features(self.task.test)
        return 100 * float(((x @ best.T).argmax(1) == y).float().mean())

    def head(self) -> Tensor:
        assert isinstance(self.learner.model, MultiHead)
        return self.learner.model.heads[self.number].weight

    @torch.no_grad()
    def features(self, split: Split) -> tuple[Tensor, Tensor]:
        """Return what the task's head gets now for a split, and the labels."""
        with self.learner.as_task(self.number) as model, evaluation_mode(model):
            pairs = [(model.backbone(x), y) for x, y in FixedLoader(split, BATCH)]
        return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def fit_head(head: Tensor, x: Tensor, y: Tensor, hold: float) -> Tensor:
    """Return the head of least mean loss plus ``hold`` times the squared distance to the present one."""
    weight = head.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(x @ weight.T, y) + hold * (weight - head).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    return weight.detach()


def classes_of(stream: Stream) -> list[list[int]]:
    """Return the classes of each task, by label."""
    starts, count = STARTS[stream.name], CLASSES.get(stream.name, 100)
    return [
        [(start + label) % count for label in range(task.classes)] for start, task in zip(starts, stream, strict=False)
    ]


@dataclass
class Trained:
    """A learner after the last task."""

    learner: Method
    stream: Stream
    accuracy: list[list[float]]
    """On the tasks so far, after each one."""
    weights: list[dict[str, Tensor]]
    """Of the protected layers, after each task."""


def train(experiment: Experiment, directory: Path | None = None) -> Trained:
    """Learn all tasks, or restore the finished run in ``directory``."""
    stream = experiment.stream()
    learner = experiment.learner(stream)
    weights: list[dict[str, Tensor]] = []

    def keep(event: ProgressEvent) -> None:
        if event.finished:
            layers = getattr(learner, "layers", {})
            weights.append({name: layer.matrix().detach().clone() for name, layer in layers.items()})

    config = dataclasses.asdict(experiment.training())
    result = learn(
        learner, stream, seed=experiment.seed, progress=keep, directory=directory, about=experiment.about(), **config
    )
    accuracy = [[value for value in row if value is not None] for row in result.accuracy]
    return Trained(learner, stream, accuracy, weights)


def measure(experiment: Experiment, directory: Path | None) -> dict[str, list[float]]:
    """Return what is done with old data -> the accuracy of each task after the last one."""
    done = train(experiment, directory)
    last, classes = done.accuracy[-1], classes_of(done.stream)
    weights = done.weights or [{} for _ in last]
    old = [OldTask(done.learner, done.stream, number, weights[number]) for number in range(len(last) - 1)]
    mixed = {"weights": [*(task.with_mixed_weights() for task in old), last[-1]]} if done.weights else {}
    return {
        "when learned": [row[-1] for row in done.accuracy],
        "nothing": last,
        **mixed,
        "head": [*(task.with_new_head() for task in old), last[-1]],
        "head, later data too": [*(task.with_new_head(classes) for task in old), last[-1]],
    }


def report(row: str, tasks: list[list[float]], learned: list[list[float]]) -> None:
    """Print ACC, and BWT against the accuracies when tasks were learned: mean and standard error over seeds."""
    acc = [statistics.mean(of_seed) for of_seed in tasks]
    bwt = [
        statistics.mean(now - before for now, before in zip(of_seed[:-1], then[:-1], strict=True))
        for of_seed, then in zip(tasks, learned, strict=True)
    ]
    print(
        f"{row:36}" + "".join(f"{statistics.mean(v):+9.2f} ± {standard_error(v):4.2f}" for v in (acc, bwt)), flush=True
    )


def known_runs(planned: list[Cell], runs: str | None) -> list[tuple[Experiment, Path | None]]:
    """Return experiments that are to be run, or those that have been run below ``runs``, with their directories."""
    if runs is None:
        return [(cell.experiment, None) for cell in planned]
    finished = {record.directory for record in load([runs]) if record.state == FINISHED}
    return [(cell.experiment, cell.directory) for cell in planned if cell.directory in finished]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=STARTS)
    parser.add_argument("--methods", nargs="*", default=["soft-cuber", "trgp"])
    parser.add_argument("--seeds", default="200-203", help="as in 0-4 or 0,2,5")
    parser.add_argument("--epochs", type=int, help="other than the benchmark's")
    parser.add_argument("--tasks", type=int, help="only the first ones")
    parser.add_argument(
        "--options", nargs="*", default=[], type=keyword, help="of the stream: train_per_class=100, say"
    )
    parser.add_argument("--runs", help="directory of finished runs, as `cuber grid` makes it")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    shared = {"epochs": chosen.epochs, "tasks": chosen.tasks, "options": dict(chosen.options), "threads": 1}
    first: list[list[float]] = []
    try:
        seeds = numbers(chosen.seeds)
        print(f"{chosen.benchmark}, {chosen.epochs or 'usual'} epochs, seeds {chosen.seeds}; ± is the standard error")
        print(f"{'':36}{'ACC':>16}{'BWT':>16}", flush=True)
        for method in chosen.methods:
            runs = known_runs(grid(chosen.runs or "", [chosen.benchmark], [method], seeds, **shared), chosen.runs)
            if len(runs) < len(seeds):
                parser.error(f"{chosen.runs} has {len(runs)} finished runs of {method} with these options")
            measured = [measure(experiment, directory) for experiment, directory in runs]
            learned = [of_seed["when learned"] for of_seed in measured]
            first = first or learned
            for row in measured[0]:
                report(f"{method}, {row}", [of_seed[row] for of_seed in measured], learned)
        if not chosen.runs:
            shared["epochs"] = len(first[0]) * Experiment(chosen.benchmark, "multitask", **shared).training().epochs
        runs = known_runs(grid(chosen.runs or "", [chosen.benchmark], ["multitask"], seeds, **shared), chosen.runs)
        if len(runs) == len(seeds):
            report("joint training", [train(*run).accuracy[-1] for run in runs], first)
    except CuberError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
