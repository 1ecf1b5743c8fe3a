"""Choose a learning rate and one coefficient of each method on validation data, with the same budget for every method.

    CUBER_DATA=... python -m benchmarks.tune permuted-mnist --methods agem,er,ewc,owm --jobs 2

Every method gets 4 learning rates times 3 values of its coefficient (12 learning rates if it has none), one seed that
no result uses, a third of the training samples and the first 5 tasks. The mean accuracy after the last task is
measured on the validation split; no accuracy on test images is computed. Prints all of them, and the best as settings
for ``cuber.experiments.presets``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from concurrent.futures import ProcessPoolExecutor

import torch

from cuber.errors import CuberError
from cuber.experiments import Experiment
from cuber.methods import find_method
from cuber.streams import Stream, Task
from cuber.training import learn

SEED = 100
TASKS = 5
FACTORS = (0.1, 1.0, 10.0)
RATES = (0.1, 0.3, 1.0, 3.0)
"""Times the learning rate that the benchmark has for the method."""
MORE_RATES = tuple(2.0**power for power in range(-8, 4))
COEFFICIENTS = {"ewc": "lam", "owm": "alpha", "cuber": "lam", "hat": "c", "er": "share", "trgp": "eps1"}
CHOICES = {"share": (0.25, 0.5, 0.75), "eps1": (0.3, 0.5, 0.7)}
"""Values of coefficients between 0 and 1; the others are tried at multiples of the benchmark's."""


def candidates(benchmark: str, method: str) -> list[Experiment]:
    """Return the experiments to choose from."""
    usual = Experiment(benchmark, method, SEED, tasks=TASKS, threads=1)
    train = max(len(task.train) for task in usual.stream())
    usual = dataclasses.replace(usual, train_per_task=train // 3)
    name, rate = COEFFICIENTS.get(method), usual.training().lr
    if name is None:
        return [dataclasses.replace(usual, lr=rate * factor) for factor in MORE_RATES]
    present = usual.method_settings().get(name, getattr(usual.method_class, name))
    values = CHOICES.get(name) or [present * factor for factor in FACTORS]
    return [
        dataclasses.replace(usual, settings={name: value}, lr=rate * factor)
        for factor, value in itertools.product(RATES, values)
    ]


def accuracy(experiment: Experiment) -> float:
    """Return the mean accuracy on the validation splits of all tasks after the last one; NaN where it diverged."""
    torch.set_num_threads(1)
    stream = experiment.stream()
    tasks = [Task(task.name, task.train, task.validation, task.validation, classes=task.classes) for task in stream]
    judged = Stream(stream.name, tasks, shared_head=stream.shared_head)
    learner = experiment.learner(judged)
    try:
        return learn(learner, judged, seed=experiment.seed, **dataclasses.asdict(experiment.training())).acc
    except CuberError:
        return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", help="see cuber list")
    parser.add_argument("--methods", required=True, help="separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs takes a number of at least 1")
    try:
        Experiment(options.benchmark).stream()
        for method in options.methods.split(","):
            find_method(method)
    except CuberError as error:
        parser.error(str(error))
    with ProcessPoolExecutor(options.jobs) as pool:
        for method in options.methods.split(","):
            tried = candidates(options.benchmark, method)
            found = list(pool.map(accuracy, tried))
            for experiment, acc in zip(tried, found, strict=True):
                print(
                    f"{method:10} lr {experiment.training().lr:.4g} {dict(experiment.settings)}: {acc:.2f}", flush=True
                )
            best, acc = max(zip(tried, found, strict=True), key=lambda pair: pair[1] if pair[1] == pair[1] else -1)
            chosen = {"lr": float(f"{best.training().lr:.4g}"), **best.settings}
            print(f'    "{method}": {chosen},  # validation accuracy {acc:.2f}', flush=True)


if __name__ == "__main__":
    main()
