"""Packages that are installed for a test: modules, and what an installer would write about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    site: Path, package: str, modules: Mapping[str, str], offered: Mapping[str, str], group: str = "cuber.methods"
) -> None:
    """Put a package that offers methods or benchmarks (name -> module:name) into a folder of modules."""
    for module, text in modules.items():
        (site / f"{module}.py").write_text(text)
    about = site / f"{package.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    offers = "".join(f"{name} = {value}\n" for name, value in offered.items())
    (about / "entry_points.txt").write_text(f"[{group}]\n{offers}")
