"""While a learner is attached the model is still the user's, and afterwards it is as it was."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from cuber import AGEM, CUBER, ER, EWC, GPM, TRGP, FineTune
from tests.loops import detach, learn, logits, loss_fn, same_bits, train
from tests.models import CASES, Case, cases

METHODS = [FineTune, EWC, AGEM, ER, GPM, TRGP, CUBER]


def fingerprint(model: nn.Module) -> list[Any]:
    """Everything on the modules that a learner could have left something on."""
    return [
        (
            name,
            type(module),
            sorted(module.__dict__),
            [len(hooks) for key, hooks in sorted(module.__dict__.items()) if key.endswith("_hooks")],
            [(key, p.requires_grad) for key, p in module.named_parameters(recurse=False)],
            module.training,
        )
        for name, module in model.named_modules()
    ]


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("case", cases())
def test_a_learner_changes_neither_types_nor_state_keys_nor_answers(kind: type, case: Case) -> None:
    model, plain = case.model().eval(), case.model().eval()
    learner = kind(model)
    assert learner.model is model
    assert type(model) is type(plain)
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert same_bits(model, plain)
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in plain.named_parameters()]
    x = case.inputs(0, 5)
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("name", ["mlp", "cnn", "residual block", "many heads"])
def test_state_keys_stay_the_same_while_scalings_are_learnt(name: str) -> None:
    case = CASES[name]
    learner = CUBER(case.model(), eps1=0.0)
    learn(learner, case.loader(0))
    learner.begin_task(case.loader(1), loss_fn)
    fresh = case.model()
    assert learner.model.state_dict().keys() == fresh.state_dict().keys()
    fresh.load_state_dict(learner.model.state_dict())
    assert len(list(learner.model.parameters())) == len(list(fresh.parameters()))


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("case", cases())
def test_detaching_restores_forward_hooks_and_what_is_trained(kind: type, case: Case) -> None:
    model = case.model()
    before = fingerprint(model)
    learner = kind(model, norm_statistics="batch")
    learn(learner, case.loader(0))
    learner.detach()
    after = fingerprint(model)
    if case.name == "many heads":
        assert model.task == 0
    assert after == before


@pytest.mark.parametrize("kind", METHODS)
def test_detaching_in_the_middle_of_the_third_task_restores_all_the_same(kind: type) -> None:
    case = CASES["many heads"]
    model = case.model()
    before = fingerprint(model)
    learner = kind(model)
    for task in range(2):
        learn(learner, case.loader(task))
    learner.begin_task(case.loader(2), loss_fn)
    assert fingerprint(model) != before
    detach(learner)
    assert fingerprint(model) == before


def test_detaching_leaves_the_bare_weights() -> None:
    case = CASES["mlp"]
    learner = TRGP(case.model(), eps1=0.0)
    for task in range(3):
        learn(learner, case.loader(task))
    x = case.inputs(0, 5)
    bare = logits(learner, None, x)
    detach(learner)
    assert torch.equal(learner.model(x), bare)


def through_pickle(model: nn.Module) -> nn.Module:
    return pickle.loads(pickle.dumps(model))


def through_a_file(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_pickle, through_a_file])
@pytest.mark.parametrize("case", cases(but=frozenset({"conv3d"})))
def test_a_copy_computes_the_same_function_scalings_included(case: Case, duplicate: Any) -> None:
    learner = TRGP(case.model(), eps1=0.0)
    for task in range(2):
        learn(learner, case.loader(task))
    learner.model.eval()
    x = case.inputs(0, 5)
    with torch.no_grad():  # attention rounds otherwise where a gradient is asked for
        shown = learner.model(x)
    assert not torch.equal(shown, logits(learner, None, x)), "nothing was scaled, so nothing is shown"
    twin = duplicate(learner.model)
    with torch.no_grad(), learner.as_task(0):
        assert torch.equal(twin(x), shown), "the copy is not the original's concern"
        as_zero = duplicate(learner.model)
    with torch.no_grad():
        assert torch.equal(twin(x), shown)
        assert torch.equal(as_zero(x), logits(learner, 0, x))


@pytest.mark.parametrize("duplicate", [copy.deepcopy, through_pickle, through_a_file])
def test_a_copy_can_have_its_own_learner_and_neither_disturbs_the_other(duplicate: Any) -> None:
    case = CASES["mlp"]
    learner = TRGP(case.model(), eps1=0.0)
    for task in range(2):
        learn(learner, case.loader(task))
    before = copy.deepcopy(learner.model)
    twin = CUBER(duplicate(learner.model), eps1=0.0)
    x = case.inputs(0, 5)
    assert torch.equal(twin.model(x), logits(learner, None, x)), "it begins with bare weights"
    for task in range(2):
        learn(twin, case.loader(task + 5))
    detach(twin)
    assert same_bits(learner.model, before)
    learn(learner, case.loader(2))


def test_a_copy_in_the_middle_of_a_task_is_a_model_of_its_own() -> None:
    case = CASES["mlp"]
    learner = CUBER(case.model(), eps1=0.0, eps2=-1.0)
    learn(learner, case.loader(0))
    learner.begin_task(case.loader(1), loss_fn)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
    train(learner, optimizer, case.loader(1))
    twin = copy.deepcopy(learner.model)
    x = case.inputs(0, 5)
    before = twin(x).detach()
    train(learner, optimizer, case.loader(1))
    assert torch.equal(twin(x), before)


def test_the_learner_of_a_copy_trains_the_heads_that_the_original_s_learner_had_frozen() -> None:
    case = CASES["many heads"]
    learner = GPM(case.model())
    for task in range(2):
        learn(learner, case.loader(task))
    twin = GPM(copy.deepcopy(learner.model))
    twin.begin_task(case.loader(0), loss_fn)
    assert "heads.0.weight" in dict(twin.named_parameters())


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
def test_hooks_of_the_user_are_called_as_ever() -> None:
    case = CASES["mlp"]
    model: Any = case.model()
    calls: list[str] = []
    model.layers[0].register_forward_hook(lambda *_: calls.append("forward"))
    model.layers[0].register_full_backward_hook(lambda *_: calls.append("backward"))
    learner = TRGP(model, eps1=0.0)
    learn(learner, case.loader(0))
    calls.clear()
    learner.begin_task(case.loader(1), loss_fn)
    calls.clear()
    loss_fn(model(case.inputs(0, 5)), torch.zeros(5, dtype=torch.long)).backward()
    assert calls == ["forward", "backward"]
    detach(learner)
    calls.clear()
    model(case.inputs(0, 5))
    assert calls == ["forward"]


def test_what_computes_in_the_model_follows_it_to_another_precision() -> None:
    case = CASES["mlp"]
    learner = TRGP(case.model(), eps1=0.0)
    for task in range(2):
        learn(learner, case.loader(task))
    x = case.inputs(0, 5)
    before = [logits(learner, task, x) for task in range(2)]
    learner.model.double()
    for task in range(2):
        assert torch.allclose(logits(learner, task, x.double()), before[task].double(), atol=1e-5)


def test_functional_transforms_and_exports_of_weights_work() -> None:
    case = CASES["mlp"]
    learner = TRGP(case.model(), eps1=0.0)
    for task in range(2):
        learn(learner, case.loader(task))
    model, x = learner.model, case.inputs(0, 5)
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    assert torch.allclose(torch.func.functional_call(model, parameters, (x,)), model(x), atol=1e-6)
    per_sample = torch.func.vmap(lambda sample: torch.func.functional_call(model, parameters, (sample[None],)))(x)
    assert torch.allclose(per_sample.squeeze(1), model(x), atol=1e-5)
    with torch.inference_mode():
        assert torch.allclose(model(x), logits(learner, 1, x), atol=1e-6)


def test_forward_mode_differentiation_works_in_every_task() -> None:
    learner = TRGP(nn.Sequential(nn.Linear(8, 10), nn.ReLU(), nn.Linear(10, 3)), eps1=0.0, threshold=0.8)
    x, direction = torch.randn(4, 8), torch.randn(4, 8)
    for task in range(2):
        learner.begin_task(CASES["mlp"].loader(task), loss_fn)
        with forward_ad.dual_level():
            tangent = forward_ad.unpack_dual(learner.model(forward_ad.make_dual(x, direction))).tangent
        _, expected = torch.autograd.functional.jvp(learner.model.eval(), x, direction)
        learner.model.train()
        assert torch.allclose(tangent, expected, atol=1e-5)
        train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1)), CASES["mlp"].loader(task))
        learner.end_task(CASES["mlp"].loader(task))


def test_batches_of_lists_are_cut_as_others_are() -> None:
    generator = torch.Generator().manual_seed(0)
    images = [
        ([torch.randn(3, 4, 4, generator=generator) for _ in range(8)], [sample % 2 for sample in range(8)])
        for _ in range(3)
    ]

    def forward(model: nn.Module, batch: Any) -> Tensor:
        return functional.cross_entropy(model(torch.stack(batch[0])), torch.tensor(batch[1]))

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    expected = GPM(copy.deepcopy(model), samples=12, threshold=0.9)
    learner = GPM(model, samples=12, threshold=0.9, forward=forward)
    learner.begin_task(images)
    learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
    learner.end_task(images)
    stacked = [(torch.stack(x), torch.tensor(y)) for x, y in images]
    expected.begin_task(stacked, functional.cross_entropy)
    expected.wrap(torch.optim.SGD(expected.parameters(), lr=0.1))
    expected.end_task(stacked)
    for name, pool in learner.memory.items():
        assert torch.allclose(pool.basis, expected.memory[name].basis, atol=1e-5)
