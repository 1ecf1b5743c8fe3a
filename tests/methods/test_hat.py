"""Hard attention: what old tasks have open stays as it is, gates harden as they should, and all of it is remembered."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import HAT, CuberError, FineTune
from tests.loops import OPTIMIZERS, learn, logits, loss_fn, same_bits, sgd, train, weights
from tests.models import CASES

CASE = CASES["mlp"]
EVERY_OPTIMIZER = [(name, how) for name in ("mlp", "residual block") for how in OPTIMIZERS]
PAIRS = sorted(
    {*EVERY_OPTIMIZER, *((name, "AdamW") for name in CASES if name != "recurrent")}
)  # it has no units that a gate could close


def after_first_task(name: str, **settings: Any) -> HAT:
    """With gates that are open or closed, some of each, and were so all the time."""
    case = CASES[name]
    torch.manual_seed(1)
    learner = HAT(case.model(), **settings)
    loader = case.loader(0)
    learner.begin_task(loader, loss_fn)
    named = dict(learner.named_parameters())
    embeddings = [p for name, p in named.items() if name.endswith(".attention")]
    others = [p for name, p in named.items() if not name.endswith(".attention")]
    for embedding in embeddings:
        embedding.data = 1.0 - 2.0 * (torch.arange(len(embedding)) % 3 == 1)
    groups = [{"params": others}, {"params": embeddings, "lr": 0.0}]
    train(learner, learner.wrap(torch.optim.SGD(groups, lr=0.1)), loader, epochs=2)
    learner.end_task(loader)
    return learner


def change(learner: HAT, name: str, optimizer: str) -> float:
    """How much the first task's answers change while another is learned."""
    x = CASES[name].inputs(7, 20)
    before, old_weights = logits(learner, 0, x), weights(learner)
    assert float(before.std(0).max()) > 1e-3, "its answers do not depend on what is asked"
    learn(learner, CASES[name].loader(1), OPTIMIZERS[optimizer], epochs=3)
    assert any(not torch.equal(now, old_weights[layer]) for layer, now in weights(learner).items())
    return float((logits(learner, 0, x) - before).abs().max())


@pytest.mark.parametrize(("name", "optimizer"), PAIRS)
def test_old_tasks_keep_their_answers(name: str, optimizer: str) -> None:
    assert change(after_first_task(name), name, optimizer) < 1e-4


@pytest.mark.parametrize("name", sorted({name for name, _ in PAIRS}))
def test_and_would_not_without_the_mask(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = after_first_task(name)
    monkeypatch.setattr(HAT, "filter_update", lambda self, layer, change: change)
    assert change(learner, name, "AdamW") > 1e-2


def test_closed_units_are_there_for_later_tasks() -> None:
    learner = after_first_task("mlp")
    before = weights(learner)["layers.1"]
    learn(learner, CASE.loader(1), OPTIMIZERS["AdamW"], epochs=3)
    moved = (weights(learner)["layers.1"] - before).abs() > 1e-3
    taken = learner.embeddings[0]["layers.1"] > 0
    assert moved[~taken].any(1).all()
    assert not moved[taken][:, -1].any()
    assert moved[taken][:, :-1][:, learner.embeddings[0]["layers.0"] < 0].any()


# Gates and how they harden


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


@pytest.mark.parametrize("make", [OPTIMIZERS["SGD"], OPTIMIZERS["momentum"]], ids=["SGD", "momentum"])
def test_with_s_small_and_no_regularizer_it_is_the_plain_network_with_half_open_gates(make: Any) -> None:
    torch.manual_seed(0)
    gated = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3))
    before = gated[2].weight.detach().clone()
    one, relu, two, _, three = copy.deepcopy(gated)
    plain = nn.Sequential(one, Halved(), relu, two, Halved(), relu, three)
    loader = CASE.loader(0, samples=80, batch_size=4)
    learner = HAT(gated, smax=1e6, c=0.0)
    learner.begin_task(loader, loss_fn, steps=10**15)  # so that s is 1e-6 in all of them
    train(learner, learner.wrap(make(learner.parameters())), loader, end_epochs=False)
    learn(FineTune(plain), loader, make)
    for ours, theirs in zip(gated.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(gated[2].weight, before, atol=1e-3)


def sharpness(learner: HAT, x: Tensor, *, training: bool = True) -> float:
    """s as it shows in what comes out of the first gate."""
    layer = learner.layers["layers.0"].modules[0]
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda module, arguments, output: seen.append(output))
    learner.model.train(training)
    with torch.no_grad():
        learner.model(x)
        with learner.as_task(None) as model:
            model(x)
    handle.remove()
    learner.model.train()
    gate = (seen[0] / seen[1]).mean(0).double()
    embedding = dict(learner.named_parameters())["layers.0.attention"].double()
    unit = int(embedding.abs().argmin())  # where the sigmoid is not yet 0 or 1
    return float(torch.logit(gate[unit]) / embedding[unit].detach())


