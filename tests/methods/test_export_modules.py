"""Modules of ours in a model (heads, gates, batch norm by batches) become modules of torch in an export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber import HAT, MultiHead
from cuber.networks import MLP
from tests.loops import learn
from tests.methods.test_export import assert_answers, assert_plain, learned
from tests.models import CASES, CLASSES, ResidualBlock

CASE = CASES["many heads"]
X = CASE.inputs(7, 9)


def many(backbone: nn.Module, features: int, kind: type[MultiHead] = MultiHead) -> MultiHead:
    return kind(backbone, features, [CLASSES] * 3)


# Heads


def test_a_multi_head_is_a_sequence_of_backbone_and_head() -> None:
    learner = learned("cuber", CASE)
    exported = learner.export(1)
    assert type(exported) is nn.Sequential
    assert [name for name, _ in exported.named_children()] == ["backbone", "head"]
    assert torch.equal(exported.head.weight, learner.model.heads[1].weight)


class Hydra(nn.Module):
    """Two heads, one of them in the other's backbone, one used twice and referred to from a list."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.body = many(nn.Sequential(nn.ReLU(), many(nn.Linear(8, 8), 8), nn.Linear(CLASSES, 8)), 8)
        self.same = self.body
        self.listed = [self.body]

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.body(x) + self.listed[0](x.relu()) + self.same(x)


@pytest.mark.parametrize("method", ["cuber", "hat", "er"])
def test_heads_are_replaced_wherever_the_user_s_own_class_has_them(method: str) -> None:
    torch.manual_seed(0)
    learner = learned(method, CASE, model=Hydra())
    for task in range(3):
        exported: Any = learner.export(task)
        assert type(exported) is Hydra
        assert exported.body is exported.same is exported.listed[0]
        assert_plain(exported)
        assert_answers(exported, learner, task, X)


def test_heads_without_a_backbone_are_the_layer_that_they_stand_for() -> None:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), many(nn.Identity(), 6))
    learner = learned("trgp", CASE, model=model)
    exported = learner.export(1)
    assert list(exported.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert_answers(exported, learner, 1, X)


def test_hooks_of_the_user_on_heads_are_kept() -> None:
    for backbone, features in ((nn.Linear(8, 6), 6), (nn.Identity(), 8)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), many(backbone, features))
        model[1].register_forward_hook(lambda module, arguments, output: 2 * output)
        learner = learned("gpm", CASE, model=model)
        exported = learner.export(2)
        assert_answers(exported, learner, 2, X)


class Cosine(MultiHead):
    def forward(self, x: Tensor) -> Tensor:
        return functional.normalize(super().forward(x), dim=-1)


def test_a_subclass_with_a_forward_pass_of_its_own_stays_what_it_is() -> None:
    torch.manual_seed(0)
    learner = learned("gpm", CASE, model=many(MLP(8, 6, last_relu=True), 6, Cosine))
    exported = learner.export(1)
    assert type(exported) is Cosine
    assert_answers(exported, learner, 1, X)
    assert all(parameter.requires_grad for parameter in exported.parameters())


# Batch norm


class Doubled(nn.BatchNorm2d):
    """A learner with ``norm_statistics="batch"`` replaces this forward pass as well."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("method", ["finetune", "cuber", "hat"])
def test_statistics_of_the_batch_are_torch_s_own_without_running_ones(method: str) -> None:
    case = CASES["residual block"]
    torch.manual_seed(0)
    model: Any = ResidualBlock()
    model.norm2 = Doubled(6)
    learner = learned(method, case, model=model, norm_statistics="batch")
    exported: Any = learner.export(1)
    x = case.inputs(7, 9)
    assert_answers(exported, learner, 1, x)
    assert_plain(exported)
    assert not list(exported.buffers())
    assert [type(norm) for norm in (exported.norm1, exported.norm2)] == [nn.BatchNorm2d, nn.BatchNorm2d]
    assert not torch.allclose(exported(x)[:3], exported(x[:3]), atol=1e-3)
    assert type(model.norm2) is Doubled


def test_each_task_s_running_statistics_are_exported() -> None:
    case = CASES["residual block"]
    learner = learned("finetune", case)
    means = [learner.export(task).norm1.running_mean for task in range(3)]
    for task, mean in enumerate(means):
        assert torch.equal(mean, learner.statistics[task]["norm1.running_mean"])
    assert not torch.equal(means[0], means[2])


# Gates


class SharedBias(nn.Module):
    """Layers whose bias is one and frozen, followed by norms without parameters or with the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        self.plain, self.bare, self.left, self.right = nn.Linear(8, 8), *(nn.Linear(8, 8, bias=False) for _ in range(3))
        self.second.bias = self.first.bias
        self.first.bias.requires_grad_(False)
        nn.init.normal_(self.first.bias)
        self.norm, self.norm_left, self.norm_right = (
            nn.BatchNorm1d(8, affine=False),
            nn.BatchNorm1d(8),
            nn.BatchNorm1d(8),
        )
        nn.init.normal_(self.norm_left.weight)
        nn.init.normal_(self.norm_left.bias)
        self.norm_right.weight = self.norm_left.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()).relu()
        x = self.norm(self.bare(x)).relu()
        x = self.norm_left(self.left(x)).relu() + self.norm_right(self.right(x)).relu()
        return self.last(self.plain(x).relu())


def test_gates_are_in_weights_that_others_share_and_in_norms_without_parameters() -> None:
    torch.manual_seed(0)
    learner = learned("hat", CASE, model=SharedBias())
    assert learner.gated_modules["bare"] == ["norm"]
    assert learner.gated_modules["left"] == ["norm_left"]
    for task in range(3):
        exported: Any = learner.export(task)
        assert_answers(exported, learner, task, X)
        assert_plain(exported)
        trained = {name for name, parameter in exported.named_parameters() if parameter.requires_grad}
        assert trained.isdisjoint({"first.bias", "second.bias", "norm.weight", "norm.bias"})
    assert learner.model.norm.weight is None
    assert learner.model.first.bias is learner.model.second.bias


def test_hard_gates_leave_open_rows_as_they_are_and_close_the_others() -> None:
    torch.manual_seed(0)
    learner = HAT(CASES["mlp"].model())
    learn(learner, CASES["mlp"].loader(0))
    hard = learner.embeddings[0]["layers.0"]
    hard.copy_(6.0 - 12.0 * (torch.arange(len(hard)) % 2))
    exported: Any = learner.export(0)
    own, layer = learner.model.layers[0], exported.layers[0]  # type: ignore[index, union-attr]
    assert torch.equal(layer.weight[::2], own.weight[::2])
    assert not layer.weight[1::2].any()
    assert not layer.bias[1::2].any()
