"""Choose a learning rate and one coefficient of each method on validation data, with the same budget for every method.

    CUBER_DATA=... python -m benchmarks.tune permuted-mnist --methods agem,er,ewc --jobs 2

Every method gets six runs: four learning rates, then two other values of its coefficient at the best of them; six
learning rates if it has no coefficient. All tasks, a third of the training samples, one seed that no result uses. The
mean accuracy after the last task is measured on the validation split; no accuracy on test images is computed. Prints
all of them, and the best as settings for ``cuber.experiments.presets``.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from concurrent.futures import ProcessPoolExecutor

import torch

from cuber.errors import CuberError
from cuber.experiments import Experiment
from cuber.streams import Stream, Task
from cuber.training import learn

SEED = 100
RATES = (0.1, 0.3, 1.0, 3.0)
"""Times the learning rate that the benchmark has for the method."""
MORE_RATES = (0.03, 10.0)
"""Where there is no coefficient to choose."""
FACTORS = (0.3, 3.0)
"""Times the coefficient that the benchmark has."""
COEFFICIENTS = {"ewc": "lam", "owm": "alpha", "cuber": "lam", "soft-cuber": "curvature", "hat": "c"}
SHARES = {"er": ("share", (0.25, 0.75)), "trgp": ("eps1", (0.3, 0.7))}
"""Coefficients between 0 and 1, and their values."""


def usual(benchmark: str, method: str) -> Experiment:
    """Return the experiment with the benchmark's own settings, and a third of its data."""
    whole = Experiment(benchmark, method, SEED, threads=1)
    train = max(len(task.train) for task in whole.stream())
    return dataclasses.replace(whole, train_per_task=train // 3)


def with_rates(experiment: Experiment) -> list[Experiment]:
    """Return the experiment with other learning rates."""
    choosable = experiment.method in COEFFICIENTS or experiment.method in SHARES
    factors = RATES if choosable else (*RATES, *MORE_RATES)
    return [dataclasses.replace(experiment, lr=experiment.training().lr * factor) for factor in factors]


def with_coefficients(experiment: Experiment) -> list[Experiment]:
    """Return the experiment with other values of its method's coefficient, if it has one."""
    if experiment.method in SHARES:
        name, values = SHARES[experiment.method]
    elif name := COEFFICIENTS.get(experiment.method, ""):
        present = experiment.method_settings().get(name, getattr(experiment.method_class, name))
        values = tuple(present * factor for factor in FACTORS)
    else:
        return []
    return [dataclasses.replace(experiment, settings={name: value}) for value in values]


def accuracy(experiment: Experiment) -> float:
    """Return the mean accuracy on the validation splits of all tasks after the last one; -inf where it diverged."""
    torch.set_num_threads(1)
    stream = experiment.stream()
    tasks = [Task(task.name, task.train, task.validation, task.validation, classes=task.classes) for task in stream]
    judged = Stream(stream.name, tasks, shared_head=stream.shared_head)
    learner = experiment.learner(judged)
    try:
        return learn(learner, judged, seed=experiment.seed, **dataclasses.asdict(experiment.training())).acc
    except CuberError:
        return -math.inf


def tune(experiment: Experiment, pool: ProcessPoolExecutor) -> None:
    """Print the accuracy of each candidate, and the settings of the best."""
    best, highest = experiment, -math.inf
    for candidates in (with_rates, with_coefficients):
        tried = candidates(best)
        for candidate, acc in zip(tried, pool.map(accuracy, tried), strict=True):
            lr, settings = candidate.training().lr, dict(candidate.settings)
            print(f"{candidate.method:10} lr {lr:.4g} {settings}: {acc:.2f}", flush=True)
            if acc > highest:
                best, highest = candidate, acc
    chosen = {"lr": float(f"{best.training().lr:.4g}"), **best.settings}
    print(f'    "{best.method}": {chosen},  # validation accuracy {highest:.2f}', flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", help="see cuber list")
    parser.add_argument("--methods", required=True, help="separated by commas")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs takes a number of at least 1")
    try:
        experiments = [usual(options.benchmark, method) for method in options.methods.split(",")]
    except CuberError as error:
        parser.error(str(error))
    with ProcessPoolExecutor(options.jobs) as pool:
        for experiment in experiments:
            tune(experiment, pool)


if __name__ == "__main__":
    main()