def test_s_grows_during_each_epoch_and_is_largest_outside_of_training() -> None:
    torch.manual_seed(0)
    learner = HAT(CASE.model(dtype=torch.float64), smax=8.0, c=0.0)
    loader, x = CASE.loader(0, samples=20, batch_size=4, dtype=torch.float64), CASE.inputs(0, 6, torch.float64)
    learner.begin_task(loader, loss_fn)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=1e-4))
    for _ in range(2):
        for step, (inputs, y) in enumerate(loader):
            assert sharpness(learner, x) == pytest.approx(1 / 8 + (8 - 1 / 8) * step / 4)
            assert sharpness(learner, x, training=False) == pytest.approx(8.0)
            optimizer.zero_grad()
            loss_fn(learner.model(inputs), y).backward()
            optimizer.step()
        assert sharpness(learner, x) == pytest.approx(8.0)
        learner.end_epoch()
    learner.end_task(loader)
    inputs = CASE.inputs(5, 6, torch.float64)
    with torch.no_grad(), learner.as_task(0) as model:
        assert torch.equal(model.train()(inputs), model.eval()(inputs)), "an old task is not annealed any more"


def test_an_epoch_of_one_step_is_all_hard() -> None:
    torch.manual_seed(0)
    learner = HAT(CASE.model(dtype=torch.float64), smax=8.0)
    learner.begin_task(CASE.loader(0, samples=8, dtype=torch.float64), loss_fn)
    assert sharpness(learner, CASE.inputs(0, 6, torch.float64)) == pytest.approx(8.0)


class Endless:
    """Batches without a length."""

    def __iter__(self) -> Any:
        return iter(CASE.loader(0))


def test_an_epoch_must_have_a_length_or_be_given_one() -> None:
    learner = HAT(CASE.model())
    with pytest.raises(CuberError, match=r"number of steps in an epoch.*begin_task\(steps=\.\.\.\)"):
        learner.begin_task(Endless(), loss_fn)
    learner.begin_task(Endless(), loss_fn, steps=3)
    train(learner, learner.wrap(sgd(learner.parameters())), Endless())
    learner.end_task(Endless())


def test_embeddings_stay_within_6() -> None:
    torch.manual_seed(0)
    learner = HAT(CASE.model(), c=50.0)
    learn(learner, CASE.loader(0), lambda p: torch.optim.SGD(p, lr=1.0), epochs=4)
    sizes = torch.cat([e.abs() for e in learner.embeddings[0].values()])
    assert float(sizes.max()) == 6.0


