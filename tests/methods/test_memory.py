"""What a learner keeps, how much of it, and how it shows it."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
import torch

from cuber import CUBER, GPM, OWM, TRGP, CuberError, FineTune, SoftCUBER
from cuber.core.state import nbytes
from tests.loops import learn, loss_fn
from tests.models import CASES
from tests.oracles.bases import explain
from tests.oracles.dense import largest_angle

CASE = CASES["mlp"]


def after(kind: type, tasks: int, name: str = "mlp", **settings: Any) -> Any:
    case = CASES[name]
    learner = kind(case.model(), **settings)
    for task in range(tasks):
        learn(learner, case.loader(task))
    return learner


def test_bases_are_of_what_the_layers_see_at_the_effective_weights() -> None:
    learner = after(TRGP, 1, eps1=0.0, threshold=0.6, threshold_step=0.1)
    pool = learner.memory["layers.1"]
    before = pool.basis.clone()
    learn(learner, CASE.loader(1))
    x = torch.cat([x for x, _ in CASE.loader(1)])
    seen = {}
    for task in (1, None):
        with torch.no_grad(), learner.as_task(task) as model:
            hidden = model.layers[0](x).relu()
            seen[task] = torch.cat([hidden, torch.ones(len(hidden), 1)], dim=1)
    assert not torch.allclose(seen[1], seen[None], atol=1e-3), "the scalings did nothing, so nothing is shown"
    old, new = explain(seen[1].T, before, 0.7)
    expected = torch.cat([before[:, old].double(), new], dim=1)
    assert largest_angle(pool.basis_of(1), expected) < 1e-3


def test_gradients_kept_are_means_over_the_whole_training_set_in_evaluation_mode() -> None:
    case = CASES["residual block"]
    learner = CUBER(case.model(), keep=1.0, samples=4)
    loader = case.loader(0, samples=20, batch_size=8)  # batches of 8, 8 and 4
    learn(learner, loader)
    model: Any = learner.model
    model.eval()
    x, y = torch.cat([x for x, _ in loader]), torch.cat([y for _, y in loader])
    (expected,) = torch.autograd.grad(loss_fn(model(x), y), [model.conv2.weight])
    kept = learner.memory["conv2"].gradients[0]
    assert torch.allclose(kept.values, kept.entries(expected), atol=1e-6)
    assert kept.norm == pytest.approx(float(expected.norm()), rel=1e-4)


def test_ten_samples_are_ten_samples_however_they_are_batched() -> None:
    sizes = []
    for batch_size in (3, 10, 24):
        learner = GPM(CASE.model(), samples=10, threshold=0.999)
        learner.begin_task(CASE.loader(0, batch_size=batch_size), loss_fn)
        learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        learner.end_task(CASE.loader(0, batch_size=batch_size))
        sizes.append([(pool.size, pool.basis @ pool.basis.T) for pool in learner.memory.values()])
    for other in sizes[1:]:
        for (size, dense), (other_size, other_dense) in zip(sizes[0], other, strict=True):
            assert size == other_size
            assert torch.allclose(dense, other_dense, atol=1e-4)


def test_thresholds_rise_from_task_to_task_and_stop_below_1() -> None:
    learner = GPM(CASE.model(), threshold=0.97, threshold_step=0.02)
    for task in range(4):
        learn(learner, CASE.loader(0))
        pool = learner.memory["layers.0"]
        vectors = torch.cat([torch.cat([x, torch.ones(len(x), 1)], 1) for x, _ in CASE.loader(0)]).double()
        held = (vectors @ pool.basis_of(task).double()).square().sum() / vectors.square().sum()
        assert float(held) >= min(0.97 + 0.02 * task, 0.999) - 1e-6


def test_one_pool_is_kept_however_many_tasks_own_its_columns() -> None:
    learner = after(GPM, 4)
    for name, layer in learner.layers.items():
        pool = learner.memory[name]
        assert pool.basis.shape == (layer.dimension, pool.size)
        assert pool.size <= layer.dimension
        assert pool.owners.shape == (4, pool.size)
    expected = sum(p.basis.numel() * 4 + p.owners.numel() + 4 * p.size for p in learner.memory.values())
    assert learner.memory_bytes()["bases"] == expected


def test_bytes_are_counted_by_kind() -> None:
    learner = after(CUBER, 3, "residual block", eps1=0.0, keep=0.5, penalty="norm")
    sizes = learner.memory_bytes()
    assert sizes["gradients"] > 0
    assert sizes["scalings"] == sum(nbytes(memory.scalings) for memory in learner.memory.values())
    norms = [learner.model.norm1, learner.model.norm2]
    assert sizes["statistics"] == 3 * sum(t.nbytes for norm in norms for t in (*norm.buffers(), *norm.parameters()))
    assert sizes["heads"] == 0
    heads = after(FineTune, 2, "many heads").memory_bytes()["heads"]
    assert heads == 2 * (10 * 3 + 3) * 4


def test_repr_shows_settings_progress_and_how_much_is_protected() -> None:
    learner = after(CUBER, 2, eps1=0.25)
    text = repr(learner)
    assert text.startswith("CUBER(")
    assert "eps1=0.25" in text
    assert "2 tasks learned" in text
    for name, pool in learner.memory.items():
        assert f"{name}: {pool.size} of {pool.dimension} directions protected" in text
    learner.begin_task(CASE.loader(2), loss_fn)
    assert "learning task 2" in repr(learner)
    assert "0 of 9 directions protected" in repr(GPM(CASE.model()))


def test_regimes_are_kept_per_task_per_layer_and_per_old_task() -> None:
    learner = after(CUBER, 3, eps1=0.0, eps2=-1.0)
    assert [list(by_layer) for by_layer in learner.regimes] == [["layers.0", "layers.1", "layers.2"]] * 3
    assert [[list(by_task) for by_task in by_layer.values()] for by_layer in learner.regimes] == [
        [[]] * 3,
        [[0]] * 3,
        [[0, 1]] * 3,
    ]
    for by_task in learner.regimes[2].values():
        for regime in by_task.values():
            assert regime.number in (2, 3)
            assert 0 <= regime.ratio <= 1 + 1e-6
            assert -1 <= regime.cosine <= 1


def test_batches_whose_loss_needs_no_gradient_are_counted() -> None:
    """As where every sample of a batch is masked."""

    def mean(masked: Any) -> dict[str, torch.Tensor]:
        def forward(model: Any, batch: Any) -> torch.Tensor:
            loss = loss_fn(model(batch[0]), batch[1])
            return masked(loss) if batch[0] is loader[0][0] else loss

        learner = CUBER(CASES["mlp"].model(), forward=forward)
        learner.begin_task(loader)
        return learner.mean_gradients(loader)

    loader = CASES["mlp"].loader(0)
    without, with_zero = mean(lambda loss: torch.zeros(())), mean(lambda loss: 0 * loss)
    for name, gradient in with_zero.items():
        torch.testing.assert_close(without[name], gradient)


@pytest.mark.parametrize("kind", [SoftCUBER, OWM])
def test_what_belongs_to_a_task_is_dropped_when_it_ends(kind: type) -> None:
    learner = after(kind, 2)
    for name in ("start", "old_gradients", "pulls", "projectors"):
        assert not getattr(learner, name, None)
    if kind is SoftCUBER:
        with pytest.raises(CuberError, match="moved"):
            learner.moved(learner.layers["layers.0"])


class WithAttention(torch.nn.Module):
    """Attention that drops by the mode of its own module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, dropout=0.5, batch_first=True)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.unsqueeze(1) * torch.eye(8)
        return self.last(self.attention(tokens, tokens, tokens)[0].mean(1))


def dropping() -> torch.nn.Module:
    names = torch.nn.Linear(8, 20), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(20, 3)
    return torch.nn.Sequential(OrderedDict(zip(("first", "relu", "dropout", "last"), names, strict=True)))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [dropping, WithAttention])
def test_gradients_with_dropout_are_those_of_a_training_step(make: Any, training: bool) -> None:
    torch.manual_seed(0)
    model = make()
    loader = CASES["mlp"].loader(0)[:1]
    learner = GPM(model)
    learner.begin_task(loader, loss_fn)
    model.train()
    torch.manual_seed(1)
    expected = torch.autograd.grad(loss_fn(model(loader[0][0]), loader[0][1]), model.last.weight)[0]
    model.train(training)
    torch.manual_seed(1)
    found, without = learner.mean_gradients(loader, dropout=True), learner.mean_gradients(loader)
    torch.testing.assert_close(found["last"][:, :-1], expected)
    assert not torch.allclose(without["last"], found["last"])
    assert all(module.training == training for module in model.modules())
