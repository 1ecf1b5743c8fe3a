"""A mask that has the shape of no layer's input has no effect, and a warning says so."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, GPM, OWM, CuberWarning, SoftCUBER
from tests.loops import learn

methods = pytest.mark.parametrize("method", [GPM, CUBER, SoftCUBER, OWM])


class Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def on_vectors(positions: int) -> tuple[nn.Module, list[Any]]:
    model = nn.Sequential(nn.Linear(8, 5), nn.Tanh(), Mean(), nn.Linear(5, 3))
    return model, [(torch.randn(16, positions, 8), torch.randint(3, (16,)))]


def on_words(positions: int) -> tuple[nn.Module, list[Any]]:
    model = nn.Sequential(nn.Embedding(9, 5), Mean(), nn.Linear(5, 3))
    return model, [(torch.randint(9, (16, positions)), torch.randint(3, (16,)))]


@pytest.mark.parametrize("make", [on_vectors, on_words])
@methods
def test_a_mask_that_fits_no_layer_is_told_at_the_end_of_the_task(method: Any, make: Any) -> None:
    torch.manual_seed(0)
    model, loader = make(6)
    learner = method(model, mask=lambda batch: torch.ones(16, 3))
    with pytest.warns(CuberWarning, match=r"task 0: mask has no effect: it returned the shape \(16, 3\), and no layer"):
        learn(learner, loader)


@pytest.mark.parametrize("make", [on_vectors, on_words])
@methods
def test_a_mask_that_fits_or_is_none_is_not(method: Any, make: Any) -> None:
    torch.manual_seed(0)
    for mask in (lambda batch: torch.ones(16, 6), lambda batch: None, None):
        model, loader = make(6)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*mask")
            learn(method(model, mask=mask), loader)
