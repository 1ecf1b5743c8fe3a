"""What a learner protects of a model is counted, printed, and worth a warning where it is less than half."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, EWC, GPM, HAT, OWM, CuberWarning, FineTune, MultiHead
from cuber.core.coverage import Coverage
from tests.loops import learn, loss_fn
from tests.models import CASES

DATA = CASES["mlp"]


class Table(nn.Module):
    """Two layers, of 54 and 21 parameters, a norm of 12, and a table that no rule covers."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3)
        self.table = nn.Parameter(torch.zeros(rows, 6))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)).relu() + self.table.mean(0))


def coverage(learner: Any) -> Coverage:
    found = Coverage.of(learner)
    assert found is not None
    return found


@pytest.mark.parametrize("kind", [GPM, CUBER, OWM, HAT])
def test_every_trained_parameter_is_counted_once_whenever_it_is_asked(kind: type) -> None:
    learner = kind(Table(2))
    expected = Coverage(protected=54 + 21, per_task=12, unprotected={"table": 12}, heads=0, frozen_by_user=())
    assert coverage(learner) == expected
    for task in range(3):
        learner.begin_task(DATA.loader(task), loss_fn)
        assert coverage(learner) == expected
        learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        learner.end_task(DATA.loader(task))
        assert coverage(learner) == expected
    assert expected.trained == sum(parameter.numel() for parameter in learner.model.parameters())


def test_ewc_holds_what_is_not_per_task() -> None:
    learner = EWC(Table(2))
    learn(learner, DATA.loader(0))
    assert coverage(learner) == Coverage(54 + 21 + 12, 12, {}, 0, ())


def test_print_begins_with_the_shares() -> None:
    lines = repr(GPM(Table(2))).splitlines()
    share = "75.8 % of 99 trained parameters in protected layers, 12.1 % per task, 12.1 %"
    assert lines[1] == f"  {share} frozen after the first task"
    assert "  kept per task: norm.weight, norm.bias" in lines
    assert repr(GPM(Table(2), uncovered="train")).splitlines()[1] == f"  {share} trained without protection"
    shared = repr(GPM(Table(2), norm_parameters="shared")).splitlines()[1]
    assert shared == "  75.8 % of 99 trained parameters in protected layers, 24.2 % frozen after the first task"
    assert repr(GPM(DATA.model())).splitlines()[1].endswith("  100.0 % of 271 trained parameters in protected layers")


def test_methods_that_protect_nothing_have_no_coverage() -> None:
    assert Coverage.of(FineTune(DATA.model())) is None
    assert len(repr(FineTune(DATA.model())).splitlines()) == 1


def test_heads_are_counted_apart() -> None:
    learner = GPM(MultiHead(nn.Sequential(nn.Linear(8, 6), nn.ReLU()), 6, [3, 3]))
    for task in range(2):
        learn(learner, DATA.loader(task))
        assert coverage(learner) == Coverage(54, 0, {}, 2 * 21, ())
    assert "  heads: 42 parameters, not counted above" in repr(learner).splitlines()


def test_layers_that_the_user_froze_are_one_line() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 3))
    model[:5].requires_grad_(False)
    learner = GPM(model)
    for task in range(2):
        assert "  frozen by you: 5 layers (0, 1, 2 and 2 more)" in repr(learner).splitlines()
        learn(learner, DATA.loader(task))
    assert coverage(learner).trained == 72 + 27


def test_where_more_than_half_would_be_frozen_the_first_task_says_which_and_why() -> None:
    learner = GPM(Table(15))  # 90 of 177 entries
    frozen = r"^50\.8 % of 177 trained parameters will be frozen"
    sentence = rf"{frozen}.*'table' of 90 \(no rule for Table\).*uncovered='train'"
    with pytest.warns(CuberWarning, match=sentence) as caught:
        learner.begin_task(DATA.loader(0), loss_fn)
    assert len(caught) == 1
    learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.end_task(DATA.loader(0))
        learner.begin_task(DATA.loader(1), loss_fn)


@pytest.mark.parametrize(
    ("rows", "settings"), [(14, {}), (15, {"uncovered": "train"})], ids=["not more than half", "nothing is frozen"]
)
def test_otherwise_nothing_is_said(rows: int, settings: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GPM(Table(rows), **settings).begin_task(DATA.loader(0), loss_fn)
