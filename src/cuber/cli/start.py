"""Start the command line, or say in one sentence what the installation lacks.

The ``cuber`` script starts here and not in ``cuber.__main__``, which the other project named ``cuber`` also has.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import cuber
from cuber.errors import CuberError, needs_extra


def main() -> None:
    """Run the command that the arguments name."""
    try:
        check_installation()
        with needs_extra("cli", "the command line"):
            import rich  # noqa: F401
            import typer  # noqa: F401
    except CuberError as error:
        print(f"cuber: {error}", file=sys.stderr)
        sys.exit(2)
    from cuber.cli.main import main as run_command

    run_command()


def check_installation() -> None:
    """Raise if files of the other project named ``cuber`` were written to the directory of this package, or over it.

    Both have the import name ``cuber``. Whichever was installed last has replaced files of the other, and uninstalling
    one removes files of both.
    """
    package = Path(__file__).resolve().parent.parent
    try:
        shared = Path(str(distribution("cuber").locate_file("cuber"))).resolve() == package
    except PackageNotFoundError:
        shared = False
    if shared or not hasattr(cuber, "__version__"):
        raise CuberError(
            f"{package} also has files of the other project named 'cuber', or lacks files that were removed with it: "
            "run pip uninstall cuber, then pip install --force-reinstall --no-deps cuber-learn"
        )
