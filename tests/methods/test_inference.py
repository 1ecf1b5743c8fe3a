"""The task of a sample is inferred, and the model answers for it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cuber
from cuber import CuberError, Method, MultiHead
from cuber.networks import MLP
from tests.loops import loss_fn
from tests.models import CASES

METHODS = [cuber.GPM, cuber.TRGP, cuber.CUBER, cuber.SoftCUBER]
Loader = list[tuple[Tensor, Tensor]]


def loader(task: int, shape: tuple[int, ...] = (8,), classes: int = 3, count: int = 40) -> Loader:
    """Two batches of a task whose inputs lie around a point of their own."""
    generator = torch.Generator().manual_seed(task)
    center = 3 * torch.randn(shape, generator=generator)
    x = torch.randn(2 * count, *shape, generator=generator) + center
    y = torch.randint(classes, (2 * count,), generator=generator)
    return [(x[:count], y[:count]), (x[count:], y[count:])]


def learn(learner: Method, loaders: list[Loader]) -> Method:
    for batches in loaders:
        learner.begin_task(batches, loss_fn)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.05))
        for batch in batches:
            optimizer.zero_grad()
            learner.loss(batch).backward()
            optimizer.step()
        learner.end_epoch()
        learner.end_task(batches)
    return learner


def heads(*classes: int) -> MultiHead:
    torch.manual_seed(0)
    return MultiHead(MLP(8, 16, 16, last_relu=True), 16, list(classes))


def mixed(loaders: list[Loader]) -> tuple[Tensor, Tensor]:
    """Samples of all tasks in random order, and their tasks."""
    x = torch.cat([batches[1][0] for batches in loaders])
    tasks = torch.arange(len(loaders)).repeat_interleave(len(loaders[0][1][0]))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return x[order], tasks[order]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("one_head", [True, False])
def test_a_batch_of_several_tasks_is_answered_task_by_task(method: type[Method], one_head: bool) -> None:
    loaders = [loader(task) for task in range(3)]
    torch.manual_seed(0)
    learner = learn(method(MLP(8, 16, 3) if one_head else heads(3, 3, 3)), loaders)
    x, tasks = mixed(loaders)
    inferred = learner.infer_task(x)
    assert torch.equal(inferred.probabilities.argmax(1), tasks)
    torch.testing.assert_close(inferred.probabilities.sum(1), torch.ones(len(x), dtype=torch.float64))
    prediction = learner.predict(x)
    for task in range(3):
        with learner.as_task(task) as model, torch.no_grad():
            torch.testing.assert_close(prediction.output[tasks == task], model(x[tasks == task]))
    with learner.as_task("infer") as model:
        output = model(x)
    assert output.requires_grad
    assert torch.equal(output.detach(), prediction.output)


def test_two_forward_passes_are_enough_for_samples_of_one_task() -> None:
    learner = learn(cuber.GPM(heads(3, 3)), [loader(0), loader(1)])
    calls = {"first": 0, "last": 0}
    backbone: Any = learner.model.backbone
    learner.model.register_forward_pre_hook(lambda *_: calls.update(first=calls["first"] + 1))
    backbone.register_forward_hook(lambda *_: calls.update(last=calls["last"] + 1))
    learner.predict(loader(1)[1][0])
    assert calls == {"first": 2, "last": 1}  # the first pass ends at the first layer


def test_heads_of_different_widths_are_filled_up() -> None:
    loaders = [loader(0, classes=2), loader(1, classes=4)]
    learner = learn(cuber.TRGP(heads(2, 4)), loaders)
    x, tasks = mixed(loaders)
    output = learner.predict(x).output
    assert output.shape == (len(x), 4)
    assert bool((output[tasks == 0, 2:] == -torch.inf).all())
    assert bool(output[tasks == 1].isfinite().all())


@pytest.mark.parametrize("name", CASES)
def test_every_model_can_infer_or_says_why_not(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    learner = cuber.GPM(case.model())
    loaders = [case.loader(task) for task in range(2)]
    learn(learner, loaders)
    x = loaders[0][0][0]
    if not learner.infers_tasks:
        with pytest.raises(CuberError, match="no protected layer that sees"):
            learner.infer_task(x)
        return
    inferred = learner.infer_task(x)
    assert inferred.probabilities.shape == (len(x), 2)
    assert bool(inferred.probabilities.isfinite().all())
    assert learner.predict(x).output.isfinite().all()


def test_images_are_told_apart_by_their_patches() -> None:
    shape = (2, 9, 9)
    smooth = [(x.cumsum(3), y) for x, y in loader(0, shape)]
    rough = [(x, y) for x, y in loader(0, shape)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 49, 3))
    learner = learn(cuber.GPM(model), [smooth, rough])
    for task, batches in enumerate((smooth, rough)):
        assert bool((learner.infer_task(batches[1][0]).probabilities.argmax(1) == task).all())


def test_normalization_before_the_first_layer_is_that_of_task_0() -> None:
    """With statistics of each task, every task would look the same behind it."""
    torch.manual_seed(0)
    loaders = [loader(task) for task in range(3)]
    learner = learn(cuber.GPM(nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))), loaders)
    x, tasks = mixed(loaders)
    assert torch.equal(learner.infer_task(x).probabilities.argmax(1), tasks)


def test_where_batches_are_normalized_by_themselves_a_group_has_its_own_statistics_unless_it_is_one_sample() -> None:
    torch.manual_seed(0)
    loaders = [loader(task) for task in range(2)]
    body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
    learner = learn(cuber.GPM(MultiHead(body, 16, [3, 3]), norm_statistics="batch"), loaders)
    group, single = loaders[0][1][0], loaders[1][1][0][:1]
    output = learner.predict(torch.cat([group, single])).output
    with learner.as_task(0) as model:
        assert torch.allclose(output[:-1], model(group), atol=1e-6)
    with learner.as_task(1) as model:
        assert torch.allclose(output[-1], model(torch.cat([group, single]))[-1], atol=1e-6)
    with pytest.raises(CuberError, match="predict: the model cannot answer these samples"):
        learner.predict(single)


def test_in_training_mode_a_single_sample_of_a_task_is_normalized_with_its_batch() -> None:
    torch.manual_seed(0)
    loaders = [loader(task) for task in range(2)]
    body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
    learner = learn(cuber.GPM(MultiHead(body, 16, [3, 3])), loaders)
    with learner.as_task("infer") as model:
        assert len(model.train()(torch.cat([loaders[0][1][0], loaders[1][1][0][:1]]))) == 41


def test_a_saved_learner_infers_the_same_to_the_bit_and_goes_on() -> None:
    loaders = [loader(task) for task in range(3)]
    learner = learn(cuber.CUBER(heads(3, 3, 3)), loaders[:2])
    other = cuber.CUBER(heads(3, 3, 3))
    other.model.load_state_dict(learner.model.state_dict())
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    x, _ = mixed(loaders)
    for one, two in zip(learner.infer_task(x), other.infer_task(x), strict=True):
        assert torch.equal(one, two)
    learn(learner, loaders[2:])
    learn(other, loaders[2:])
    for one, two in zip(learner.infer_task(x), other.infer_task(x), strict=True):
        assert torch.equal(one, two)


def test_it_changes_nothing_that_is_learned_and_can_be_switched_off() -> None:
    loaders = [loader(task) for task in range(2)]
    on, off = (learn(cuber.CUBER(heads(3, 3), task_inference=each), loaders) for each in (True, False))
    for one, two in zip(on.model.parameters(), off.model.parameters(), strict=True):
        assert torch.equal(one, two)
    assert off.memory_bytes()["densities"] == 0 < on.memory_bytes()["densities"]
    others = on.memory_bytes().items() - off.memory_bytes().items()
    assert {kind for kind, _ in others} == {"densities"}
    with pytest.raises(CuberError, match="task_inference=False"):
        off.infer_task(loaders[0][0][0])


def test_a_task_that_is_shown_inside_the_block_is_answered_for() -> None:
    learner = learn(cuber.GPM(heads(3, 3)), [loader(0), loader(1)])
    x = loader(0)[1][0]
    with learner.as_task(1) as model, torch.no_grad():
        told = model(x)
    prediction = learner.predict(x)
    with learner.as_task("infer") as model, torch.no_grad():
        with learner.as_task(1):
            assert torch.equal(model(x), told)
        assert torch.equal(learner.predict(x).output, prediction.output)
        assert torch.equal(model(x), prediction.output)
        with pytest.raises(CuberError, match="copied or saved inside as_task"):
            learner.export(1)
    assert torch.equal(learner.export(1)(x), told)


def test_in_the_middle_of_a_task_the_average_answers() -> None:
    learner = learn(cuber.GPM(heads(3, 3), ema=5.0), [loader(0)])
    learner.begin_task(loader(1), loss_fn)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.5))
    for batch in loader(1):
        optimizer.zero_grad()
        learner.loss(batch).backward()
        optimizer.step()
    x = loader(0)[1][0]
    learner.model.eval()
    with learner.as_task(0) as model, torch.no_grad():
        told = model(x)
    with learner.as_task("infer") as model, torch.no_grad():
        assert torch.equal(model(x), told)
    learner.show_task(0)
    with torch.no_grad():
        assert not torch.allclose(learner.model(x), told)


def test_an_output_may_be_one_number_per_sample() -> None:
    torch.manual_seed(0)
    loaders = [[(x, y.float()) for x, y in loader(task)] for task in range(2)]
    learner = cuber.GPM(nn.Sequential(MLP(8, 16, 1), nn.Flatten(0)))
    for batches in loaders:
        learner.begin_task(batches, nn.functional.mse_loss)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.01))
        learner.loss(batches[0]).backward()
        optimizer.step()
        learner.end_task(batches)
    x = torch.cat([loaders[0][1][0][:2], loaders[1][1][0][:5]])
    with torch.no_grad():
        torch.testing.assert_close(learner.predict(x).output, learner.model(x))


def test_the_model_is_as_before_after_the_block_also_after_an_error() -> None:
    loaders = [loader(task) for task in range(2)]
    learner = learn(cuber.GPM(nn.Linear(8, 3)), loaders)  # the model itself is a protected layer
    x = loaders[0][0][0]
    before, forward = learner.model(x), vars(learner.model)["forward"]
    with learner.as_task("infer") as model:
        model(x)
        with pytest.raises(CuberError, match="another shape"):
            model(x.unsqueeze(2))
        with pytest.raises(CuberError, match="inside as_task"):
            learner.begin_task(loaders[0], loss_fn)
    assert vars(learner.model)["forward"] is forward
    assert torch.equal(learner.model(x), before)
    assert learner.views == 0


def test_bad_use_is_explained_in_one_sentence() -> None:
    learner = cuber.CUBER(heads(3, 3))
    x = loader(0)[0][0]
    for call in (lambda: learner.infer_task(x), lambda: learner.predict(x)):
        with pytest.raises(CuberError, match="no task has been learned yet: call end_task first"):
            call()
    with pytest.raises(CuberError, match="no task has been learned"), learner.as_task("infer"):
        pass
    learn(learner, [loader(0)])
    with pytest.raises(CuberError, match="another shape than those of the learned tasks at layer 'backbone"):
        learner.infer_task(x[:, :5])
    with pytest.raises(CuberError, match="infer_task: the model cannot take these samples: Dimension out of range"):
        learner.infer_task(x[0])
    for wrong in (1, "a", None):
        with pytest.raises(CuberError, match="false_alarms must be a number of at least 0 and below 1, not"):
            learner.infer_task(x, false_alarms=wrong)  # type: ignore[arg-type]
    for value in (torch.nan, torch.inf):
        with pytest.raises(
            CuberError, match=r"infer_task: layer 'backbone.* sees inputs that are not finite: check the"
        ):
            learner.predict(x.clone().fill_(value))
    for odd in (x[:0], x.long(), x.to_sparse()):
        with pytest.raises(CuberError, match=r"(real numbers for each sample|cannot take these samples)"):
            learner.infer_task(odd)
    with pytest.raises(CuberError, match="takes the number of a task, None or 'infer', not 'guess'"):
        learner.as_task("guess")
    plain = learn(cuber.FineTune(heads(3, 3)), [loader(0)])
    with pytest.raises(CuberError, match=r"FineTune keeps no densities .* use GPM, TRGP, CUBER, SoftCUBER or LoRA"):
        plain.infer_task(x)
    learner.detach()
    with pytest.raises(CuberError, match="detached"):
        learner.infer_task(x)


class WithGain(nn.Module):
    """A model with a head per task whose second argument must be given, and a third may be."""

    def __init__(self) -> None:
        super().__init__()
        self.net = heads(3, 3)

    def forward(self, x: Tensor, gain: float, hidden: Tensor | None = None) -> Tensor:
        return gain * self.net(x)


def test_arguments_of_a_call_reach_the_model_as_they_were_given() -> None:
    learner = cuber.GPM(WithGain(), forward=lambda model, batch: loss_fn(model(batch[0], gain=1.0), batch[1]))
    learn(learner, [loader(0), loader(1)])
    x, tasks = mixed([loader(0), loader(1)])
    with learner.as_task(0) as model, torch.no_grad():
        expected = model(x, 1.0)
    with learner.as_task(1) as model, torch.no_grad():
        expected[tasks == 1] = model(x, 1.0)[tasks == 1]
    with learner.as_task("infer") as model, torch.no_grad():
        outputs = [model(x, gain=1.0), model(x, 1.0, None), model(x=x, gain=1.0), model(x, 1.0, hidden=None)]
    for output in [*outputs, learner.predict((x, 1.0)).output, learner.predict({"x": x, "gain": 1.0}).output]:
        torch.testing.assert_close(output, expected)


class MaskedMean(nn.Module):
    """Sequences whose padded positions count for nothing, and a head per task."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 12), MultiHead(nn.Identity(), 12, [3, 3])

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        weights = attention_mask.unsqueeze(2)
        return self.last((self.first(x).relu() * weights).sum(1) / weights.sum(1))


