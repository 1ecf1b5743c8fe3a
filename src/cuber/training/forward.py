"""How forward passes are computed: in which precision, and whether compiled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from cuber.core.learner import Method
from cuber.errors import CuberError, first_line
from cuber.networks.heads import heads_of

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
        return f"a test process was killed by {signal.Signals(-child.returncode).name}"
    if child.returncode > 0:
        lines = child.stderr.strip().splitlines() or [f"exit code {child.returncode}"]
        return f"a test process failed: {lines[-1]}"
    return None


def check_precision(precision: str, device: torch.device) -> None:
    """Raise a CuberError unless the precision works on this machine; bf16 is tried on CPUs only."""
    if precision == "tf32" and not _has_tf32(device):
        raise CuberError(
            f"precision 'tf32' has no effect on {device}, only on NVIDIA GPUs since Ampere: use float32 or bf16"
        )
    if precision != "bf16" or device.type != "cpu":
        return
    failure = probe_failure(torch.bfloat16, PROBE)
    if failure is not None:
        raise CuberError(
            f"precision '{precision}' does not work on this machine ({failure}): use float32, or try again with the "
            "environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE"
        )


def _has_tf32(device: torch.device) -> bool:
    nvidia = device.type == "cuda" and torch.version.hip is None
    return nvidia and torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """While open, products and convolutions of float32 on NVIDIA GPUs are rounded to TF32 or, by default, are not."""
    products, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions


def autocast(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Return a context manager in which forward passes are computed in a precision; weights keep their dtype."""
    if precision != "bf16":
        return nullcontext()
    try:
        return torch.autocast(device.type, torch.bfloat16)
    except RuntimeError as error:
        raise CuberError(f"precision '{precision}' cannot work on {device}: {first_line(error)}") from error


def compiling(model: nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """Return a function that makes contexts in which a model's forward pass is compiled; call it for each task anew.

    Torch compiles at the first call, so its errors are raised in the context, as a CuberError.
    """
    torch.compiler.reset()  # code compiled for earlier tasks counts towards torch's recompile limit
    try:
        # With dynamic shapes the code depends on which batch size comes second, which differs in a resumed run.
        forward: Any = torch.compile(model.forward, dynamic=False)
    except RuntimeError as error:
        raise _cannot_compile(error) from error

    @contextmanager
    def compiled() -> Iterator[None]:
        before = vars(model).get("forward")  # set by the learner, where the model itself is a protected layer
        model.forward = forward
        try:
            yield
        except torch._dynamo.exc.TorchDynamoException as error:
            raise _cannot_compile(error) from error
        finally:
            del model.forward
            if before is not None:
                model.forward = before

    return compiled


def check_can_compile(learner: Method) -> None:
    """Raise a CuberError where nearly every batch would be compiled anew."""
    if learner.joint and heads_of(learner.model):
        raise CuberError(
            f"compile does not work with {type(learner).__name__} and a head for each task, because the number of "
            "samples of each head changes from batch to batch: train without it"
        )


def _cannot_compile(error: Exception) -> CuberError:
    reason = getattr(error, "inner_exception", error)
    parts = dict.fromkeys([type(reason).__name__, first_line(reason)])  # one part where there is no message
    return CuberError(
        f"compile does not work here (torch.compile: {': '.join(parts)}): install a C++ compiler (g++, or the one that "
        "CXX names), or train without it"
    )
