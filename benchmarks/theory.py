"""What predicts backward transfer: the theorems' conditions when a task begins, beside what became of the old tasks.

    python benchmarks/theory.py --seeds 0-9 --keep rows.json

learns the three streams of digits with the paper's settings, with CUBER's own, and with every candidate free to change
(eps2 = -1, lam = 0), and prints rank correlations over (seed, new task, old task) with 95 % intervals from drawing
seeds anew. The study behind docs/theory.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean
from typing import Any

from torch.nn import functional

from cuber.core.batches import Batch
from cuber.errors import CuberError
from cuber.experiments import BENCHMARKS, Experiment
from cuber.experiments.experiment import limited
from cuber.experiments.grid import numbers
from cuber.methods.cuber import CUBER, PAPER
from cuber.report.statistics import rank_correlation
from cuber.streams import Stream
from cuber.training import TheoryRecorder, evaluate, learn

STREAMS = ("overlap-digits", "split-digits", "permuted-digits")
SETTINGS: dict[str, dict[str, Any]] = {
    "paper": PAPER,
    "usual": {},
    "free": {**PAPER, "eps2": -1.0, "lam": 0.0},
}
DRAWS = 1000
Row = dict[str, Any]


class Measured(TheoryRecorder):
    """Also measures each old task's test loss before and after the new one, and where the weights went meanwhile."""

    def __init__(self, learner: CUBER, stream: Stream) -> None:
        super().__init__(learner)
        self.stream = stream
        self.before: dict[int, float] = {}
        self.measured: list[dict[int, Row]] = []

    def began(self, sample: list[Batch]) -> None:
        super().began(sample)
        self.before = self._losses()

    def ending(self, loader: Iterable[Batch]) -> None:
        super().ending(loader)
        after = self._losses()
        self.measured.append(
            {old: {"loss gain": self.before[old] - after[old], **self._movement(old)} for old in after}
        )

    def _movement(self, old: int) -> Row:
        """Theorem 2 (2)'s two terms with the way that was walked: along the old gradient, and in the old subspace."""
        learner = self.learner
        parts = [learner.displacement(name)[:, learner.memory[name].owners[old]] for name in learner.layers]
        agreements = [layer["old"][old]["agreement"] for layer in self.records[learner.tasks].values()]
        return {"along": sum(agreements), "moved": sum(float(part.square().sum()) for part in parts)}

    def _losses(self) -> dict[int, float]:
        losses = {}
        for old in range(self.learner.tasks):
            with self.learner.as_task(old) as model:
                losses[old] = evaluate(model, self.stream[old].test, 256, functional.cross_entropy).loss
        return losses


def rows(benchmark: str, name: str, seed: int) -> list[Row]:
    """One run: a row for each new task and old task."""
    experiment = Experiment(benchmark, "cuber", seed=seed, settings=SETTINGS[name])
    stream = experiment.stream()
    learner = experiment.learner(stream)
    assert isinstance(learner, CUBER)
    observer = Measured(learner, stream)
    with limited(1):
        result = learn(learner, stream, seed=seed, observer=observer, **dataclasses.asdict(experiment.training()))
    found = []
    for task, by_layer in enumerate(result.theory):
        for old in range(task):
            layers = [layer["old"][old] for layer in by_layer.values() if old in layer["old"]]
            regimes = [by_task[old] for by_task in result.regimes[task].values()]
            before, after = result.accuracy[task - 1][old], result.accuracy[task][old]
            known = [one for one in layers if one["cosine"] is not None]
            found.append(
                {
                    "stream": benchmark,
                    "settings": name,
                    "seed": seed,
                    "task": task,
                    "old": old,
                    **observer.measured[task][old],
                    "accuracy gain": after - before,
                    "ratio": fmean([one["ratio"] for one in layers]),
                    "cosine": fmean([one["cosine"] for one in known]),
                    "least cosine": min(one["cosine"] for one in known),
                    "margin": fmean([one["cosine"] - one["eps2"] for one in known]),
                    "step size": max(one["step_size"] for one in known),
                    "in regime 3": sum(one["regime"] == 3 or one["demoted_at"] is not None for one in regimes),
                    "age": task - old,
                    "met 1": sum(one["cosine"] >= one["eps2"] for one in known),
                    "met 2": sum(one["step_size"] >= experiment.training().lr for one in known),
                    "layers": len(layers),
                }
            )
    return found


