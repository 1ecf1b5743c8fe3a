"""What a cap on the pools costs: accuracy and backward transfer with all, half and a quarter of the uncapped rank.

python -m benchmarks.caps [--seeds 5] [--benchmarks overlap-digits,permuted-digits] [--methods gpm,cuber]
"""

from __future__ import annotations

import argparse
from statistics import mean, stdev

import torch

from cuber.experiments import Experiment, run
from cuber.runs.result import Result

SHARES = (0.5, 0.25)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--benchmarks", default="overlap-digits,permuted-digits")
    parser.add_argument("--methods", default="gpm,cuber")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| benchmark | method | cap | columns per layer | ACC | BWT |\n|---|---|---|---|---|---|")
    for benchmark in options.benchmarks.split(","):
        for method in options.methods.split(","):
            whole = [run(Experiment(benchmark, method, seed=seed)) for seed in range(options.seeds)]
            _print(benchmark, method, "none", whole)
            for share in SHARES:
                capped = [run(Experiment(benchmark, method, seed=r.seed, settings=_cap(r, share))) for r in whole]
                _print(benchmark, method, f"{share:.0%}", capped)


def _sizes(result: Result) -> list[int]:
    return [pool["size"] for pool in result.pool[-1].values()]


def _cap(uncapped: Result, share: float) -> dict[str, list[int]]:
    return {"max_rank": [max(1, round(share * size)) for size in _sizes(uncapped)]}


def _print(benchmark: str, method: str, cap: str, results: list[Result]) -> None:
    columns = " + ".join(f"{mean(sizes):.0f}" for sizes in zip(*map(_sizes, results), strict=True))
    figures = [[result.acc for result in results], [result.bwt for result in results]]
    written = [f"{mean(values):.2f} ± {stdev(values) if len(values) > 1 else 0:.2f}" for values in figures]
    print(f"| {benchmark} | {method} | {cap} | {columns} | {' | '.join(written)} |", flush=True)


if __name__ == "__main__":
    main()
