"""What the paper's coefficients of EWC are worth here."""

from __future__ import annotations

BATCH = 20


def for_single_samples(lam: float, tasks: int) -> float:
    """The coefficient for our Fisher that holds old tasks as hard as ``lam`` does with a Fisher of batch means.

    The code that EWC's figures come from squares mean gradients of batches of 20: if samples' gradients are
    independent, that is a twentieth of the mean of their squares. And it keeps the mean of the old tasks' Fishers where
    we add them up: on average over a stream, of half its tasks.
    """
    return lam / (BATCH * tasks / 2)