PREDICTORS = ("cosine", "least cosine", "ratio", "margin", "step size", "in regime 3", "age", "along", "moved")
AMONG_FREE = ("cosine", "margin", "age", "along", "moved")
"""Predictors among the pairs in regime 3 somewhere: the others are protected, and have nothing to gain or lose."""
OUTCOMES = ("loss gain", "accuracy gain")


def correlation(chosen: list[Row], predictor: str, outcome: str) -> float | None:
    return rank_correlation([row[predictor] for row in chosen], [row[outcome] for row in chosen])


def interval(chosen: list[Row], statistic: Callable[[list[Row]], float | None]) -> tuple[float, float] | None:
    """The middle 95 % of the statistic when seeds are drawn anew: rows of one run belong together."""
    by_seed: dict[int, list[Row]] = {}
    for row in chosen:
        by_seed.setdefault(row["seed"], []).append(row)
    dice, seeds = random.Random(0), sorted(by_seed)
    drawn = [
        statistic([row for seed in dice.choices(seeds, k=len(seeds)) for row in by_seed[seed]]) for _ in range(DRAWS)
    ]
    known = sorted(value for value in drawn if value is not None)
    return (known[int(0.025 * len(known))], known[int(0.975 * len(known))]) if len(known) > DRAWS // 2 else None


def show(found: list[Row]) -> None:
    for stream in dict.fromkeys(row["stream"] for row in found):
        for name in dict.fromkeys(row["settings"] for row in found):
            chosen = [row for row in found if row["stream"] == stream and row["settings"] == name]
            if not chosen:
                continue
            pairs, layers = len(chosen), sum(row["layers"] for row in chosen)
            met = [sum(row[part] for row in chosen) / layers for part in ("met 1", "met 2")]
            gains = [fmean([row[outcome] for row in chosen]) for outcome in OUTCOMES]
            better = sum(row["loss gain"] > 1e-6 for row in chosen) / pairs
            seeds = len({row["seed"] for row in chosen})
            print(f"\n{stream}, {name}: {pairs} pairs, {seeds} seeds")
            print(f"  loss gain {gains[0]:+.4f} (better in {better:.0%}), accuracy gain {gains[1]:+.2f}")
            print(f"  theorem 1's eps2 met in {met[0]:.1%} of layers, one step within theorem 2 (2) in {met[1]:.1%}")
            free = [row for row in chosen if row["in regime 3"]]
            for among, predictor in [(chosen, name) for name in PREDICTORS] + [(free, name) for name in AMONG_FREE]:
                cells = []
                for outcome in OUTCOMES:
                    value = correlation(among, predictor, outcome)
                    limits = interval(among, lambda part, p=predictor, o=outcome: correlation(part, p, o))
                    words = "-" if value is None else f"{value:+.2f}"
                    cells.append(
                        words + (f" [{limits[0]:+.2f}, {limits[1]:+.2f}]" if limits and value is not None else "")
                    )
                which = f"{predictor}, of {len(free)} free" if among is free else predictor
                print(f"  {which:24s} {cells[0]:26s} {cells[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", default=",".join(STREAMS))
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--seeds", default="0-9", help="as in 0-9 or 0,2,5")
    parser.add_argument("--keep", type=Path, help="a file for the rows; what is there is not run again")
    given = parser.parse_args()
    try:
        seeds = numbers(given.seeds)
    except CuberError as error:
        parser.error(str(error))
    found: list[Row] = json.loads(given.keep.read_text()) if given.keep and given.keep.exists() else []
    done = {(row["stream"], row["settings"], row["seed"]) for row in found}
    for seed in seeds:
        for stream in given.streams.split(","):
            assert stream in BENCHMARKS, f"no such stream: {stream}"
            for name in given.settings.split(","):
                if (stream, name, seed) not in done:
                    found += rows(stream, name, seed)
                    if given.keep:
                        given.keep.write_text(json.dumps(found))
    show(found)


if __name__ == "__main__":
    main()
