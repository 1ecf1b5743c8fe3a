"""What tells the task of a sample: the inputs of the first layer, the features before the heads, or their outputs?

    CUBER_DATA=... python -m benchmarks.evidence overlap-cifar100 --epochs 25 --runs DIR [--split validation]

Reads finished runs of ``cuber grid --out DIR``; the network needs a head per task. Prints how many samples are
attributed to their task, and the accuracy (ACC) if they are answered for that task, both in percent. All but the first
row need a forward pass for each task:

- density: what ``infer_task`` uses;
- confidence: the largest probability of each head;
- energy: the log of the sum of the exponentials of each head's outputs, standardized over the samples for each task;
- distance: of the features to the nearest class mean of each task, with one covariance per task (a normal density with
  100 principal directions), standardized as well; needs training data of all tasks;
- density and energy: the sum of the logs of the first and of the third row.

Batches have samples of one task each, or of all tasks. That makes a difference where a network normalizes each batch by
its own statistics.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from benchmarks.headroom import Trained, known_runs, train
from cuber.core.learner import Method
from cuber.errors import CuberError
from cuber.experiments.grid import grid
from cuber.layers import evaluation_mode
from cuber.networks import MultiHead
from cuber.streams import FixedLoader, Split

BATCH, DIRECTIONS, FITTED = 250, 100, 2500


def samples(split: Split, most: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the samples of a split, in a shuffled order."""
    x, y = (torch.cat(parts) for parts in zip(*FixedLoader(split, BATCH, seed=1), strict=True))
    return x[:most], y[:most]


@torch.no_grad()
def features(learner: Method, x: Tensor, task: int) -> tuple[Tensor, Tensor]:
    """Return what the head of a task gets and what it answers, batch by batch."""
    assert isinstance(learner.model, MultiHead)
    with learner.as_task(task) as model, evaluation_mode(model):
        seen = torch.cat([model.backbone(part) for part in x.split(BATCH)])
        return seen, model.heads[task](seen)


class ClassMeans:
    """Normal densities of the features of a task's classes, with one covariance."""

    def __init__(self, learner: Method, split: Split, task: int) -> None:
        x, y = samples(split, FITTED)
        seen, _ = features(learner, x, task)
        self.means = torch.stack([seen[y == label].mean(0) for label in y.unique()])
        rest = seen - self.means[y]
        _, values, self.directions = torch.pca_lowrank(rest, DIRECTIONS, center=False)
        self.variances = values.square() / len(rest)
        total = rest.square().sum() / len(rest)
        self.remaining = (total - self.variances.sum()) / (seen.shape[1] - DIRECTIONS)

    def nearness(self, seen: Tensor) -> Tensor:
        """Return minus the squared distance to the nearest mean, n."""
        distances = []
        for mean in self.means:
            along = (seen - mean) @ self.directions
            across = (seen - mean).square().sum(1) - along.square().sum(1)
            distances.append((along.square() / self.variances).sum(1) + across / self.remaining)
        return -torch.stack(distances).amin(0)


def standardized(scores: Tensor) -> Tensor:
    """Return scores with mean 0 and deviation 1 in each column."""
    return (scores - scores.mean(0)) / scores.std(0)


def measure(done: Trained, split: str, mixed: bool) -> dict[str, tuple[float, float]]:
    """Return kind of evidence -> share of right tasks, and ACC; percent."""
    learner, stream = done.learner, done.stream
    parts = [samples(getattr(task, split)) for task in stream]
    x, y = (torch.cat(of_tasks) for of_tasks in zip(*parts, strict=True))
    truth = torch.cat([torch.full((len(labels),), task) for task, (_, labels) in enumerate(parts)])
    if mixed:
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        x, y, truth = x[order], y[order], truth[order]
    density = torch.cat([learner.infer_task(part).probabilities for part in x.split(BATCH)]).log()
    outputs, distances = [], []
    for task, each in enumerate(stream):
        seen, output = features(learner, x, task)
        outputs.append(output)
        distances.append(ClassMeans(learner, each.train, task).nearness(seen))
    logits = torch.stack(outputs, 1)  # n x tasks x classes
    energy = standardized(logits.logsumexp(2))
    evidence = {
        "density": density,
        "confidence": logits.log_softmax(2).amax(2),
        "energy": energy,
        "distance": standardized(torch.stack(distances, 1)),
        "density and energy": density + energy,
    }
    answers = logits.argmax(2)
    found = {}
    for kind, scores in evidence.items():
        task = scores.argmax(1)
        right = task == truth
        correct = right & (answers.gather(1, task[:, None])[:, 0] == y)
        found[kind] = (100 * float(right.double().mean()), 100 * float(correct.double().mean()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark")
    parser.add_argument("--runs", required=True, help="directory of finished runs, as `cuber grid` makes it")
    parser.add_argument("--method", default="trgp")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, help="other than the benchmark's")
    parser.add_argument("--split", choices=("validation", "test"), default="test")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    try:
        planned = grid(chosen.runs, [chosen.benchmark], [chosen.method], [chosen.seed], epochs=chosen.epochs, threads=1)
        runs = known_runs(planned, chosen.runs)
        if not runs:
            parser.error(f"{planned[0].directory} is no finished run")
        done = train(*runs[0])
    except CuberError as error:
        parser.error(str(error))
    for mixed in (False, True):
        print("batches of all tasks:" if mixed else "batches of one task each:")
        for kind, (right, accuracy) in measure(done, chosen.split, mixed).items():
            print(f"  {kind:20} {right:5.1f} {accuracy:5.1f}", flush=True)


if __name__ == "__main__":
    main()
