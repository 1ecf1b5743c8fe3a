"""Run directories as the content of a report: found, read, put together."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cuber.errors import CuberError
from cuber.report.content import Benchmark, Content, Unfinished, Variant

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RESULT, CONFIG, ERROR, CHECKPOINT = "result.json", "config.toml", "error.json", "checkpoint"
NEEDED = ("benchmark", "method", "seed", "acc", "accuracy", "tasks", "seconds", "bytes")


def read(paths: Iterable[str]) -> Content:
    """All runs in these directories and below; what cannot be read is among the unfinished."""
    results: dict[str, dict[str, list[dict[str, Any]]]] = {}
    unfinished = []
    for directory in _run_directories(paths):
        try:
            result = _json(directory / RESULT)
            lacking = [name for name in NEEDED if name not in result]
            if lacking:
                raise CuberError(f"{RESULT} has no '{lacking[0]}'")
        except CuberError as error:
            unfinished.append(_unfinished(directory, str(error)))
            continue
        variants = results.setdefault(result["benchmark"], {})
        variants.setdefault(_identity(result), []).append(result)
    benchmarks = [Benchmark(title, _variants(list(parts.values()))) for title, parts in sorted(results.items())]
    return Content(benchmarks, unfinished)


def _run_directories(paths: Iterable[str]) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in map(Path, paths):
        if not path.is_dir():
            raise CuberError(f"{path} is no directory: name run directories, or folders of them")
        found = {
            file.parent for name in (RESULT, CONFIG) for file in path.rglob(name) if file.parent.name != CHECKPOINT
        }
        if not found:
            raise CuberError(f"there is no run in {path}: neither {CONFIG} nor {RESULT}, in it or below it")
        for directory in sorted(found):
            if directory.resolve() not in seen:
                seen.add(directory.resolve())
                yield directory


def _json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CuberError(f"{path.name}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(values, dict):
        raise CuberError(f"{path.name} is not the result of a run")
    return values


def _unfinished(directory: Path, problem: str) -> Unfinished:
    try:
        about = tomllib.loads((directory / CONFIG).read_text(encoding="utf-8")).get("experiment", {})
    except (OSError, ValueError):
        about = {}
    name = f"{about['method']} on {about['benchmark']}, seed {about.get('seed')}" if "method" in about else ""
    if (directory / ERROR).exists():
        try:
            problem = f"failed: {_json(directory / ERROR).get('message')}"
        except CuberError as error:
            problem = f"failed: {error}"
    elif not (directory / RESULT).exists():
        problem = "running, or stopped"
    return Unfinished(str(directory), name, problem)


def _identity(result: dict[str, Any]) -> str:
    """The same for runs that differ in nothing but their seed."""
    parts = ("method", "settings", "training", "notes")
    return json.dumps([*(result.get(part) for part in parts), len(result["tasks"]), len(result["accuracy"])])


def _variants(groups: list[list[dict[str, Any]]]) -> list[Variant]:
    variants: list[Variant] = []
    for results in groups:
        rivals = [other[0] for other in groups if other[0]["method"] == results[0]["method"]]
        changes = [
            f"{name}={value}"
            for part in ("settings", "training")
            for name, value in results[0].get(part, {}).items()
            if any(rival.get(part, {}).get(name) != value for rival in rivals)
        ]
        label = " ".join([results[0]["method"], *changes])
        if any(variant.label == label for variant in variants):
            label += f" ({'; '.join(results[0].get('notes', [])) or len(results[0]['tasks'])})"
        variants.append(Variant(label, sorted(results, key=lambda result: result["seed"])))
    return sorted(variants, key=lambda variant: variant.label)
