"""Figures from the paper's tables by benchmark and method; its plot of memory has no numbers.

Lin et al., "Beyond Not-Forgetting: Continual Learning with Backward Knowledge Transfer", 2022.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cuber.report.model import Estimate, Group, Variant

Figures = tuple[Estimate, Estimate | None]
"""ACC and BWT in percent; multitask learning has no BWT."""
FigureTable = dict[str, dict[str, Figures]]
"""Benchmark -> method -> figures."""

FOUR = ("split-cifar100", "split-miniimagenet", "five-datasets", "permuted-mnist")


def _figure(text: str) -> Estimate | None:
    """A figure as the paper prints it: "-0.9±0.01"."""
    if text == "-":
        return None
    center, _, deviation = text.partition("±")
    return Estimate(float(center), float(deviation) if deviation else None, text)


def _figures(lines: str, benchmarks: Sequence[str] = FOUR) -> FigureTable:
    table: FigureTable = {benchmark: {} for benchmark in benchmarks}
    for line in lines.strip().splitlines():
        method, *texts = line.split()
        for benchmark, acc, bwt in zip(benchmarks, texts[::2], texts[1::2], strict=True):
            figure = _figure(acc)
            if figure is not None:
                table[benchmark][method] = figure, _figure(bwt)
    return table


ACCURACY = _figures("""
multitask  79.58±0.54 -           69.46±0.62 -          91.54±0.28 -           96.70±0.02 -
owm        50.94±0.60 -30±1       -          -          -          -           90.71±0.11 -1±0
ewc        68.80±0.88 -2±1        52.01±2.53 -12±3      88.64±0.26 -4±1        89.97±0.57 -4±1
hat        72.06±0.50 0±0         59.78±0.57 -3±0       91.32±0.18 -1±0        -          -
agem       63.98±1.22 -15±2       57.24±0.72 -12±1      84.04±0.33 -12±1       83.56±0.16 -14±1
er         71.73±0.63 -6±1        58.94±0.85 -7±1       88.31±0.22 -4±0        87.24±0.53 -11±1
gpm        72.48±0.40 -0.9±0      60.41±0.61 -0.7±0.4   91.22±0.20 -1±0        93.91±0.16 -3±0
trgp       74.46±0.32 -0.9±0.01   61.78±0.60 -0.5±0.6   93.56±0.10 -0.04±0.01  96.34±0.11 -0.8±0.1
cuber      75.54±0.22 0.13±0.08   62.67±0.74 0.23±0.15  93.48±0.10 0.00±0.02   97.25±0.00 -0.02±0.00
""")
"""The main table, CUBER with eps2 = 0. The figures of all but GPM, TRGP and CUBER are quoted from other papers."""

REPRODUCED = _figures("""
owm        50.44±0.72 -30±1       -          -          -          -           89.63±0.21 -1±0
ewc        68.30±0.65 -2±1        50.78±2.98 -12±4      87.67±0.37 -3±1        89.05±0.57 -4±2
hat        73.21±0.76 0±0         60.23±0.57 -4±1       91.82±0.34 -1±0        -          -
agem       64.16±1.41 -14±3       56.88±0.87 -13±2      82.48±0.56 -13±1       83.05±0.12 -14±2
er         72.24±0.57 -7±2        58.04±0.73 -7±1       88.54±0.36 -4±1        88.72±0.56 -10±1
""")
"""Figures that the paper's authors measured with the official code of the quoted methods."""

ACCURACY |= _figures("cuber 74.94 0.28 \n trgp 74.33 -0.18", ["overlap-cifar100"])

_BY_EPS2 = _figures("0.0 75.54 0.22 \n 0.2 75.73 0.03 \n 0.5 75.55 0.01", ["split-cifar100"])
EPS2 = {float(eps2): figures for eps2, figures in _BY_EPS2["split-cifar100"].items()}
"""CUBER on Split CIFAR-100 by eps2. For 0 the BWT differs from the main table, where 0.22 is the deviation of ACC."""

SELECTED: Mapping[str, Mapping[int, tuple[int, float, float]]] = {
    "overlap-cifar100": {1: (0, 0.50, -0.20), 2: (1, 0.71, 0.10), 4: (3, 0.03, -0.60), 5: (0, 0.07, -0.20)}
}
"""New task -> the selected old task, its BWT-S with CUBER and with TRGP."""

FORWARD: Mapping[str, Mapping[str, float | None]] = {
    "split-cifar100": {"gpm": 0.0, "trgp": 2.01, "cuber": 2.79},
    "split-miniimagenet": {"gpm": 0.0, "trgp": 2.36, "cuber": 3.13},
    "five-datasets": {"gpm": 0.0, "trgp": 1.98, "cuber": 1.96},
    "permuted-mnist": {"gpm": 0.0, "trgp": 0.18, "cuber": 0.8},
}
"""FWT over GPM."""

TIME: Mapping[str, Mapping[str, float | None]] = {
    benchmark: dict(zip(("owm", "ewc", "hat", "agem", "er", "gpm", "trgp", "cuber"), times, strict=True))
    for benchmark, times in {
        "split-cifar100": (2.41, 1.76, 1.62, 3.48, 1.49, 1, 1.65, 1.86),
        "five-datasets": (None, 1.52, 1.47, 2.41, 1.40, 1, 1.21, 1.55),
        "split-miniimagenet": (None, 1.22, 0.91, 1.79, 0.82, 1, 1.34, 1.61),
    }.items()
}
"""Training time relative to GPM; None: not given."""


def has(variant: Variant) -> bool:
    """Whether a variant has the settings of the paper's tables, except its table of eps2, and the paper's images."""
    if any(note.startswith("other images") for note in variant.notes):
        return False
    return variant.method != "cuber" or variant.results[0].settings.get("eps2", 0.0) == 0


def figures(benchmark: str, variant: Variant) -> Figures | None:
    """ACC and BWT of the paper for these settings, if it has them."""
    if has(variant):
        return ACCURACY.get(benchmark, {}).get(variant.method)
    return EPS2.get(variant.results[0].settings["eps2"]) if benchmark == "split-cifar100" else None


def figure(table: Mapping[str, Mapping[str, float | None]], benchmark: str, variant: Variant) -> float | None:
    """The variant's entry in ``FORWARD`` or ``TIME``."""
    return table.get(benchmark, {}).get(variant.method) if has(variant) else None


def incomplete(group: Group) -> list[str]:
    """The note for tables that show the paper's figures beside runs of a part of its benchmark."""
    left_out = sorted({note for variant in group.variants for note in variant.shrunk})
    note = f"the paper's figures are for the whole benchmark, these runs for a part: {'; '.join(left_out)}"
    return [note] if left_out else []
