"""The figure of regimes over seeds."""

from __future__ import annotations

from typing import Any

import pytest

from cuber.report.drawing import styled
from cuber.report.figures import marks_of, regime_maps
from cuber.report.model import Group, Report, Variant
from cuber.report.regime_map import KINDS, MOST_PANELS, shares
from tests.made_up import result


def entry(regime: int, demoted_at: int | None = None) -> dict[str, Any]:
    return {"regime": regime, "ratio": 0.6, "cosine": 0.1, "demoted_at": demoted_at}


def report_of(*regimes: list[dict[str, dict[int, dict[str, Any]]]]) -> Report:
    variant = Variant("cuber", {}, {seed: result(seed=seed, regimes=each) for seed, each in enumerate(regimes)})
    return Report([Group("made up", [variant])])


def test_shares_count_the_seeds_of_each_regime() -> None:
    seeds = [entry(3), entry(2, demoted_at=1), entry(2), entry(1)]
    report = report_of(*([{}, {"layer": {0: one}}, {"layer": {0: entry(1), 1: entry(3)}}] for one in seeds))
    (variant,) = report.groups[0].variants
    found = shares(variant, "layer")
    assert found == {(1, 0): dict.fromkeys(KINDS, 0.25), (2, 0): {"1": 1.0}, (2, 1): {"3": 1.0}}


def test_each_layer_with_regime_3_has_a_panel_whose_cells_are_full() -> None:
    report = report_of([{}, {"a": {0: entry(3)}, "b": {0: entry(1)}}], [{}, {"a": {0: entry(2)}, "b": {0: entry(2)}}])
    with styled():
        figure = regime_maps(report.groups[0], marks_of(report))
    assert figure is not None
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "a"
    assert sum(patch.get_width() for patch in axes.patches) == pytest.approx(0.9)  # of one pair of tasks


@pytest.mark.parametrize("layers", [0, MOST_PANELS + 1])
def test_there_is_no_figure_without_regime_3_or_with_too_many_layers(layers: int) -> None:
    report = report_of([{}, {f"layer {n}": {0: entry(3)} for n in range(layers)} | {"other": {0: entry(2)}}])
    assert regime_maps(report.groups[0], marks_of(report)) is None
