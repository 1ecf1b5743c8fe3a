"""What ``export`` returns computes what the model does inside ``as_task``, and nothing of the learner is in it."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from cuber import CuberError, FineTune, Method, Multitask
from cuber.methods import METHODS
from tests.loops import learn, logits, loss_fn, same_bits, sgd, train
from tests.models import CASES, Case, cases

SETTINGS: dict[str, dict[str, Any]] = {
    **{name: {"eps1": 0.0} for name in ("cuber", "trgp", "soft-cuber")},
    "hat": {"smax": 3.0},  # gates that are neither open nor closed
}


def learned(method: str, case: Case, tasks: int = 3, model: nn.Module | None = None, **settings: Any) -> Any:
    torch.manual_seed(0)
    learner = METHODS[method](model or case.model(), **SETTINGS.get(method, {}), **settings)
    loaders = [case.loader(task, samples=8) for task in range(tasks)]
    if not isinstance(learner, Multitask):
        for loader in loaders:
            learn(learner, loader, lambda parameters: torch.optim.SGD(parameters, lr=0.3))
        return learner
    mixed = [(x, y, torch.full_like(y, task)) for task, loader in enumerate(loaders) for x, y in loader]
    learner.begin_task(mixed, loss_fn)
    optimizer = learner.wrap(sgd(learner.parameters()))
    for batch in mixed:
        optimizer.zero_grad()
        learner.loss(batch).backward()
        optimizer.step()
    learner.end_task(mixed)
    return learner


def assert_plain(model: nn.Module) -> None:
    """Fail if anything of the learner is left; networks of ``cuber.networks`` are models like any other."""
    pickled = pickle.dumps(model)
    for trace in ("cuber.layers", "cuber.core", "cuber.methods", "cuber.subspace", "by_cuber", "MultiHead"):
        assert trace.encode() not in pickled
    assert not any("forward" in vars(module) for module in model.modules())


@torch.no_grad()
def assert_answers(exported: nn.Module, learner: Method, task: int, x: Tensor) -> None:
    assert torch.allclose(exported(x), logits(learner, task, x), atol=1e-6, rtol=1e-6)


def same_state(one: Any, other: Any) -> bool:
    pairs = zip(tree_leaves(one), tree_leaves(other), strict=True)
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in pairs)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", cases())
def test_the_outputs_are_those_of_the_task_and_the_learner_is_not_changed(case: Case, method: str) -> None:
    learner = learned(method, case)
    x = case.inputs(7, 9)
    model, state = copy.deepcopy(learner.model.state_dict()), learner.state_dict()
    answers = [logits(learner, task, x) for task in (None, 0, 1, 2)]
    for task in range(3):
        exported = learner.export(task)
        assert_answers(exported, learner, task, x)
        assert_plain(exported)
        assert not any(module.training for module in exported.modules())
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in exported.parameters())
    if method in SETTINGS and (method, case.name) != ("hat", "recurrent"):  # which has no units to gate
        assert not torch.allclose(answers[3], answers[0], atol=1e-3), "the weights alone give the same outputs"
    assert same_state(learner.model.state_dict(), model)
    assert same_state(learner.state_dict(), state)
    assert all(torch.equal(logits(learner, task, x), was) for task, was in zip((None, 0, 1, 2), answers, strict=True))
    assert learner.model.training
    assert learner.shown_task == 2


@pytest.mark.parametrize("method", ["cuber", "soft-cuber", "hat", "owm", "agem", "finetune"])
@pytest.mark.parametrize("name", ["residual block", "many heads"])
def test_exports_in_the_middle_of_a_task_are_of_the_weights_as_they_are_then_and_do_not_disturb(
    method: str, name: str
) -> None:
    case = CASES[name]
    learners = [learned(method, case, tasks=2) for _ in range(2)]
    x = case.inputs(7, 9)
    for learner, exports in zip(learners, (True, False), strict=True):
        torch.manual_seed(1)
        learner.begin_task(case.loader(2), loss_fn)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.05, momentum=0.9))
        for part in case.loader(2)[:2], case.loader(2)[2:]:
            train(learner, optimizer, part)
            for task in range(3) if exports else ():
                assert_answers(learner.export(task), learner, task, x)
        learner.end_task(case.loader(2))
    assert same_bits(learners[0].model, learners[1].model)


def test_scaled_weights_are_computed_in_float64_and_all_others_keep_their_bits() -> None:
    learner = learned("trgp", CASES["transformer on words"])
    state, exported = learner.model.state_dict(), learner.export(2)
    learner.show_task(2)
    scaled = {name: layer for name, layer in learner.layers.items() if layer.scaling is not None}
    assert scaled
    for layer in scaled.values():
        W, U, S = layer.matrix().double(), layer.scaling.basis.double(), layer.scaling.dense().double()
        expected = W + W @ U @ S @ U.mT
        own = set(map(id, layer.parameters))
        names = [name for name, parameter in learner.model.named_parameters() if id(parameter) in own]
        before = torch.cat([state.pop(name).reshape(len(W), -1) for name in names], 1)
        baked = torch.cat([exported.get_parameter(name).reshape(len(W), -1) for name in names], 1)
        assert not torch.equal(baked, before)
        assert torch.allclose(baked.double(), expected, atol=1e-7, rtol=1e-7)
    assert state
    for name, tensor in state.items():
        assert torch.equal(exported.state_dict()[name], tensor)


def test_scalings_follow_a_model_that_was_moved() -> None:
    case = CASES["mlp"]
    learner = learned("cuber", case)
    x = case.inputs(7, 9, torch.float64)
    learner.model.double()
    exported = learner.export(1)
    assert next(exported.parameters()).dtype == torch.float64
    assert torch.allclose(exported(x), logits(learner, 1, x), atol=1e-12)


def test_what_the_learner_froze_is_not_frozen_and_what_the_user_froze_is() -> None:
    case = CASES["many heads"]
    model: Any = case.model()
    model.backbone.layers[0].bias.requires_grad_(False)
    learner = learned("gpm", case, model=model)
    learner.begin_task(case.loader(3), loss_fn)
    assert not model.heads[0].weight.requires_grad
    frozen = [name for name, p in learner.export(0).named_parameters() if not p.requires_grad]
    assert frozen == ["backbone.layers.0.bias"]
    assert not model.heads[0].weight.requires_grad

    learner = learned("gpm", words := CASES["transformer on words"], tasks=1, norm_parameters="shared")
    learner.begin_task(words.loader(1), loss_fn)
    assert not all(parameter.requires_grad for parameter in learner.model.parameters())
    exported = learner.export(0)
    assert all(parameter.requires_grad for parameter in exported.parameters())
    assert_plain(exported)


def test_tied_weights_stay_tied() -> None:
    exported: Any = learned("cuber", CASES["tied layers"]).export(2)
    assert exported.first.weight is exported.second.weight


@pytest.mark.parametrize("method", ["trgp", "hat"])
def test_copies_of_learners_exports_and_models_export_as_well(method: str) -> None:
    case = CASES["mlp"]
    learner = learned(method, case, tasks=2)
    x = case.inputs(7, 9)
    exported = learner.export(1)
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(exported)(x), exported(x))
    assert_answers(copy.deepcopy(learner).export(1), learner, 1, x)
    again = learned(method, case, tasks=2, model=exported)
    assert_plain(again.export(1))
    assert_answers(again.export(1), again, 1, x)
    twin = FineTune(copy.deepcopy(learner.model))
    learn(twin, case.loader(0))
    assert_plain(twin.export(0))
    assert_answers(twin.export(0), twin, 0, x)


class Particular(nn.Module):
    """Overrides what an export relies on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = CASES["residual block"].model()
        self.aliases = [self.inner]

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)
        self.inner.norm1.eval()

    def __getattr__(self, name: str) -> Any:
        return getattr(super().__getattr__("inner"), name[4:]) if name.startswith("own_") else super().__getattr__(name)

    def forward(self, x: Tensor) -> Tensor:
        return self.aliases[0](x) + self.own_shortcut(x).mean()


