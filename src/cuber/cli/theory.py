"""``cuber theory``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cuber.errors import CuberError

PICTURES = (".svg", ".png")


def theory(
    kind: Annotated[str, typer.Argument(help="Problem: least-squares, logistic or network.")] = "logistic",
    angles: Annotated[int, typer.Option(help="Number of angles, from 0 to 180 degrees.")] = 13,
    steps: Annotated[int, typer.Option(help="Steps of each rule.")] = 20,
    step_size: Annotated[
        float | None, typer.Option(help="Step size of both rules (default: 0.9 times the bound of theorem 1).")
    ] = None,
    old_steps: Annotated[int, typer.Option(help="Training steps of the old task.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of both tasks.")] = 0,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="NAME", help="Write NAME.svg and NAME.png.")
    ] = "theory",
) -> None:
    """Rotate a new task away from an old one, and show where the theorems hold and which rule is better."""
    path = Path(output)
    if not path.name or path.is_dir():
        raise CuberError(f"--output takes the name of a figure, and '{output}' is a directory")
    from rich.console import Console

    from cuber.report.drawing import save, styled
    from cuber.report.theory_sweep import show_sweep, sweep_figure
    from cuber.theory.sweep import sweep
    from cuber.training import check_seed

    check_seed(seed)
    swept = sweep(kind, angles=angles, seed=seed, steps=steps, step_size=step_size, old_steps=old_steps)
    show_sweep(swept, Console())
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() in PICTURES:
        path = path.with_suffix("")
    with styled():
        files = save(sweep_figure(swept), path)
    print(f"{' and '.join(map(str, files))}: the figure")
