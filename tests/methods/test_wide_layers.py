"""Wide layers: bases from sketches, nothing of d x d numbers, and a bounded list of regimes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cuber import CUBER, GPM, TRGP, CuberError, CuberWarning
from cuber.core.pooled import PooledMethod
from cuber.subspace import LayerMemory
from tests.loops import OPTIMIZERS, learn, logits
from tests.models import CASES, Case

METHODS: dict[str, tuple[type[PooledMethod], dict[str, Any]]] = {
    "GPM": (GPM, {}),
    "TRGP": (TRGP, {"eps1": 0.0}),
    "CUBER": (CUBER, {"eps1": 0.0, "eps2": -1.0}),
}
CASE = CASES["mlp"]
WIDTH = 300


@pytest.fixture
def narrow_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat layers with more than 200 inputs as wide."""
    for place in ("core.bases", "subspace.constraint"):
        monkeypatch.setattr(f"cuber.{place}.WIDE", 200)


class LargestTensor(TorchDispatchMode):
    """Remember the size of the largest tensor that any operation has made."""

    size = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        made = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.size = max(self.size, *made, 0)
        return result


class Tokens(nn.Module):
    """A wide layer that sees every token of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.head = nn.Linear(WIDTH, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.wide(x).relu().mean(1))
        return y


def sequences(task: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    directions = torch.randn(20, WIDTH, generator=generator)
    batches = [torch.randn(5, 20, 20, generator=generator) @ directions for _ in range(8)]
    return [(batch, torch.randint(3, (5,), generator=generator)) for batch in batches]


@pytest.mark.usefixtures("narrow_is_wide")
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_as_large_as_d_times_d(method: str, optimizer: str) -> None:
    """In any step, and at the begin and end of any task."""
    torch.manual_seed(0)
    kind, settings = METHODS[method]
    learner = kind(Tokens(), sketch_rank=20, threshold=0.95, **settings)
    with LargestTensor() as largest:
        for task in range(3):
            learn(learner, sequences(task), OPTIMIZERS[optimizer])
    assert 40 <= learner.memory["wide"].size <= 61
    assert largest.size < WIDTH**2
    x = sequences(0)[0][0]
    vectors = torch.cat([x.flatten(0, 1), torch.ones(100, 1)], 1)
    basis = learner.memory["wide"].basis_of(0)
    assert float((vectors @ basis).square().sum() / vectors.square().sum()) > 0.94


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_a_sketch_with_room_for_all_vectors_changes_nothing(model: str, method: str) -> None:
    kind, settings = METHODS[method]
    case: Case = CASES[model]
    exact, sketched = (
        kind(case.model(), sketch=sketch, sketch_rank=1000, **settings) for sketch in ("never", "always")
    )
    for task in range(3):
        for learner in (exact, sketched):
            learn(learner, case.loader(task))
    for name, memory in exact.memory.items():
        assert sketched.memory[name].size == memory.size
    x = case.loader(0)[0][0]
    for task in range(3):
        assert torch.allclose(logits(sketched, task, x), logits(exact, task, x), atol=1e-3)


@pytest.fixture
def seen_warnings() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", CuberWarning)
        yield seen


def test_a_sketch_that_is_too_small_says_so_once_per_layer(seen_warnings: list[warnings.WarningMessage]) -> None:
    learner = GPM(Tokens(), sketch="always", sketch_rank=1, threshold=0.99)
    for task in range(2):
        learn(learner, sequences(task))
    said = [str(warning.message) for warning in seen_warnings]
    assert [message.split("'")[1] for message in said] == ["wide", "head"][: len(said)]
    assert "of its input energy instead of 99.00%: a sketch of rank 1 holds no more" in said[0]


def test_inputs_that_are_not_finite_are_refused_as_without_a_sketch() -> None:
    for sketch in ("never", "always"):
        learner = GPM(nn.Linear(4, 2), sketch=sketch)
        good = [(torch.randn(9, 4), torch.randint(2, (9,)))]
        learner.begin_task(good, nn.functional.cross_entropy)
        learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        with pytest.raises(CuberError, match="layer 'linear' sees inputs that are not finite"):
            learner.end_task([(torch.full((9, 4), torch.inf), good[0][1])])


def test_regimes_of_many_tasks_are_listed_only_where_tasks_were_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for listed in (2, 1000):
        monkeypatch.setattr("cuber.subspace.memory.LISTED_REGIMES", listed)
        learner = CUBER(CASE.model(), eps1=0.0, selected=1)
        for task in range(6):
            learn(learner, CASE.loader(task))
        weights.append([*learner.model.state_dict().values()])
        for memory in learner.memory.values():
            assert [len(regimes) for regimes in memory.regimes] == [0, 1, 2, *([1] * 3 if listed == 2 else [3, 4, 5])]
    for one, other in zip(*weights, strict=True):
        assert torch.equal(one, other)


def test_what_tasks_read_is_the_union_of_what_each_reads() -> None:
    learner = TRGP(CASE.model(), eps1=0.0, selected=1)
    for task in range(4):
        learn(learner, CASE.loader(task))
    for memory in learner.memory.values():
        assert isinstance(memory, LayerMemory)
        each = torch.stack([memory.columns_read([task]) for task in range(4)])
        assert torch.equal(memory.columns_read(range(4)), each.any(0))
        assert not memory.columns_read([]).any()


def test_a_sketched_layer_whose_inputs_are_all_zero_ends_its_task() -> None:
    model = nn.Sequential(nn.Linear(8, 12, bias=False), nn.ReLU(), nn.Linear(12, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(-model[0].weight.abs())
    learner = GPM(model, sketch="always")
    loader = [(x.abs(), y) for x, y in CASE.loader(0)]
    learn(learner, loader)
    learn(learner, loader)
    assert learner.tasks == 2
    assert learner.memory["2"].size == 0
