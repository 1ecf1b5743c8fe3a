"""The figures of the paper, as entered in our tables."""

from __future__ import annotations

import dataclasses

import pytest

from cuber.report import paper
from cuber.report.model import Estimate, Variant
from tests.made_up import result as made_up


def test_the_papers_tables_are_whole():
    figures = {benchmark: set(table) for benchmark, table in paper.ACCURACY.items()}
    everything = {"multitask", "owm", "ewc", "hat", "agem", "er", "gpm", "trgp", "cuber"}
    assert figures == {
        "split-cifar100": everything,
        "split-miniimagenet": everything - {"owm"},
        "five-datasets": everything - {"owm"},
        "permuted-mnist": everything - {"hat"},
        "overlap-cifar100": {"cuber", "trgp"},
    }
    assert paper.ACCURACY["permuted-mnist"]["owm"] == (Estimate(90.71, 0.11, "90.71±0.11"), Estimate(-1, 0, "-1±0"))
    assert paper.ACCURACY["five-datasets"]["multitask"] == (Estimate(91.54, 0.28, "91.54±0.28"), None)
    assert paper.TIME["five-datasets"]["owm"] is None


def test_other_images_are_not_compared_with_the_papers():
    usual = made_up("trgp", benchmark="overlap-cifar100")
    other = dataclasses.replace(usual, notes=["other images of a shared class in each task"])
    assert paper.figures("overlap-cifar100", Variant("trgp", {}, {0: usual})) is not None
    assert paper.figures("overlap-cifar100", Variant("trgp", {}, {0: other})) is None


@pytest.mark.parametrize(
    ("table", "sums"),
    [
        (
            paper.ACCURACY,
            {
                "split-cifar100": (629.57, 5.31, -54.67, 5.09),
                "split-miniimagenet": (482.29, 7.24, -34.97, 6.15),
                "five-datasets": (722.11, 1.67, -22.04, 2.03),
                "permuted-mnist": (735.68, 1.66, -33.82, 3.1),
            },
        ),
        (
            paper.REPRODUCED,
            {
                "split-cifar100": (328.35, 4.11, -53, 7),
                "split-miniimagenet": (225.93, 5.15, -36, 8),
                "five-datasets": (350.51, 1.63, -21, 3),
                "permuted-mnist": (350.45, 1.46, -29, 5),
            },
        ),
    ],
)
def test_the_papers_columns_add_up(table, sums):
    """ACC, its deviations, BWT, its deviations: sums over the rows, taken from the paper's text by a program."""
    for benchmark, expected in sums.items():
        figures = table[benchmark].values()
        changes = [bwt for _, bwt in figures if bwt is not None]
        assert len(changes) == len(figures) - ("multitask" in table[benchmark])
        found = [sum(acc.mean for acc, _ in figures), sum(acc.deviation for acc, _ in figures)]
        found += [sum(bwt.mean for bwt in changes), sum(bwt.deviation for bwt in changes)]
        assert found == pytest.approx(expected, abs=1e-6)
