"""Bases of wide layers by a sketch: time, memory and the energy that it captures beside the eigenvectors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.timing import Figure, in_a_process
from cuber.subspace import Gram, Sketch

RANK, BATCH = 256, 500
WIDEST, VECTORS = 11_008, 20_000
"""Inputs of the last layer of a Llama-7B block, and vectors: 300 samples of 67 tokens."""


def measure(quick: bool) -> Iterator[Figure]:
    for dimension in (512, 1024) if quick else (1024, 2048, 4096):
        yield from _beside_the_gram_matrix(dimension)
    for power in (0.5, 1.0):
        yield Figure(f"energy beside eigh's, d = 2048, scales i^-{power}", _captured(power), at_least=0.999)
    dimension, count = (4096, 4000) if quick else (WIDEST, VECTORS)
    for threads in (1,) if quick else (1, 2):
        wall, cpu, megabytes = in_a_process(_sketch, dimension, count, threads)
        of = f"sketch, d = {dimension}, {count} vectors, threads {threads}"
        yield Figure(of, wall, "s", at_most=20.0)
        yield Figure(f"{of}, CPU", cpu, "s")
        yield Figure(f"{of}, peak of the process", megabytes, "MB", at_most=600.0)


def _vectors(dimension: int, count: int, power: float = 0.75) -> Iterator[Tensor]:
    """Batches whose scales fall as a power, in random directions, around a mean."""
    generator = torch.Generator().manual_seed(0)
    rank = min(dimension, 1024)
    scales = torch.arange(1, rank + 1) ** -power
    turned = torch.randn(rank, dimension, generator=generator) / dimension**0.5
    mean = 0.01 * torch.randn(dimension, generator=generator)
    for _ in range(count // BATCH):
        yield mean + (torch.randn(BATCH, rank, generator=generator) * scales) @ turned


def _sketch(dimension: int, count: int, threads: int) -> tuple[float, float, float]:
    """Return the time to sketch and to find the basis, without that to make the vectors, and the peak in MB."""
    torch.set_num_threads(threads)
    none = torch.zeros(dimension, 0)
    sketch = Sketch(none, RANK)
    wall = cpu = 0.0
    for work in chain(_vectors(dimension, count), [None]):
        began, began_cpu = time.perf_counter(), time.process_time()
        if work is None:
            sketch.residual(none).directions(RANK)
        else:
            sketch.add(work)
        wall, cpu = wall + time.perf_counter() - began, cpu + time.process_time() - began_cpu
    return wall, cpu, _peak()


def _peak() -> float:
    """The most memory that this process has had, in MB; getrusage would include its parent's, from before the exec."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def _captured(power: float) -> float:
    """The energy along the sketch's directions, merged from two halves, as a share of that along the eigenvectors."""
    batches = list(_vectors(2048, 8000, power))
    halves = [Sketch(torch.zeros(2048, 0), RANK) for _ in range(2)]
    gram = Gram(2048)
    for number, batch in enumerate(batches):
        halves[number % 2].add(batch)
        gram.add(batch)
    halves[0].merge(halves[1])
    none = torch.zeros(2048, 0)
    exact, found = gram.residual(none).energies[:RANK], halves[0].residual(none).directions(RANK)
    return float(gram.along(found).sum() / exact.sum())


def _beside_the_gram_matrix(dimension: int) -> list[Figure]:
    """CPU seconds per 1,000 vectors and for the directions, once: by the d x d matrix and by a sketch."""
    batches = list(_vectors(dimension, max(2 * dimension, 12 * RANK), 1.0))
    figures = []
    for name, gram in {"matrix": Gram(dimension), "sketch": Sketch(torch.zeros(dimension, 0), RANK)}.items():
        half = len(batches) // 2
        for batch in batches[:half]:
            gram.add(batch)  # until it no longer keeps the vectors
        times = [time.process_time()]
        for batch in batches[half:]:
            gram.add(batch)
        times.append(time.process_time())
        gram.residual(torch.zeros(dimension, 0)).directions(RANK)
        times.append(time.process_time())
        per_thousand = (times[1] - times[0]) / (len(batches) - half) * 1000 / BATCH
        figures.append(Figure(f"1,000 vectors, d = {dimension}, {name}, CPU", per_thousand, "s"))
        figures.append(Figure(f"directions, d = {dimension}, {name}, CPU", times[2] - times[1], "s"))
    return figures
