"""Hard attention is remembered: by copies, compiled models, files, and in the count of bytes."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

import cuber
from cuber import GPM, HAT, CuberError, FineTune
from tests.loops import OPTIMIZERS, detach, learn, logits, loss_fn, same_bits, train
from tests.methods.test_attention import Padded
from tests.methods.test_hat import after_first_task
from tests.models import CASES, Loader
from tests.training import small

CASE = CASES["mlp"]


@pytest.mark.parametrize("name", ["mlp", "residual block"])
def test_a_copy_of_the_model_answers_the_same_and_another_learner_takes_the_gates_off(name: str) -> None:
    learner = after_first_task(name)
    learner.model.eval()
    x = CASES[name].inputs(0, 5)
    gated, bare = learner.model(x), logits(learner, None, x)
    assert not torch.allclose(gated, bare, atol=1e-3)
    twin = copy.deepcopy(learner.model)
    assert torch.equal(twin(x), gated)
    for other in (FineTune, GPM):
        assert torch.equal(other(copy.deepcopy(twin)).model(x), bare)
    assert torch.equal(learner.model(x), gated)
    detach(learner)
    assert torch.equal(learner.model(x), bare)


def test_a_model_of_another_precision_keeps_its_gates() -> None:
    learner = after_first_task("mlp")
    x = CASE.inputs(0, 5)
    before = logits(learner, 0, x)
    learner.model.double()
    assert torch.allclose(logits(learner, 0, x.double()), before.double(), atol=1e-6)
    learn(learner, CASE.loader(1, dtype=torch.float64))
    assert torch.allclose(logits(learner, 0, x.double()), before.double(), atol=1e-4)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_transformer_that_packs_its_sequences_is_gated_too() -> None:
    case = CASES["transformer"]
    torch.manual_seed(0)
    learner = HAT(Padded(layers=1))
    learn(learner, case.loader(0))
    x = case.inputs(0, 4)
    before = logits(learner, 0, x)
    with torch.enable_grad(), learner.as_task(0):  # torch packs nothing that is trained
        assert torch.allclose(learner.model.eval()(x), before, atol=1e-5)
    assert not torch.allclose(logits(learner, None, x), before, atol=1e-3)
    learn(learner, case.loader(1), OPTIMIZERS["AdamW"], epochs=3)
    assert torch.allclose(logits(learner, 0, x), before, atol=1e-4)


def test_gates_are_part_of_what_is_compiled() -> None:
    torch._dynamo.reset()
    learner = after_first_task("mlp")
    learn(learner, CASE.loader(1))
    learner.model.eval()
    compiled: Any = torch.compile(learner.model, backend="eager")
    x = CASE.inputs(0, 5)
    for task in (0, 1, None, 0):
        with torch.no_grad(), learner.as_task(task) as model:
            assert torch.allclose(compiled(x), model(x), atol=1e-6)
    detach(learner)
    assert torch.allclose(compiled(x), learner.model(x), atol=1e-6)


def through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", ["mlp", "residual block", "many heads"])
def test_a_run_resumed_in_the_middle_of_an_epoch_goes_on_with_the_same_bits(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    learner = HAT(case.model(), smax=50.0)
    learn(learner, case.loader(0))
    loader: Loader = case.loader(1, samples=48)
    learner.begin_task(loader, loss_fn)

    def momentum(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.01)

    optimizer = learner.wrap(momentum(learner.parameters()))
    train(learner, optimizer, loader)
    train(learner, optimizer, loader[:3], end_epochs=False)
    twin = HAT(case.model(seed=9), smax=50.0)
    twin.model.load_state_dict(through_a_file(learner.model.state_dict()))
    twin.load_state_dict(through_a_file(learner.state_dict()))
    twin.resume_task(loss_fn)
    twins_optimizer = twin.wrap(momentum(twin.parameters()))
    twins_optimizer.load_state_dict(through_a_file(optimizer.state_dict()))
    x = case.inputs(3, 5)
    for each, its in ((learner, optimizer), (twin, twins_optimizer)):
        train(each, its, loader[3:])
        train(each, its, loader)
        each.end_task(loader)
        torch.manual_seed(5)
        learn(each, case.loader(2), momentum)
    assert same_bits(learner.model, twin.model)
    for task in range(3):
        assert torch.equal(logits(learner, task, x), logits(twin, task, x))
    for name, units in learner.units.items():
        assert torch.equal(units, twin.units[name])
        assert torch.equal(learner.inputs[name], twin.inputs[name])


def test_a_state_whose_gates_have_no_layer_here_is_refused() -> None:
    learner = after_first_task("mlp")
    model: Any = CASE.model()
    model.layers[1].requires_grad_(False)
    with pytest.raises(CuberError, match=r"layer 'layers\.1' is protected in this state but frozen here"):
        HAT(model).load_state_dict(learner.state_dict())


def test_memory_is_counted_and_shown() -> None:
    learner = after_first_task("residual block")
    learn(learner, CASES["residual block"].loader(1))
    embeddings, units, inputs = 2 * (6 + 6 + 6), 6 + 6 + 6 + 3, 18 + 54 + 2 + 7
    assert learner.memory_bytes()["attention"] == 4 * (embeddings + units + inputs)
    taken = int((learner.units["conv1"] > 0.5).sum())
    assert f"conv1: {taken} of 6 units taken" in repr(learner)


def test_the_seed_decides_through_the_other_door_too() -> None:
    results = []
    for seed in (3, 3, 4):
        learner = HAT(small.model(2), smax=50.0, c=0.1)
        result = cuber.learn(learner, small.stream(2), epochs=6, lr=0.3, batch_size=4, seed=seed)
        results.append((result, learner))
    assert same_bits(results[0][1].model, results[1][1].model)
    assert not same_bits(results[0][1].model, results[2][1].model)
    result, _ = results[0]
    assert result.acc > 60
    assert result.bwt > -1
    assert "attention" in result.bytes[0]
