"""How often the task of a test sample is inferred rightly, how well the probabilities are calibrated, and rivals.

    python -m benchmarks.inference permuted-digits split-digits overlap-digits --seeds 0 1 2 3 4
    python -m benchmarks.inference five-datasets --data-dir DIR --train 2000 --test 500 --untrained
    python -m benchmarks.inference none --data-dir DIR

Prints a line for each benchmark and seed, and the mean and standard deviation over several seeds. "none" learns MNIST
and shows the learner Fashion-MNIST, all of whose images should be taken for samples of none. With --untrained, a
network of one layer takes the place of the benchmark's and is not trained: tasks are inferred from the inputs of the
first layer, which are the same. There are no accuracies then, and no confidence of heads.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict

import numpy as np
import torch
from torch import Tensor, nn

import cuber
from cuber.core.inference import InferredTasks
from cuber.core.learner import Method
from cuber.datasets import load
from cuber.experiments.experiment import Experiment
from cuber.layers import evaluation_mode
from cuber.networks import MLP
from cuber.streams import FixedLoader, Split, Stream, Task
from cuber.streams.splits import ImageSplit, Transform

BINS, AT_ONCE = 10, 250
FALSE_ALARMS = 0.01


def samples(split: Split) -> tuple[Tensor, Tensor]:
    """All samples of a split."""
    x, y = zip(*FixedLoader(split, AT_ONCE), strict=True)
    return torch.cat(x), torch.cat(y)


def calibration_error(probability: Tensor, right: Tensor) -> float:
    """The expected calibration error in points, over bins of equal width."""
    bins = (probability * BINS).long().clamp(max=BINS - 1)
    chosen = [bins == i for i in range(BINS) if bool((bins == i).any())]
    gaps = [abs(float((probability[own] - right[own].to(probability)).sum())) for own in chosen]
    return 100 * sum(gaps) / len(right)


@torch.no_grad()
def by_confidence(learner: Method, x: Tensor) -> Tensor:
    """The task whose head is most confident, n."""
    confidence = []
    for task in range(learner.tasks):
        with learner.as_task(task) as model, evaluation_mode(model):
            confidence.append(torch.cat([model(part).softmax(1).amax(1) for part in x.split(AT_ONCE)]))
    return torch.stack(confidence, 1).argmax(1)


def class_means(stream: Stream) -> list[Tensor]:
    """Task -> the mean training image of each of its classes."""
    means = []
    for task in stream:
        x, y = samples(task.train)
        means.append(torch.stack([x[y == label].flatten(1).mean(0) for label in y.unique()]))
    return means


def by_class_means(means: list[Tensor], x: Tensor) -> Tensor:
    """The task of the nearest class mean, n."""
    return torch.stack([torch.cdist(x.flatten(1), own).amin(1) for own in means], 1).argmin(1)


def infer(learner: Method, x: Tensor) -> InferredTasks:
    """What ``infer_task`` returns, batch by batch."""
    parts = [learner.infer_task(part, false_alarms=FALSE_ALARMS) for part in x.split(AT_ONCE)]
    return InferredTasks(*map(torch.cat, zip(*parts, strict=True)))


def untrained(stream: Stream, seed: int) -> Method:
    """A learner of a network of one layer that has seen the tasks of a stream, and was not trained."""
    shape, classes = samples(stream[0].test)[0].shape[1:], max(task.classes for task in stream)
    if len(shape) == 1:
        network: nn.Module = nn.Linear(shape[0], classes)
    else:
        network = nn.Sequential(nn.Conv2d(shape[0], classes, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    learner = cuber.GPM(network)
    for task in stream:
        loader = FixedLoader(task.train, AT_ONCE, seed)
        learner.begin_task(loader, nn.functional.cross_entropy)
        learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.0))
        learner.end_task(loader)
    return learner


def trained(experiment: Experiment, stream: Stream) -> tuple[Method, dict[str, float]]:
    """The learner of a benchmark after its last task, and its accuracies."""
    torch.manual_seed(experiment.seed)
    learner = experiment.method_class(experiment.preset.network(stream), **experiment.method_settings())
    result = cuber.learn(learner, stream, seed=experiment.seed, **asdict(experiment.training()))
    return learner, {"ACC told": result.acc, "ACC inferred": result.to_dict()["acc_inferred"]}


def measure(experiment: Experiment, train: bool = True) -> dict[str, float]:
    """Learn a benchmark, and compare ways to find the task of its test samples; all figures in percent."""
    stream = experiment.stream()
    learner, accuracies = trained(experiment, stream) if train else (untrained(stream, experiment.seed), {})
    means = class_means(stream)
    right, probability, none, confident, nearest = [], [], [], [], []
    for task, each in enumerate(stream):
        x, _ = samples(each.test)
        inferred = infer(learner, x)
        right.append(inferred.probabilities.argmax(1) == task)
        probability.append(inferred.probability)
        none.append(inferred.task < 0)
        if train:
            confident.append(by_confidence(learner, x) == task)
        nearest.append(by_class_means(means, x) == task)

    def percent(parts: list[Tensor]) -> float:
        return 100 * float(torch.cat(parts).double().mean())

    return {
        "right": percent(right),
        "chance": 100 / len(stream),
        **({"by confidence": percent(confident)} if train else {}),
        "by class means": percent(nearest),
        "calibration error": calibration_error(torch.cat(probability), torch.cat(right)),
        "none, own": percent(none),
        **accuracies,
        "kB per task": learner.memory_bytes()["densities"] / 1000 / len(stream),
    }


def measure_none(data_dir: str | None, seed: int) -> dict[str, float]:
    """Learn one task, MNIST, and show Fashion-MNIST in the same scale; percentages that are taken for none."""
    mnist, fashion = load("mnist", data_dir), load("fashion-mnist", data_dir)
    transform = Transform(mnist.mean, mnist.std, order=torch.arange(mnist.train_images[0].size))

    def split(images: np.ndarray, labels: np.ndarray) -> ImageSplit:
        return ImageSplit(images, torch.arange(len(labels)), torch.from_numpy(labels).long(), transform)

    train, test = (
        split(*both) for both in ((mnist.train_images, mnist.train_labels), (mnist.test_images, mnist.test_labels))
    )
    stream = Stream("mnist", [Task("mnist", train, test, classes=10)]).shrink(2000, None, seed)
    torch.manual_seed(seed)
    learner = cuber.TRGP(MLP(784, 100, 100, 10))
    cuber.learn(learner, stream, seed=seed, epochs=1, lr=0.01, batch_size=10)
    other = split(fashion.test_images, fashion.test_labels)
    shown = {"none, own": test, "none, unseen": other}
    return {
        what: 100 * float((infer(learner, samples(each)[0]).task < 0).double().mean()) for what, each in shown.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="+")
    parser.add_argument("--method", default="trgp")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data-dir")
    parser.add_argument("--tasks", type=int)
    parser.add_argument("--train", type=int, help="training samples per task")
    parser.add_argument("--test", type=int, help="test samples per task")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--untrained", action="store_true", help="infer tasks only, by a network of one layer")
    given = parser.parse_args()
    for name in given.benchmarks:
        found = []
        for seed in given.seeds:
            found.append(measure_none(given.data_dir, seed) if name == "none" else of_benchmark(name, seed, given))
            show(f"{name}, seed {seed}", found[-1])
        if len(found) > 1:
            columns = {figure: [each[figure] for each in found] for figure in found[0]}
            show(f"{name}, mean", {figure: statistics.mean(values) for figure, values in columns.items()})
            show(f"{name}, deviation", {figure: statistics.stdev(values) for figure, values in columns.items()})


def of_benchmark(name: str, seed: int, given: argparse.Namespace) -> dict[str, float]:
    """The figures of one run."""
    experiment = Experiment(
        name,
        given.method,
        seed,
        tasks=given.tasks,
        train_per_task=given.train,
        test_per_task=given.test,
        epochs=given.epochs,
        data_dir=given.data_dir,
    )
    return measure(experiment, not given.untrained)


def show(what: str, figures: dict[str, float]) -> None:
    print(f"{what}: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()), flush=True)


if __name__ == "__main__":
    main()
