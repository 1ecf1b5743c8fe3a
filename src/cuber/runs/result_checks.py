"""Whether what a file says can be a result: everything that makes tables and figures may then rely on it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

KINDS: Mapping[str, type] = {
    "benchmark": str,
    "method": str,
    "seed": int,
    "tasks": list,
    "settings": dict,
    "training": dict,
    "accuracy": list,
    "reshuffled": list,
    "regimes": list,
    "theory": list,
    "seconds": list,
    "bytes": list,
    "pool": list,
    "machine": dict,
    "notes": list,
}
"""What the values of a result must be."""


def first_wrong(result: Any) -> str | None:
    """The first value of a result that is none of its kind, or does not belong to so many tasks."""
    for name, kind in KINDS.items():
        if not isinstance(getattr(result, name), kind):
            return name
    tasks = len(result.tasks)
    right = {
        "tasks": tasks > 0 and all(isinstance(task, dict) and _is_text(task.get("name")) for task in result.tasks),
        "accuracy": _is_matrix(result.accuracy, tasks),
        "accuracy_bare": result.accuracy_bare is None or _is_matrix(result.accuracy_bare, tasks),
        "reshuffled": all(_are_numbers(row, tasks) for row in result.reshuffled),
        "regimes": len(result.regimes) <= tasks and all(map(_are_regimes, enumerate(result.regimes))),
        "theory": len(result.theory) <= tasks and all(map(_are_conditions, enumerate(result.theory))),
        "seconds": bool(result.seconds) and all(map(_is_number, result.seconds)),
        "bytes": bool(result.bytes) and all(map(_are_sizes, result.bytes)),
        "pool": len(result.pool) <= tasks and all(map(_are_pools, result.pool)),
        "notes": all(map(_is_text, result.notes)),
    }
    return next((name for name in right if not right[name]), None)


def _are_sizes(by_kind: Any) -> bool:
    return isinstance(by_kind, dict) and all(map(_is_number, by_kind.values()))


def _are_pools(by_layer: Any) -> bool:
    return isinstance(by_layer, dict) and all(
        isinstance(pool, dict) and _are_numbers([pool.get("size"), pool.get("dimension")], 2) and pool["dimension"] > 0
        for pool in by_layer.values()
    )


def _are_regimes(of_task: tuple[int, Any]) -> bool:
    task, by_layer = of_task
    regimes = [known for by_task in by_layer.values() for known in by_task.items()]
    return all(
        old < task and isinstance(regime, dict) and {"regime", "fell"} <= regime.keys() for old, regime in regimes
    )


def _are_conditions(of_task: tuple[int, Any]) -> bool:
    task, by_layer = of_task
    known = [one for layer in by_layer.values() for one in layer["old"].items()]
    return all(
        old < task and {"ratio", "cosine", "eps2", "step_size", "agreement"} <= conditions.keys()
        for old, conditions in known
    )


def _is_matrix(rows: Any, tasks: int) -> bool:
    """Whether it has a row after each task, or one alone: a method that learns all tasks at once tests them once."""
    if not isinstance(rows, list) or len(rows) not in (1, tasks):
        return False
    known = range(1, tasks + 1) if len(rows) == tasks else [tasks]
    return all(_are_numbers(row, tasks, count) for row, count in zip(rows, known, strict=True))


def _are_numbers(row: Any, length: int, count: int | None = None) -> bool:
    return isinstance(row, list) and len(row) == length and all(map(_is_number, row[:count]))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
