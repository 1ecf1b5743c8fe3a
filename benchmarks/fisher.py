"""How much faster is the Fisher of EWC than a loop over the samples? Both in one run, in turns; medians.

    python -m benchmarks.fisher

Both compute the same numbers, which is checked. The loop is plain autograd: a forward and a backward pass for every
sample, and the squares of the gradients added up.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.subjects import alexnet, perceptron
from benchmarks.timing import seconds
from cuber.core.fisher import fisher_diagonal

ROWS: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], int, int]] = [
    ("MLP 784-100-100-10", perceptron, (784,), 1000, 64),
    ("MLP 784-100-100-10", perceptron, (784,), 1000, 250),
    ("AlexNet5", alexnet, (3, 32, 32), 100, 50),
]
"""Network, inputs, samples, and how many of them in a batch."""


def loop(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The same Fisher, one sample at a time."""
    model.eval()
    held = {name: p for name, p in model.named_parameters() if not name.startswith("heads.")}
    totals = {name: torch.zeros_like(p) for name, p in held.items()}
    for sample in range(len(y)):
        loss = functional.cross_entropy(model(x[sample : sample + 1]), y[sample : sample + 1])
        for name, gradient in zip(held, torch.autograd.grad(loss, list(held.values())), strict=True):
            totals[name] += gradient.square()
    return {name: total / len(y) for name, total in totals.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{'':22}{'samples':>8}{'in batches of':>15}{'loop':>12}{'ours':>12}{'ratio':>8}")
    for name, build, shape, samples, batch_size in ROWS:
        torch.manual_seed(0)
        model, x, y = build(), torch.randn(samples, *shape), torch.randint(10, (samples,))
        batches = list(zip(x.split(batch_size), y.split(batch_size), strict=True))

        def ours(model: nn.Module = model, batches: list[tuple[Tensor, Tensor]] = batches) -> dict[str, Tensor]:
            return fisher_diagonal(model, lambda batch: functional.cross_entropy(model(batch[0]), batch[1]), batches)

        fast, slow = ours(), loop(model, x, y)
        assert all((fast[key] - slow[key]).norm() <= 1e-3 * slow[key].norm() for key in slow)
        turns = [(seconds(lambda: loop(model, x, y)), seconds(ours)) for _ in range(options.repeats)]  # noqa: B023
        slowly, fastly = (1e3 * statistics.median(turn[way] for turn in turns) for way in (0, 1))
        ratio = statistics.median(turn[0] / turn[1] for turn in turns)
        print(f"{name:22}{samples:8}{batch_size:15}{slowly:9.1f} ms{fastly:9.1f} ms{ratio:8.1f}", flush=True)


if __name__ == "__main__":
    main()
