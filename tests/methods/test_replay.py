"""A-GEM and ER as users meet them: their limits, the projection, heads, optimizers, resumption."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import AGEM, ER, CuberError, FineTune, MultiHead
from tests.loops import OPTIMIZERS, MakeOptimizer, learn, logits, loss_fn, same_bits, sgd, train
from tests.methods.test_resume import through_a_file
from tests.models import CASES, Case, cases

HEADS = CASES["many heads"]
BOTH = pytest.mark.parametrize("kind", [AGEM, ER])


def learned(kind: type, case: Case = HEADS, tasks: int = 2, make: MakeOptimizer = sgd, **settings: Any) -> Any:
    learner = kind(case.model(), **settings)
    for task in range(tasks):
        torch.manual_seed(task)  # dropout
        learn(learner, case.loader(task), make, epochs=2)
    return learner


def in_third_task(kind: type, case: Case = HEADS, **settings: Any) -> tuple[Any, Any]:
    learner = learned(kind, case, **settings)
    learner.begin_task(case.loader(2), loss_fn)
    return learner, learner.wrap(sgd(learner.parameters()))


def one_step(learner: Any, optimizer: Any, batch: tuple[Tensor, Tensor]) -> None:
    optimizer.zero_grad()
    loss_fn(learner.model(batch[0]), batch[1]).backward()
    optimizer.step()


# Limits


@BOTH
@pytest.mark.parametrize("case", cases())
def test_without_memory_they_are_fine_tuning_bit_for_bit(kind: type, case: Case) -> None:
    empty, plain = (learned(each, case, 3, **settings) for each, settings in ((kind, {"memory": 0}), (FineTune, {})))
    assert same_bits(empty.model, plain.model)
    assert empty.memory_bytes()["samples"] == 0


@BOTH
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_without_memory_they_are_fine_tuning_with_every_optimizer(kind: type, make: MakeOptimizer) -> None:
    assert same_bits(learned(kind, HEADS, 3, make, memory=0).model, learned(FineTune, HEADS, 3, make).model)


@BOTH
def test_the_first_task_is_fine_tuning_too(kind: type) -> None:
    assert same_bits(learned(kind, tasks=1).model, learned(FineTune, tasks=1).model)


def test_er_without_a_share_moves_what_fine_tuning_moves() -> None:
    ours, plain = learned(ER, tasks=3, share=0.0), learned(FineTune, tasks=3)
    assert all(torch.equal(*pair) for pair in zip(ours.model.parameters(), plain.model.parameters(), strict=True))


@BOTH
def test_replay_makes_a_difference(kind: type) -> None:
    ours, plain = learned(kind, tasks=2), learned(FineTune, tasks=2)
    assert not same_bits(ours.model, plain.model)
    for name in ("backbone.layers.0.weight", "heads.0.weight"):
        assert not torch.equal(ours.model.state_dict()[name], plain.model.state_dict()[name]), name


@BOTH
def test_an_old_task_that_fine_tuning_forgets_is_known_better(kind: type) -> None:
    losses = {}
    case = CASES["mlp"]
    for each in (kind, FineTune):
        learner = each(case.model())
        for task in range(3):
            learn(learner, case.loader(task), lambda p: torch.optim.Adam(p, lr=0.03), epochs=10)
        x, y = (torch.cat(parts) for parts in zip(*case.loader(0), strict=True))
        losses[each] = float(loss_fn(logits(learner, 0, x), y))
    assert losses[kind] < 0.8 * losses[FineTune]


# The projection


def vectors(*numbers: float) -> list[Tensor]:
    return list(torch.tensor(numbers, dtype=torch.float32).split(2))


def test_agem_projects_only_where_the_gradients_disagree() -> None:
    agem = AGEM(nn.Linear(1, 1))
    own = vectors(1, 2, 3)
    for replayed in (vectors(1, 1, 1), vectors(0, 0, 0), vectors(2, -1, 0), vectors(-1, -1, 1)):
        assert agem.combine(own, replayed) is own
    replayed = vectors(-2, 0, -1)
    projected = torch.cat(agem.combine(own, replayed))
    assert torch.allclose(projected, torch.tensor([1 - 2.0, 2, 3 - 1.0]))
    assert abs(projected @ torch.cat(replayed)) < 1e-6


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e15])
def test_a_projection_is_as_good_for_the_smallest_gradient_and_the_largest(scale: float) -> None:
    agem, own = AGEM(nn.Linear(1, 1)), vectors(1, 2, 3)
    expected = agem.combine(own, vectors(-2, 0, -1))
    ours = agem.combine(own, [scale * r for r in vectors(-2, 0, -1)])
    assert all(torch.allclose(*pair) for pair in zip(ours, expected, strict=True))


def test_a_step_that_agrees_with_the_memory_is_the_user_s_own_to_the_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuber.methods.agem.inner_product", lambda one, other: torch.tensor(0.0))
    make = OPTIMIZERS["AdamW"]
    assert same_bits(learned(AGEM, HEADS, 3, make).model, learned(FineTune, HEADS, 3, make).model)


# Heads


@BOTH
def test_heads_of_replayed_tasks_train_and_those_to_come_do_not(kind: type) -> None:
    learner, optimizer = in_third_task(kind, replay=40)
    trained = [[p.requires_grad for p in head.parameters()] for head in learner.model.heads]
    assert trained == [[True, True]] * 3 + [[False, False]]
    before = copy.deepcopy(learner.model.heads)
    train(learner, optimizer, HEADS.loader(2), epochs=3)
    moved = [not same_bits(*pair) for pair in zip(before, learner.model.heads, strict=True)]
    assert moved == [True, True, True, False]


def test_the_head_of_a_task_that_nothing_is_left_of_stands_still() -> None:
    learner = learned(ER, memory=2, tasks=3)
    learner.begin_task(HEADS.loader(3), loss_fn)
    kept = {3, *learner.episodic_memory.sizes}
    assert len(kept) < 4
    trained = {task for task, head in enumerate(learner.model.heads) if head.weight.requires_grad}
    assert trained == kept


@BOTH
def test_a_multi_head_inside_a_model_is_replayed_task_by_task(kind: type) -> None:
    """The same network, once as a MultiHead and once with one inside, goes the same way."""
    ends = []
    for wrap in (lambda model: model, nn.Sequential):
        model = wrap(HEADS.model().double())
        learner = kind(model, memory=20, replay=10)
        torch.manual_seed(1)
        for task in range(3):
            learn(learner, HEADS.loader(task, dtype=torch.float64), epochs=3)
        ends.append(torch.cat([p.flatten() for p in model.parameters()]))
    assert torch.allclose(*ends, rtol=1e-9)


@BOTH
def test_tasks_may_have_inputs_of_different_shapes(kind: type) -> None:
    model = MultiHead(nn.Sequential(nn.AdaptiveAvgPool1d(6), nn.Flatten(), nn.Linear(12, 8), nn.ReLU()), 8, [3, 3])
    learner = kind(model)
    for length in (7, 9):
        loader = [(torch.randn(8, 2, length), torch.randint(3, (8,))) for _ in range(3)]
        learn(learner, loader, epochs=2)
    assert learner.episodic_memory.sizes == {0: 24, 1: 24}


# Settings, optimizers and other ways of stepping


@BOTH
def test_settings_out_of_range_are_refused(kind: type) -> None:
    for name, value, sentence in (
        ("memory", -1, "memory must be a whole number of at least 0, not -1"),
        ("memory", 2.5, "memory must be a whole number of at least 0, not 2.5"),
        ("replay", 0, "replay must be a whole number of at least 1, not 0"),
    ):
        with pytest.raises(CuberError, match=f"^{kind.__name__}: {sentence}$"):
            kind(HEADS.model(), **{name: value})
    with pytest.raises(CuberError, match=r"^ER: share must be a number from 0 to 1, not 1\.5$"):
        ER(HEADS.model(), share=1.5)


@BOTH
@pytest.mark.parametrize("make", [OPTIMIZERS[name] for name in ("weight decay", "Nesterov", "AdamW")])
def test_any_optimizer_with_and_without_closure(kind: type, make: MakeOptimizer) -> None:
    learner, other = (learned(kind, HEADS, 2) for _ in range(2))
    for each, with_closure in ((learner, True), (other, False)):
        each.begin_task(HEADS.loader(2), loss_fn)
        optimizer = each.wrap(make(each.parameters()))
        for x, y in HEADS.loader(2):

            def evaluate(each: Any = each, optimizer: Any = optimizer, x: Tensor = x, y: Tensor = y) -> Tensor:
                optimizer.zero_grad()
                loss = loss_fn(each.model(x), y)
                loss.backward()
                return loss

            if with_closure:
                optimizer.step(evaluate)
            else:
                evaluate()
                optimizer.step()
    assert same_bits(learner.model, other.model)


@BOTH
def test_lbfgs_is_refused_with_a_sentence_and_the_next_optimizer_taken(kind: type) -> None:
    learner = kind(HEADS.model())
    learner.begin_task(HEADS.loader(0), loss_fn)
    with pytest.raises(CuberError, match=rf"{kind.__name__} replays other samples .* LBFGS"):
        learner.wrap(torch.optim.LBFGS(learner.parameters()))
    train(learner, learner.wrap(sgd(learner.parameters())), HEADS.loader(0))
    learner.end_task(HEADS.loader(0))


@BOTH
def test_replay_leaves_gradients_and_modes_of_what_it_does_not_train_alone(kind: type) -> None:
    """A part of the model that is frozen by the user, or is not in the optimizer, does not change."""
    learner = learned(kind)
    frozen, outside = learner.model.backbone.layers
    frozen.requires_grad_(False)
    learner.begin_task(HEADS.loader(2), loss_fn)
    mine = [p for p in learner.parameters() if all(p is not q for q in outside.parameters())]
    optimizer = learner.wrap(sgd(mine))
    before = copy.deepcopy(learner.model.backbone)
    for p in learner.model.parameters():
        p.grad = None
    one_step(learner, optimizer, HEADS.loader(2)[0])
    assert same_bits(before, learner.model.backbone)
    assert all(p.grad is None for p in frozen.parameters())
    own = [p.grad.clone() for p in outside.parameters()]
    loss_fn(learner.model(HEADS.loader(2)[0][0]), HEADS.loader(2)[0][1]).backward()
    assert all(p.grad is not None for p in outside.parameters())
    assert any(bool(g.any()) for g in own)


@BOTH
def test_after_load_state_dict_the_loss_must_be_named_again(kind: type) -> None:
    learner, _ = in_third_task(kind)
    model = copy.deepcopy(learner.model)
    twin = kind(model)
    twin.load_state_dict(through_a_file(learner.state_dict()))
    optimizer = twin.wrap(sgd(twin.parameters()))
    x, y = HEADS.loader(2)[0]
    with pytest.raises(CuberError, match=r"resume_task\(loss_fn\)"):
        one_step(twin, optimizer, (x, y))
    twin.resume_task(loss_fn)
    one_step(twin, optimizer, (x, y))


@BOTH
def test_a_copy_of_a_learner_goes_its_own_way_from_the_same_place(kind: type) -> None:
    learner, optimizer = in_third_task(kind, replay=5)
    twin = copy.deepcopy(learner)
    twins_optimizer = twin.wrap(sgd(twin.parameters()))
    train(learner, optimizer, HEADS.loader(2))
    train(twin, twins_optimizer, HEADS.loader(2))
    assert same_bits(learner.model, twin.model)


@BOTH
def test_a_step_that_neither_loss_has_reached_anything_of_is_none(kind: type) -> None:
    """Two optimizers, of which one holds what no task has used so far."""
    model = nn.ModuleDict({"used": nn.Linear(8, 3), "spare": nn.Linear(8, 3)})
    learner = kind(model, forward=lambda model, batch: loss_fn(model["used"](batch[0]), batch[1]))
    for task in range(2):
        learner.begin_task(HEADS.loader(task))
        optimizers = [learner.wrap(sgd(part.parameters())) for part in model.values()]
        before = copy.deepcopy(model)
        learner.loss(HEADS.loader(task)[0]).backward()
        for optimizer in optimizers:
            optimizer.step()
        assert [same_bits(model[name], before[name]) for name in model] == [False, True]
        learner.end_task(HEADS.loader(task))
