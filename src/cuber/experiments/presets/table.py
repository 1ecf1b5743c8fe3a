"""The paper's table of hyper-parameters: what its rows have in common."""

from __future__ import annotations

from typing import Any

from cuber.methods.cuber import PAPER

BATCH_NORM = {"norm_statistics": "batch"}
"""As in the published code: by each batch's own statistics."""
SAMPLES_IN_A_MEAN = 20


def subspaces(samples: int | list[int], threshold: float | list[float], step: float = 0.0) -> dict[str, Any]:
    """GPM, TRGP and CUBER, which share the bases; the rest is the same on all benchmarks."""
    bases = {"samples": samples, "threshold": threshold, "threshold_step": step}
    return {"gpm": bases, "trgp": {**bases, "eps1": PAPER["eps1"]}, "cuber": {**bases, **PAPER}}


def ewc(lr: float, lam: float, tasks: int) -> dict[str, Any]:
    """EWC, whose ``lam`` in the table belongs to a Fisher of batch means.

    The code that EWC's figures come from squares mean gradients of batches of 20: if samples' gradients are
    independent, that is a twentieth of the mean of their squares. And it keeps the mean of the old tasks' Fishers where
    we add them up: on average over a stream, of half its tasks.
    """
    return {"lr": lr, "lam": lam / (SAMPLES_IN_A_MEAN * tasks / 2), "anchors": "last"}
