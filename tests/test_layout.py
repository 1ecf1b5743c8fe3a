"""Package layout: imports go one way, files stay small, examples in docstrings run."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path
from unittest import mock

import pytest
import torch

from cuber import CuberError
from cuber.layers.rule import RULES

SOURCE = Path(__file__).parent.parent / "src" / "cuber"
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted(Path(__file__).parent.rglob("*.py"))

ALLOWED = {
    "subspace": {"subspace"},
    "core": {"core", "layers", "subspace", "networks", "replay", "errors"},
    "layers": {"layers", "subspace", "errors"},
    "theory": {"theory", "subspace", "errors"},
    "networks": {"networks", "errors"},
    "replay": {"replay", "core", "errors"},
    "methods": {"methods", "core", "layers", "subspace", "networks", "replay", "errors"},
    "integrations": {"integrations", "core", "layers", "methods", "errors"},
    "datasets": {"datasets", "errors"},
    "loggers": {"loggers", "errors"},
    "streams": {"streams", "datasets", "core", "errors"},
    "runs": {"runs", "loggers", "core", "metrics", "errors"},
    "training": {
        *("training", "runs", "methods", "core", "layers", "networks", "streams", "loggers", "theory"),
        *("version", "metrics", "errors"),
    },
    "experiments": {
        *("experiments", "training", "runs", "methods", "core", "networks", "streams", "datasets", "loggers", "errors"),
    },
    "report": {"report", "experiments", "training", "runs", "theory", "datasets", "core", "metrics", "errors"},
    "metrics": set(),
    "version": set(),
    "errors": set(),
}
"""Package -> what it may import."""


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Full names of everything that a file imports, wherever in it: ``from cuber import batches`` is cuber.batches."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports by their full names"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def packages_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in imports(path) if name.split(".")[0] == "cuber"}


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    files = [path for path in FILES if package_of(path) == package]
    assert files
    for path in files:
        assert packages_imported(path) <= ALLOWED[package], path


def test_the_mathematics_needs_nothing_but_torch() -> None:
    standard = {"__future__", "collections", "contextlib", "dataclasses", "typing", "math", "functools", "itertools"}
    for path in FILES:
        if package_of(path) == "subspace":
            assert {name.split(".")[0] for name in imports(path)} <= standard | {"torch", "cuber"}, path
            assert not any(name.startswith("torch.nn.") for name in imports(path) - {"torch.nn"}), path


def test_the_mathematics_has_no_network_in_sight() -> None:
    for path in FILES:
        if package_of(path) == "subspace":
            used = {node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
            assert not used & {"Module", "Linear", "Conv2d"}, path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_file_is_longer_than_400_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_no_test_file_is_longer_than_400_lines_either() -> None:
    assert [path.name for path in TESTS if len(path.read_text().splitlines()) > 400] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_the_examples_in_docstrings_run(path: Path) -> None:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    try:
        module = importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    except CuberError as error:
        if parts[1] != "integrations":
            raise
        pytest.skip(str(error))  # a framework that is not installed
    with mock.patch.dict(RULES):  # examples register rules
        outcome = doctest.testmod(module, extraglobs={"torch": torch, "nn": torch.nn})
    assert outcome.failed == 0
