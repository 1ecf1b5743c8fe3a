"""What all the mathematics is for: old tasks keep their answers while new ones are learnt."""

from __future__ import annotations

from typing import Any

import pytest

from cuber import CUBER, GPM, TRGP, FineTune
from tests.loops import OPTIMIZERS, learn, logits
from tests.models import Case, cases

METHODS: dict[str, tuple[type, dict[str, Any]]] = {
    "GPM": (GPM, {"threshold": 1.0}),
    "TRGP": (TRGP, {"threshold": 1.0, "eps1": 0.2}),
    "CUBER without regime 3": (CUBER, {"threshold": 1.0, "eps1": 0.2, "eps2": 1.1}),
}
ROUGH = {"transformer", "transformer on words", "transposed cnn", "residual block"}
"""Models that see so many vectors in so few samples that the last thousandth of the energy is worth a direction."""


def change(kind: type, settings: dict[str, Any], case: Case) -> float:
    """How much the first task's answers to its own samples change, relatively, while two more are learnt."""
    learner = kind(case.model(), **settings)
    samples = 2 if "conv" in case.name or "cnn" in case.name else 3
    first = case.loader(0, samples=samples)
    learn(learner, first, epochs=2)
    before = logits(learner, 0, first[0][0])
    for task in (1, 2):
        learn(learner, case.loader(task), OPTIMIZERS["AdamW"], epochs=3)
    return float((logits(learner, 0, first[0][0]) - before).norm() / before.norm())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", cases())
def test_protected_answers_stay_where_unprotected_ones_do_not(case: Case, method: str) -> None:
    unprotected = change(FineTune, {}, case)
    assert unprotected > 0.1
    protected = change(*METHODS[method], case)
    assert protected < (0.05 * unprotected if case.name in ROUGH else 1e-5)
