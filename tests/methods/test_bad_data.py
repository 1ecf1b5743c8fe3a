"""Data that cannot be learnt from is answered with one sentence, and nothing is half-changed afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, EWC, GPM, TRGP, CuberError, FineTune
from tests.loops import learn, logits, loss_fn, sgd, train
from tests.models import CASES

CASE = CASES["mlp"]
methods = pytest.mark.parametrize("kind", [FineTune, EWC, GPM, TRGP, CUBER])
X, Y = CASE.inputs(0, 8), torch.zeros(8, dtype=torch.long)

BAD: dict[str, tuple[Any, str]] = {
    "empty loader": ([], "the loader yields no batch"),
    "labels out of range": ([(X, Y + 7)], r"task \d: .*loader's first batch: Target 7 is out of bounds"),
    "negative labels": ([(X, Y - 3)], r"task \d: .*loader's first batch: Target -3 is out of bounds"),
    "inputs of the wrong shape": (
        [(X[:, :5], Y)],
        r"task \d: .*first batch: mat1 and mat2 shapes cannot be multiplied",
    ),
    "inputs of the wrong type": ([(X.long(), Y)], r"task \d: .*loader's first batch"),
    "more labels than inputs": ([(X, Y[:4])], r"task \d: .*loader's first batch"),
    "inputs that are not a number": ([(X * float("nan"), Y)], r"task \d: the loss is nan before the first step"),
    "infinite inputs": ([(X / 0, Y)], r"task \d: the loss is nan before the first step"),
    "no samples in the batch": ([(X[:0], Y[:0])], r"task \d: the loss is nan before the first step"),
    "not a pair": ([(X, Y, Y)], r"yields a tuple where \(input, target\) is expected: give the learner a forward="),
    "a dictionary": ([{"x": X, "y": Y}], r"yields a dict where \(input, target\) is expected"),
    "a tensor": ([X], r"yields a Tensor where \(input, target\) is expected"),
}


@methods
@pytest.mark.parametrize(("loader", "sentence"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("tasks", [0, 1], ids=["first task", "second task"])
def test_it_is_refused_when_the_task_begins_and_the_learner_goes_on(
    kind: type, loader: Any, sentence: str, tasks: int
) -> None:
    learner = kind(CASE.model())
    for task in range(tasks):
        learn(learner, CASE.loader(task))
    before = logits(learner, None, X)
    with pytest.raises(CuberError, match=sentence) as error:
        learner.begin_task(loader, loss_fn)
    assert "\n" not in str(error.value)
    assert (learner.task, learner.tasks) == (None, tasks)
    assert torch.equal(logits(learner, None, X), before)
    learn(learner, CASE.loader(tasks))
    assert learner.tasks == tasks + 1


@pytest.mark.parametrize("kind", [TRGP, CUBER])
def test_labels_out_of_range_in_a_later_batch_are_refused_with_a_sentence_too(kind: type) -> None:
    learner = kind(CASE.model())
    learn(learner, CASE.loader(0))
    with pytest.raises(CuberError):
        learner.begin_task([(X, Y), (X, Y + 7)], loss_fn)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (nn.CrossEntropyLoss(reduction="none"), "the loss must be a tensor with one value"),
        (lambda output, target: 1.0, "the loss must be a tensor with one value"),
        (lambda output, target: loss_fn(output, target) / 0, "the loss is inf before the first step"),
        (lambda output, target: output.detach().mean(), "reaches none of the protected layers"),
        (lambda output: output.mean(), "cannot take the loader's first batch"),
    ],
    ids=["not reduced", "a number", "infinite", "cut off", "of one argument"],
)
def test_a_loss_that_cannot_be_trained_on_is_refused(loss: Any, sentence: str) -> None:
    learner = CUBER(CASE.model())
    with pytest.raises(CuberError, match=sentence):
        learner.begin_task(CASE.loader(0), loss)
    learn(learner, CASE.loader(0))


class Particular(nn.Linear):
    """A model that looks at its input before it works."""

    def __init__(self) -> None:
        super().__init__(8, 3)
        self.inner = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 8, "eight numbers, please"
        return super().forward(self.inner(x))


def test_attention_s_complaint_about_the_wrong_shape_is_a_sentence() -> None:
    learner = CUBER(CASES["transformer"].model())
    with pytest.raises(CuberError, match="cannot take the loader's first batch"):
        learner.begin_task([(torch.randn(4, 5, 6), torch.zeros(4).long())], loss_fn)


def test_inputs_that_a_model_asserts_against_are_refused_with_a_sentence_too() -> None:
    learner = CUBER(Particular())
    with pytest.raises(CuberError, match="eight numbers"):
        learner.begin_task([(X[:, :5], Y)], loss_fn)


@pytest.mark.parametrize("kind", [GPM, TRGP, CUBER])
@pytest.mark.parametrize("tasks", [0, 1], ids=["first task", "second task"])
def test_a_task_that_ended_in_nan_is_refused_at_its_end_and_can_still_be_put_right(kind: type, tasks: int) -> None:
    learner = kind(CASE.model())
    for task in range(tasks):
        learn(learner, CASE.loader(task))
    learner.begin_task(CASE.loader(tasks), loss_fn)
    good = {name: value.clone() for name, value in learner.model.state_dict().items()}
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(tasks), end_epochs=False)
    with torch.no_grad():
        next(iter(learner.model.parameters())).fill_(float("nan"))
    with pytest.raises(CuberError, match=r"not finite|is nan"):
        learner.end_task(CASE.loader(tasks))
    assert (learner.task, learner.tasks) == (tasks, tasks)
    assert {pool.tasks for pool in learner.memory.values()} == {tasks}
    learner.model.load_state_dict(good)
    learner.end_task(CASE.loader(tasks))
    learn(learner, CASE.loader(tasks + 1))


@pytest.mark.parametrize("kind", [GPM, TRGP, CUBER])
def test_an_empty_loader_at_the_end_is_refused_and_a_full_one_taken(kind: type) -> None:
    learner = kind(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(0))
    with pytest.raises(CuberError, match="the loader yields no batch"):
        learner.end_task([])
    learner.end_task(CASE.loader(0))
    assert learner.tasks == 1


def dictionary_loss(model: nn.Module, batch: dict[str, Any]) -> Tensor:
    return loss_fn(model(batch["inputs"]["x"]), batch["y"])


@methods
def test_batches_of_any_make_work_with_a_forward_of_the_user_s_own(kind: type) -> None:
    plain, own = kind(CASE.model()), kind(CASE.model(), forward=dictionary_loss)
    for task in range(2):
        learn(plain, CASE.loader(task))
        loader = [{"inputs": {"x": x}, "y": y, "note": "anything"} for x, y in CASE.loader(task)]
        own.begin_task(loader)
        optimizer = own.wrap(sgd(own.parameters()))
        for batch in loader:
            optimizer.zero_grad()
            dictionary_loss(own.model, batch).backward()
            optimizer.step()
        own.end_epoch()
        own.end_task(loader)
    for ours, theirs in zip(own.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_torch_data_loaders_work_and_generators_are_told_that_they_can_be_read_only_once() -> None:
    learner = GPM(CASE.model())
    dataset = torch.utils.data.TensorDataset(CASE.inputs(0, 20), torch.zeros(20, dtype=torch.long))
    loader = torch.utils.data.DataLoader(dataset, batch_size=6, shuffle=True)
    learner.begin_task(loader, loss_fn)
    train(learner, learner.wrap(sgd(learner.parameters())), loader)
    with pytest.raises(CuberError, match="only once"):
        learner.end_task(batch for batch in loader)
    learner.end_task(loader)
    assert learner.memory["layers.0"].size