def test_the_regularizer_closes_what_old_tasks_left_free_and_is_told_to_closures() -> None:
    open_units = []
    for c in (0.0, 20.0):
        torch.manual_seed(0)
        learner = HAT(CASE.model(), c=c)
        learn(learner, CASE.loader(0, samples=40, batch_size=4), epochs=3)
        open_units.append(sum(int((e > 0).sum()) for e in learner.embeddings[0].values()))
    assert open_units[1] < 0.7 * open_units[0]
    learner.begin_task(CASE.loader(1), loss_fn)
    optimizer = learner.wrap(sgd(learner.parameters()))
    (x, y), *_ = CASE.loader(1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_fn(learner.model(x), y)
        loss.backward()
        return loss

    plain, s = float(closure().detach()), 1 / 400
    free = {name: 1 - learner.units[name] for name in learner.embeddings[0]}
    attention = {name.removesuffix(".attention"): torch.sigmoid(s * p) for name, p in learner.named_parameters()}
    expected: Any = 20 * sum((free[n] * attention[n]).sum() for n in free) / sum(f.sum() for f in free.values())
    assert optimizer.step(closure).item() == pytest.approx(plain + float(expected.detach()), rel=1e-5)


# What a learner must be able to stand


def test_a_task_leaves_layers_alone_that_it_does_not_pass() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.turn = nn.Linear(8, 6), nn.Linear(5, 3), "left"
            self.left, self.right = nn.Linear(6, 5), nn.Linear(6, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(getattr(self, self.turn)(self.first(x).relu()).relu())

    torch.manual_seed(0)
    model = Branches()
    learner = HAT(model)
    learn(learner, CASE.loader(0))
    assert set(learner.embeddings[0]) == {"first", "left"}
    assert "right" not in learner.units
    before, model.turn = model.right.weight.detach().clone(), "right"
    learn(learner, CASE.loader(1))
    assert set(learner.embeddings[1]) == {"first", "right"}
    assert (model.right.weight != before).any(1).sum() > 1
    assert not torch.equal(logits(learner, 1, CASE.inputs(0, 5)), logits(learner, None, CASE.inputs(0, 5)))


def test_a_batch_that_cannot_be_cut_is_looked_at_as_a_whole() -> None:
    def forward(model: nn.Module, batch: Any) -> Tensor:
        x, neighbors, y = batch
        return loss_fn(model(x[neighbors].mean(1)), y)

    torch.manual_seed(0)
    learner = HAT(CASE.model(), forward=forward)
    loader = [(x, torch.tensor([[7, i] for i in range(8)]), y) for x, y in CASE.loader(0)]
    learner.begin_task(loader)
    optimizer = learner.wrap(sgd(learner.parameters()))
    for batch in loader:
        optimizer.zero_grad()
        forward(learner.model, batch).backward()
        optimizer.step()
    learner.end_task(loader)
    assert torch.equal(learner.inputs["layers.1"][:-1], learner.units["layers.0"])


def test_an_optimizer_without_the_embeddings_is_refused() -> None:
    learner = HAT(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    with pytest.raises(CuberError, match=r"lacks 2 parameters.*first 'layers\.0\.attention'"):
        learner.wrap(sgd(learner.model.parameters()))
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(0))
    learner.end_task(CASE.loader(0))
    assert not any("attention" in name for name, _ in learner.named_parameters())


def test_two_optimizers_that_share_the_work_are_one() -> None:
    learners = []
    for shared in (False, True):
        torch.manual_seed(0)
        learner = HAT(CASE.model(), smax=50.0)
        for task in range(2):
            learner.begin_task(CASE.loader(task), loss_fn)
            named = dict(learner.named_parameters())
            embeddings = [p for name, p in named.items() if name.endswith(".attention")]
            others = [p for name, p in named.items() if not name.endswith(".attention")]
            parts = [embeddings, others] if shared else [others + embeddings]
            optimizers = [learner.wrap(torch.optim.SGD(part, lr=0.05)) for part in parts]
            for x, y in CASE.loader(task):
                learner.model.zero_grad()
                for embedding in embeddings:
                    embedding.grad = None
                loss_fn(learner.model(x), y).backward()
                for optimizer in optimizers:
                    optimizer.step()
            learner.end_task(CASE.loader(task))
        learners.append(learner)
    assert same_bits(learners[0].model, learners[1].model)


def test_a_task_that_ended_in_nan_is_refused_at_its_end() -> None:
    learner = HAT(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(0))
    with torch.no_grad():
        learner.parameters()[-1].fill_(math.nan)
    with pytest.raises(CuberError, match="task 0: the loss is nan at the end; lower the learning rate"):
        learner.end_task(CASE.loader(0))
    assert (learner.tasks, learner.embeddings, learner.units) == (0, [], {})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"smax": 0.5}, "smax must be a number of at least 1, not 0.5"),
        ({"smax": "hard"}, "smax must be a number of at least 1, not 'hard'"),
        ({"c": -1}, "c must be a number of at least 0, not -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CuberError, match=f"^HAT: {sentence}$"):
        HAT(CASE.model(), **wrong)
