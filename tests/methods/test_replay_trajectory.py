"""A-GEM and ER go where their oracles go, step by step, for three tasks of 12 steps each."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import AGEM, ER, MultiHead
from cuber.replay import Drawn, EpisodicMemory
from tests.loops import loss_fn
from tests.models import CASES, Case, Loader, convolutional
from tests.oracles.agem import SlowAGEM
from tests.oracles.er import SlowER
from tests.oracles.replay import Remembered, SlowReplay

LR, TASKS, EPOCHS, REPLAY, MEMORY = 0.2, 3, 3, 6, 20


def convolutional_heads() -> nn.Module:
    return MultiHead(convolutional()[:-1], 24, [3, 5, 4])


def normalized_heads() -> nn.Module:
    backbone = nn.Sequential(nn.Linear(8, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU())
    return MultiHead(backbone, 12, [3, 3, 3])


MODELS = {
    "mlp": CASES["mlp"],
    "cnn": CASES["cnn"],
    "many heads": CASES["many heads"],
    "cnn, heads of several widths": Case("", convolutional_heads, (2, 6, 6)),
    "batch norm, one head": CASES["residual block"],
    "batch norm, many heads": Case("", normalized_heads, (8,)),
}
METHODS: dict[str, tuple[type, type[SlowReplay]]] = {"A-GEM": (AGEM, SlowAGEM), "ER": (ER, SlowER)}


def samples_of(drawn: Drawn, loaders: list[Loader]) -> list[Remembered]:
    """The samples drawn, as they lie in the data of their tasks; none of them twice."""
    data = [[torch.cat(parts) for parts in zip(*loader, strict=True)] for loader in loaders]
    found = []
    for task, (inputs, labels) in drawn:
        for x, y in zip(inputs, labels, strict=True):
            (row,) = (data[task][0] == x).flatten(1).all(1).nonzero().flatten().tolist()
            assert y == data[task][1][row]
            found.append((task, row))
    assert len(set(found)) == len(found)
    return [(task, data[task][0][row], data[task][1][row]) for task, row in found]


def flat(model: nn.Module, of: Callable[[nn.Parameter], Tensor | None]) -> Tensor:
    values = [(p, of(p)) for p in model.parameters()]
    return torch.cat([torch.zeros_like(p).flatten() if value is None else value.flatten() for p, value in values])


@cache
def compared(method: str, name: str, seed: int) -> tuple[Any, SlowReplay]:
    """Both learners after three tasks; every step on the way has been compared."""
    kind, slow_kind = METHODS[method]
    case = MODELS[name]
    model = case.model(seed, torch.float64)
    learner, slow = kind(model, memory=MEMORY, replay=REPLAY), slow_kind(model, LR)
    loaders = [case.loader(10 * seed + task, dtype=torch.float64) for task in range(TASKS)]
    draws: list[Drawn] = []
    draw = EpisodicMemory.draw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpisodicMemory, "draw", lambda *given: draws.append(draw(*given)) or draws[-1])
        for task, loader in enumerate(loaders):
            learner.begin_task(loader, loss_fn)
            optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=LR))
            slow.set_buffers(dict(model.named_buffers()))
            for x, y in loader * EPOCHS:
                draws.clear()
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                assert len(draws) == (task > 0)
                samples = samples_of(draws[0], loaders) if task else []
                assert len(samples) == (REPLAY if task else 0)
                expected_loss, expected = slow.step(task, x, y, samples)
                assert loss.item() == pytest.approx(expected_loss, rel=1e-9)
                assert torch.allclose(flat(model, lambda p: p.grad), expected, rtol=1e-8, atol=1e-11)
                slow_weights = flat(slow.model, lambda p: p)
                assert (flat(model, lambda p: p) - slow_weights).norm() < 1e-10 * slow_weights.norm()
            learner.end_task(loader)
            slow.statistics.append({name: buffer.clone() for name, buffer in slow.model.named_buffers()})
    for name, buffer in model.named_buffers():
        assert torch.allclose(buffer.double(), dict(slow.model.named_buffers())[name].double(), rtol=1e-9)
    return learner, slow


@pytest.mark.parametrize(("name", "seed"), [*((name, 0) for name in MODELS), ("many heads", 1)])
@pytest.mark.parametrize("method", METHODS)
def test_a_learner_goes_where_the_oracle_goes(method: str, name: str, seed: int) -> None:
    compared(method, name, seed)


@pytest.mark.parametrize("name", MODELS)
def test_the_trajectories_of_agem_are_projected_at_some_steps_and_not_at_others(name: str) -> None:
    slow: Any = compared("A-GEM", name, 0)[1]
    assert 0 < sum(slow.projected) < len(slow.projected) == 2 * 3 * EPOCHS


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
def test_the_share_of_the_replayed_samples(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowER, "share", share)
    monkeypatch.setitem(METHODS, f"ER {share}", (lambda *a, **s: ER(*a, share=share, **s), SlowER))
    compared(f"ER {share}", "many heads", 0)
