"""Forgetting of a small vision transformer with AdamW. The table of docs/transformers.md.

    python -m benchmarks.vit [--methods GPM,CUBER] [--seeds 0-4] [--set threshold=0.99 ...]

Five tasks of two digits each (scikit-learn's digits, 8 x 8; the order of the digits is the seed's), 20 epochs of AdamW
each, one head per task. A row has the final accuracy, the backward transfer, and the accuracy of each task when it was
learned. ``time`` is that of all steps, relative to FineTune's.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from sklearn.datasets import load_digits
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import cuber
from benchmarks.class_token import DIGITS, ClassToken
from benchmarks.common import standard_error
from cuber.core.settings import parse_settings, read_value
from cuber.errors import CuberError
from cuber.experiments.grid import numbers

EPOCHS, FEATURES = 20, 32
METHODS = "FineTune,GPM,TRGP,CUBER,SoftCUBER"


def tasks_of(seed: int) -> list[tuple[TensorDataset, TensorDataset]]:
    """Return training and test data of five tasks."""
    digits = load_digits()
    images, labels = torch.tensor(digits.images).float().unsqueeze(1) / 16, torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    images, labels = images[order], labels[order]
    tasks = []
    for first, second in torch.randperm(10, generator=generator).view(5, 2).tolist():
        chosen = (labels == first) | (labels == second)
        x, y = images[chosen], (labels[chosen] == second).long()
        count = int(0.7 * len(y))
        tasks.append((TensorDataset(x[:count], y[:count]), TensorDataset(x[count:], y[count:])))
    return tasks


def learn(kind: type[cuber.Method], seed: int, settings: dict[str, object]) -> tuple[float, float, float, float]:
    """Return final accuracy, backward transfer, accuracy when learned, and the seconds of all steps."""
    torch.manual_seed(seed)
    tasks = tasks_of(seed)
    model = cuber.MultiHead(ClassToken(FEATURES, **DIGITS), FEATURES, [2] * len(tasks))
    learner = kind(model, **settings)
    accuracy, seconds = torch.zeros(len(tasks), len(tasks)), 0.0
    for number, (train, _) in enumerate(tasks):
        loader = DataLoader(train, 32, shuffle=True, generator=torch.Generator().manual_seed(10 * seed + number))
        learner.begin_task(loader, functional.cross_entropy)
        optimizer = learner.wrap(torch.optim.AdamW(learner.parameters(), lr=1e-3))
        model.train()
        began = time.perf_counter()
        for _ in range(EPOCHS):
            for x, y in loader:
                optimizer.zero_grad()
                functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            learner.end_epoch()
        seconds += time.perf_counter() - began
        learner.end_task(loader)
        model.eval()
        for old in range(number + 1):
            x, y = tasks[old][1].tensors
            with torch.no_grad(), learner.as_task(old):
                accuracy[number, old] = 100 * (model(x).argmax(1) == y).float().mean()
    learned = accuracy.diagonal()
    return float(accuracy[-1].mean()), float((accuracy[-1] - learned)[:-1].mean()), float(learned.mean()), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--seeds", default="0-4", help="as in 0-4 or 0,2,5")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the methods, but FineTune's")
    arguments = parser.parse_args()
    try:
        seeds = numbers(arguments.seeds)
    except CuberError as error:
        parser.error(str(error))
    settings = {name: read_value(text) for name, text in parse_settings(arguments.set).items()}
    torch.set_num_threads(1)
    plain = None
    print("| method | ACC | BWT | when learned | time |\n|---|---|---|---|---|")
    for name in arguments.methods.split(","):
        kind = getattr(cuber, name)
        used = {} if kind is cuber.FineTune else settings
        rows = [learn(kind, seed, used) for seed in seeds]
        final, transfer, learned, seconds = zip(*rows, strict=True)
        plain = sum(seconds) if kind is cuber.FineTune else plain
        means = f"{statistics.mean(final):.1f} | {statistics.mean(transfer):+.1f} ± {standard_error(transfer):.1f}"
        relative = "" if plain is None else f"{sum(seconds) / plain:.2f}"
        print(f"| {name} | {means} | {statistics.mean(learned):.1f} | {relative} |", flush=True)


if __name__ == "__main__":
    main()
