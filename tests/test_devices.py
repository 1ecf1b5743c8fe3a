"""Everything that a learner computes and remembers is where its model is: tried on a simulated device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.utils import backend_registration

from tests.on_device import TRIALS

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch knows no devices that are written in Python",
)


@pytest.fixture(scope="module")
def failures() -> dict[str, str | None]:
    """Trial -> traceback, or None."""
    command = [sys.executable, "-m", "tests.on_device"]
    child = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stderr
    return dict(map(json.loads, child.stdout.splitlines()))


@pytest.mark.parametrize("trial", TRIALS)
def test_on_a_simulated_device(trial: str, failures: dict[str, str | None]) -> None:
    assert failures[trial] is None, failures[trial]
