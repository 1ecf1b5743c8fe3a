"""Measure everything that speed and memory are promised for, beside what is wanted and what was measured last.

python -m benchmarks [--quick] [--only steps,bases,wide,...] [--save]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from benchmarks import bases, floors, growth, kept, optimizers, overhead, shortcuts, startup, steps, tasks, wide
from benchmarks.timing import Figure, machine
from cuber.core.allocation import keep_freed_memory

PARTS = {
    "startup": startup,
    "steps": steps,
    "floors": floors,
    "optimizers": optimizers,
    "shortcuts": shortcuts,
    "overhead": overhead,
    "bases": bases,
    "kept": kept,
    "growth": growth,
    "wide": wide,
    "tasks": tasks,
}
ON_REQUEST = {"floors", "optimizers", "shortcuts", "wide", "tasks"}
"""With these it would take longer than the ten minutes that one has for it."""
COMMITTED = Path(__file__).with_name("figures.json")
MARKS = {True: "reached", False: "MISSED", None: ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="about a minute; the figures are rougher")
    parser.add_argument("--only", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--save", action="store_true", help=f"keep the figures as the last ones ({COMMITTED.name})")
    parser.add_argument("--json", type=Path, default=Path("runs/benchmarks.json"), help="where to write the figures")
    options = parser.parse_args()
    keep_freed_memory()  # as our runs do, for both sides: the allocator's moods are not what is measured
    chosen = options.only.split(",") if options.only else [part for part in PARTS if part not in ON_REQUEST]
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"there is no part '{unknown[0]}': choose from {', '.join(PARTS)}")
    committed = json.loads(COMMITTED.read_text()) if COMMITTED.exists() else {"figures": [], "machine": machine()}
    is_same_machine = committed["machine"] == machine()
    if options.save and options.only and not is_same_machine:
        parser.error("--save without --only first: the figures of the other parts are of another machine")
    last = {figure["name"]: figure for figure in committed["figures"]}
    print(f"{'':66}{'measured':>11}{'wanted':>11}{'':>10}{'last':>9}")
    figures: list[Figure] = []
    for part in chosen:
        torch.set_num_threads(1)
        for figure in PARTS[part].measure(options.quick):
            figures.append(figure)
            print(_line(figure, last.get(figure.name, {}).get("value")), flush=True)
    measured = {figure.name: figure.to_json() for figure in figures}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(document(measured))
    if options.save:  # parts that were not measured keep their last figures
        COMMITTED.write_text(document((last if is_same_machine else {}) | measured))
    missed = sum(figure.reached is False for figure in figures)
    print(f"{missed} of {sum(figure.reached is not None for figure in figures)} missed; figures in {options.json}")


def document(figures: dict[str, Any]) -> str:
    return json.dumps({"machine": machine(), "figures": list(figures.values())}, indent=1) + "\n"


def _line(figure: Figure, before: float | None) -> str:
    wanted = ""
    if figure.at_most is not None:
        wanted = f"<= {figure.at_most:.3g}"
    elif figure.at_least is not None:
        wanted = f">= {figure.at_least:.3g}"
    last = "" if before is None else f"{before:.4g}"
    return f"{figure.name:66}{figure.value:9.4g} {figure.unit:2}{wanted:>10}{MARKS[figure.reached]:>10}{last:>9}"


if __name__ == "__main__":
    main()