def padded(task: int) -> tuple[dict[str, Tensor], Tensor]:
    """Sequences of a task whose padding is like the other task's inputs, and the labels."""
    generator = torch.Generator().manual_seed(task)
    x = 0.3 * torch.randn(16, 6, 8, generator=generator) + task
    x[:, 3:] = 1 - task
    mask = (torch.arange(6) < 3).float().expand(16, 6)
    return {"x": x, "attention_mask": mask}, torch.randint(3, (16,), generator=generator)


FORMS: dict[str, tuple[Any, Any]] = {
    "a mapping with its targets": (lambda x, y: x | {"y": y}, lambda batch: batch["attention_mask"] > 0),
    "a mapping beside its targets": (lambda x, y: (x, y), lambda batch: batch[0]["attention_mask"] > 0),
    "a tuple": (lambda x, y: (x["x"], x["attention_mask"], y), lambda batch: batch[1] > 0),
}


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_mask_counts_in_every_form_of_batch_and_call(form: str, own: bool) -> None:
    make, mask = FORMS[form]
    if form == "a tuple" and not own:
        mask = lambda batch: batch[1]  # noqa: E731  # by default a tuple has no mask

    def forward(model: nn.Module, batch: Any) -> Tensor:
        if isinstance(batch, dict):
            return loss_fn(model(batch["x"], batch["attention_mask"]), batch["y"])
        *x, y = batch
        return loss_fn(model(**x[0]) if isinstance(x[0], dict) else model(*x), y)

    given = {"mask": mask} if own or form == "a tuple" else {}
    learner = cuber.GPM(MaskedMean(), forward=forward, **given)
    learn(learner, [[make(*padded(task))] * 2 for task in range(2)])  # type: ignore[list-item]
    inputs, _ = padded(1)
    x, attention_mask = inputs.values()
    for samples in (inputs, (x, attention_mask)):
        assert bool((learner.infer_task(samples).probabilities[:, 1] > 0.9).all())
    with learner.as_task(1) as model, torch.no_grad():
        expected = model(**inputs)
    with learner.as_task("infer") as model, torch.no_grad():
        for output in (model(**inputs), model(x, attention_mask), model(x, attention_mask=attention_mask)):
            torch.testing.assert_close(output, expected)


def test_what_a_mask_says_wrongly_is_told_in_the_form_that_it_can_take() -> None:
    learner = learn(cuber.GPM(heads(3, 3), mask=None), [loader(0), loader(1)])
    learner.mask = lambda batch: batch[0][:, 0]
    with pytest.raises(CuberError, match=r"mask must be a tensor of samples x positions, .*has shape \(40,\)"):
        learner.infer_task(loader(0)[0][0])
