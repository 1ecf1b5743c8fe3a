"""Compute forward passes in a precision, where this machine can."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

import torch

from cuber.errors import CuberError

DTYPES = {"float32": None, "bf16": torch.bfloat16}
"""Precision -> dtype of autocast; None: no autocast."""

PROBE = """
import sys
sys.path.append(sys.argv[1])
import torch
from torch import nn
model = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6 * 6, 32))
x = torch.randn(16, 8, 8, 8)
with torch.autocast("cpu", getattr(torch, sys.argv[2])):
    output = model(x)
output.float().square().mean().backward()
if not torch.allclose(output.float(), model(x), atol=0.1):
    sys.exit("the results are wrong")
"""
"""A convolution, a matrix product and a backward pass, large enough for the kernels of real networks."""

TIMEOUT = 600
"""Seconds; a probe takes about two, most of them to import torch."""


@cache
def probe_failure(dtype: torch.dtype, probe: str) -> str | None:
    """Run a probe in a child process, once per process: an illegal instruction cannot be caught otherwise.

    The child is isolated (``python -I``): PYTHONPATH and the working directory do not change what it imports.

    Returns:
        Why the child failed, or None where it worked.
    """
    site = str(Path(torch.__file__).parent.parent)
    command = [sys.executable, "-I", "-c", probe, site, str(dtype).removeprefix("torch.")]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, cwd=os.sep)
    except (OSError, subprocess.SubprocessError) as error:
        return f"cannot test it: {error}"
    if child.returncode < 0:
        return f"a test process was killed by {_signal_name(-child.returncode)}"
    if child.returncode > 0:
        lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        return f"a test process failed: {lines[-1]}"
    return None


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a CuberError unless the precision works on this machine; only CPUs are tested."""
    dtype = DTYPES[precision]
    if dtype is None or device.type != "cpu":
        return
    failure = probe_failure(dtype, PROBE)
    if failure is not None:
        raise CuberError(
            f"precision '{precision}' does not work on this machine ({failure}): use float32, or try again with the "
            "environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE"
        )


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context manager in which forward passes are computed in a precision; weights keep their dtype."""
    dtype = DTYPES[precision]
    if dtype is None:
        return contextlib.nullcontext()
    try:
        return torch.autocast(device.type, dtype)
    except RuntimeError as error:
        reason = str(error).strip().split("\n")[0]
        raise CuberError(f"precision '{precision}' cannot work on {device}: {reason}") from error


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
