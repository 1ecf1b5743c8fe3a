"""What a step costs beside plain SGD: each method, each network, in turns."""

from __future__ import annotations

import torch

from benchmarks.subjects import METHODS, SUBJECTS
from benchmarks.timing import Figure, ratios

WANTED = {
    "MLP, batch 10": {"FineTune": 1.10, "GPM": 1.5, "TRGP": 2.6, "CUBER": 3.5},
    "AlexNet-5, batch 64": {"FineTune": 1.03, "GPM": 1.10, "TRGP": 1.2, "CUBER": 1.25},
    "ResNet-18, batch 64": {"FineTune": 1.03, "GPM": 1.10, "TRGP": 1.2, "CUBER": 1.25},
}


def measure(quick: bool) -> list[Figure]:
    figures = []
    for threads in (1,) if quick else (1, 2):
        torch.set_num_threads(threads)
        for subject in SUBJECTS[:2] if quick else SUBJECTS:
            torch.manual_seed(0)
            works = {"bare": subject.bare()} | {method: subject.ours(method) for method in METHODS}
            found = ratios(works, "bare", 5 if quick else 25)
            for method in METHODS:
                name = f"step, {subject.name}, {method}, threads {threads}"
                figures.append(Figure(name, found[method], at_most=WANTED[subject.name][method]))
    return figures
