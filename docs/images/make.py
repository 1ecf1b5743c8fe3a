"""Draws run.svg, the picture of `cuber run` in the README: python docs/images/make.py"""

from pathlib import Path

from rich.console import Console

from cuber.experiments import Experiment, run
from cuber.report import show_result

console = Console(record=True, width=104, force_terminal=True)
console.print("$ cuber run", style="bold", highlight=False)
show_result(run(Experiment()), console)
console.save_svg(str(Path(__file__).with_name("run.svg")), title="cuber run")
