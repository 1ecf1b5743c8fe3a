"""Models with layer norm: how much of the variance is protected, and how strongly SoftCUBER holds old tasks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cuber import GPM, SoftCUBER
from cuber.layers import has_layer_norm
from tests.loops import learn
from tests.models import CASES

CASE = CASES["mlp"]


class TinyRMSNorm(nn.Module):
    """A class of another library, known by its name alone."""


def network(norm: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), norm, nn.ReLU(), nn.Linear(12, 3))


@pytest.mark.parametrize(
    ("norm", "expected"),
    [(nn.LayerNorm(12), True), (nn.RMSNorm(12), True), (TinyRMSNorm(), True), (nn.BatchNorm1d(12), False)],
)
def test_layer_norm_is_known_by_the_name_of_its_class(norm: nn.Module, expected: bool) -> None:
    assert has_layer_norm(network(norm)) == expected


def test_a_share_of_the_variance_is_held_in_models_with_layer_norm_alone() -> None:
    def sizes(norm: nn.Module, variance: float) -> list[int]:
        learner = GPM(network(norm), threshold=0.5, variance=variance)
        learn(learner, CASE.loader(0))
        return [memory.size for memory in learner.memory.values()]

    assert all(
        more > fewer for more, fewer in zip(sizes(nn.LayerNorm(12), 1.0), sizes(nn.LayerNorm(12), 0.0), strict=True)
    )
    assert sizes(nn.Identity(), 1.0) == sizes(nn.Identity(), 0.0)


def test_softcuber_has_ten_times_the_curvature_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def strongest() -> float:
        learner = SoftCUBER(network(nn.LayerNorm(12)))
        learn(learner, CASE.loader(0))
        return float(learner.models["0"].curvatures.max())

    with_factor = strongest()
    monkeypatch.setattr("cuber.methods.soft_cuber.WITH_LAYER_NORM", 1.0)
    assert with_factor == pytest.approx(10 * strongest(), rel=1e-3)
