"""Draws the pictures of the README and the guides, run.svg and theory.svg: python docs/images/make.py"""

import io
from pathlib import Path

from rich.console import Console

from cuber.experiments import Experiment, run
from cuber.report import show_result
from cuber.report.drawing import NO_METADATA, styled
from cuber.report.theory_sweep import sweep_figure
from cuber.theory.sweep import sweep

HERE = Path(__file__).parent


def recorded_run() -> Console:
    """Return a console that has recorded the output of ``cuber run``."""
    console = Console(record=True, width=122, force_terminal=True, file=io.StringIO())
    console.print("$ cuber run", style="bold", highlight=False)
    show_result(run(Experiment()), console)
    return console


if __name__ == "__main__":
    recorded_run().save_svg(str(HERE / "run.svg"), title="cuber run")
    with styled():
        sweep_figure(sweep("logistic")).savefig(HERE / "theory.svg", metadata=NO_METADATA)
