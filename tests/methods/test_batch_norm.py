"""Normalization belongs to the task: its statistics are kept with it, or each batch has its own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from cuber import AGEM, CUBER, ER, GPM, TRGP, FineTune
from tests.loops import OPTIMIZERS, learn, logits, loss_fn, train
from tests.models import CASES, Loader

CASE = CASES["residual block"]


def shifted(task: int, samples: int = 24) -> Loader:
    """Tasks that no common statistics would fit."""
    return [((1 + 2 * task) * x + 3 * task, y) for x, y in CASE.loader(task, samples)]


def narrow() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12, bias=False), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3, bias=False))


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


@pytest.mark.parametrize("kind", [FineTune, AGEM, ER, GPM, TRGP, CUBER])
def test_as_task_restores_the_statistics_the_task_ended_with_bit_for_bit(kind: type) -> None:
    learner = kind(CASE.model())
    ended_with = []
    for task in range(3):
        learn(learner, shifted(task))
        ended_with.append(statistics(learner.model))
    present = statistics(learner.model)
    for task in range(3):
        with learner.as_task(task) as model:
            for name, buffer in statistics(model).items():
                assert torch.equal(buffer, ended_with[task][name])
            model.train()
            model(CASE.inputs(0, 8))  # what moves while the task is shown does not stay
    assert all(torch.equal(buffer, present[name]) for name, buffer in statistics(learner.model).items())
    assert not torch.equal(ended_with[0]["norm1.running_mean"], ended_with[1]["norm1.running_mean"])


@pytest.mark.parametrize("kind", [GPM, CUBER])
def test_a_protected_network_gives_an_old_task_its_old_answers(kind: type) -> None:
    changed = {}
    for each in (FineTune, kind):
        settings: dict[str, Any] = {} if each is FineTune else {"threshold": 1.0}
        if each is CUBER:
            settings |= {"eps1": 0.3, "eps2": 1.1}
        learner = each(narrow(), **settings)
        old = CASES["mlp"].loader(0, samples=4)
        learn(learner, old, epochs=3)
        before = logits(learner, 0, old[0][0])
        for task in (1, 2):
            learn(learner, CASES["mlp"].loader(task), OPTIMIZERS["AdamW"], epochs=4)
        changed[each] = float((logits(learner, 0, old[0][0]) - before).norm() / before.norm())
    assert changed[kind] < 1e-5
    assert changed[FineTune] > 1e-2


def test_a_convolutional_block_forgets_far_less_than_without_protection() -> None:
    changed = {}
    for each in (FineTune, GPM):
        learner = each(CASE.model(), **({"threshold": 1.0} if each is GPM else {}))
        old = CASE.loader(0, samples=6)
        learn(learner, old, epochs=3)
        before = logits(learner, 0, old[0][0])
        for task in (1, 2):
            learn(learner, CASE.loader(task), epochs=4)
        changed[each] = float((logits(learner, 0, old[0][0]) - before).norm() / before.norm())
    assert changed[GPM] < 0.05 * changed[FineTune]


def test_a_new_task_starts_from_statistics_of_its_own_samples() -> None:
    learner = GPM(CASE.model())
    learn(learner, shifted(0))
    loader = shifted(3)
    before = copy.deepcopy(learner.model)
    learner.begin_task(loader, loss_fn)
    model: Any = learner.model
    with torch.no_grad():
        seen = model.conv1(torch.cat([x for x, _ in loader[:-1]]))
    assert torch.allclose(model.norm1.running_mean, seen.mean((0, 2, 3)), atol=1e-4)
    assert model.norm1.momentum == 0.1
    assert model.training == before.training


def test_shared_affine_parameters_are_frozen_after_the_first_task() -> None:
    learner = GPM(CASE.model(), norm_parameters="shared")
    learn(learner, shifted(0))
    model: Any = learner.model
    scale = model.norm1.weight.detach().clone()
    learn(learner, shifted(1), OPTIMIZERS["AdamW"])
    assert torch.equal(model.norm1.weight, scale)
    assert learner.uncovered_parameters["norm1.weight"] == "no rule for BatchNorm2d"


def test_evaluation_modes_of_the_user_survive_every_verb() -> None:
    model: Any = CASE.model()
    learner = CUBER(model, eps1=0.0, eps2=-1.0)
    model.norm1.eval()
    for task in range(2):
        learner.begin_task(shifted(task), loss_fn)
        train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.01)), shifted(task))
        learner.end_task(shifted(task))
        assert model.training
        assert model.norm2.training
        assert not model.norm1.training


class FrozenNorm(nn.Sequential):
    """A pretrained backbone whose batch norm stays in evaluation mode, as in models that detect objects."""

    def train(self, mode: bool = True) -> FrozenNorm:
        super().train(mode)
        self[1].eval()
        return self


@pytest.mark.parametrize("kind", [FineTune, GPM])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_that_train_leaves_in_evaluation_mode_keeps_its_statistics(training: bool, kind: type) -> None:
    frozen, free = nn.BatchNorm1d(6), nn.BatchNorm1d(6)
    model = FrozenNorm(nn.Linear(8, 6), frozen, nn.Linear(6, 6), free, nn.Linear(6, 3))
    learner = kind(model)
    learn(learner, CASES["mlp"].loader(0))
    before = [norm.running_mean.clone() for norm in (frozen, free)]  # type: ignore[union-attr]
    model.train(training)
    free.eval()
    modes = [module.training for module in model.modules()]
    learner.begin_task([(x + 3, y) for x, y in CASES["mlp"].loader(1)], loss_fn)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(frozen.running_mean, before[0])  # type: ignore[arg-type]
    # In training mode, the user has put the other one into evaluation mode by hand.
    assert torch.equal(free.running_mean, before[1]) == training  # type: ignore[arg-type]


class NoTraining(nn.Sequential):
    """A backbone that refuses to be trained."""

    def train(self, mode: bool = True) -> NoTraining:
        super().train(mode)
        if mode:
            raise RuntimeError("this backbone is for inference")
        return self


def test_a_models_own_train_is_called_only_where_it_decides_about_statistics_and_its_modes_come_back() -> None:
    learner = GPM(NoTraining(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3)).eval())
    for task in range(2):
        learn(learner, CASES["mlp"].loader(task))
    model = NoTraining(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).eval()
    learner = GPM(model)
    learn(learner, CASES["mlp"].loader(0))
    with pytest.raises(RuntimeError, match="for inference"):
        learner.begin_task(CASES["mlp"].loader(1), loss_fn)
    assert not any(module.training for module in model.modules())


def test_with_statistics_of_the_batch_an_answer_depends_on_its_batch_and_nothing_is_kept() -> None:
    learner = GPM(CASE.model(), norm_statistics="batch", norm_parameters="shared")
    before = statistics(learner.model)
    for task in range(2):
        learn(learner, shifted(task))
    assert learner.statistics == [{}, {}]
    assert all(torch.equal(buffer, before[name]) for name, buffer in statistics(learner.model).items())
    x = CASE.inputs(0, 8)
    together, apart = logits(learner, 0, x), torch.cat([logits(learner, 0, part) for part in x.split(4)])
    assert not torch.allclose(together, apart, atol=1e-3)
    learner.detach()
    assert "forward" not in learner.model.norm1.__dict__  # type: ignore[operator, union-attr]


def test_with_statistics_of_the_task_a_single_image_is_answered_like_a_batch() -> None:
    learner = GPM(CASE.model())
    learn(learner, shifted(0))
    x = CASE.inputs(0, 8)
    one_by_one = torch.cat([logits(learner, 0, image.unsqueeze(0)) for image in x])
    assert torch.allclose(logits(learner, 0, x), one_by_one, atol=1e-5)


def test_a_copy_may_have_a_learner_with_the_other_kind_of_statistics() -> None:
    learner = GPM(CASE.model(), norm_statistics="batch")
    twin: Any = copy.deepcopy(learner.model)
    other = GPM(twin, norm_statistics="task")
    learn(other, shifted(0))
    assert not torch.equal(other.statistics[0]["norm1.running_mean"], torch.zeros(6))