@pytest.mark.parametrize("method", ["cuber", "hat", "ewc"])
def test_a_model_whose_class_overrides_methods_of_torch_keeps_its_class(method: str) -> None:
    case = CASES["residual block"]
    torch.manual_seed(0)
    learner = learned(method, case, model=Particular())
    exported: Any = learner.export(1)
    assert type(exported) is Particular
    assert exported.aliases[0] is exported.inner
    assert_answers(exported, learner, 1, case.inputs(7, 9))


def test_an_exported_model_trains_as_any_other() -> None:
    case = CASES["cnn"]
    exported = learned("cuber", case).export(2).train()
    optimizer = torch.optim.SGD(exported.parameters(), lr=0.1)
    before = copy.deepcopy(exported)
    for x, y in case.loader(2):
        loss_fn(exported(x), y).backward()
    optimizer.step()
    pairs = zip(exported.parameters(), before.parameters(), strict=True)
    assert not any(torch.equal(now, was) for now, was in pairs)


# Calls that are refused


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        (3, r"export\(3\): that task has not been learned \(tasks 0 to 2 have\)"),
        (-1, r"export\(-1\): that task has not been learned"),
        ("0", "export takes the number of a task, not '0'"),
        (None, "export takes the number of a task, not None"),
    ],
)
def test_a_task_that_is_not_known_is_refused(task: Any, sentence: str) -> None:
    with pytest.raises(CuberError, match=f"^{sentence}"):
        learned("gpm", CASES["mlp"]).export(task)


def test_exports_at_the_wrong_time_are_refused() -> None:
    case = CASES["residual block"]
    learner = learned("gpm", case, tasks=1)
    with pytest.raises(CuberError, match=r"export\(0\) .*outside torch\.inference_mode"), torch.inference_mode():
        learner.export(0)
    learner.begin_task(case.loader(1), loss_fn)
    with learner.as_task(0):
        assert_answers(learner.export(0), learner, 0, case.inputs(7, 9))
        with pytest.raises(CuberError, match=r"export\(1\) inside as_task"):
            learner.export(1)
    learner.detach()
    with pytest.raises(CuberError, match="was detached"):
        learner.export(0)


def test_a_model_that_cannot_be_copied_is_refused_and_stays_as_it_was() -> None:
    case = CASES["mlp"]
    learner = learned("trgp", case)
    learner.model.generator = (number for number in range(3))
    before = logits(learner, 2, x := case.inputs(7, 9))
    with pytest.raises(CuberError, match=r"^export\(0\) copies the model, which cannot be copied: .*generator"):
        learner.export(0)
    assert learner.shown_task == 2
    assert torch.equal(logits(learner, 2, x), before)
