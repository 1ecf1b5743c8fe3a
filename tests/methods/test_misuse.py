"""Things people do with a learner that are easily done wrong: right, or a sentence, and never wrong in silence."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from cuber import AGEM, CUBER, ER, EWC, GPM, HAT, TRGP, CuberError, CuberWarning, FineTune, MultiHead
from cuber.core import batches as batch_tools
from tests.loops import Watch, detach, learn, logits, loss_fn, sgd, train, weights
from tests.models import CASES

CASE = CASES["mlp"]


def learned(kind: type = TRGP, tasks: int = 2, **settings: Any) -> Any:
    learner = kind(CASE.model(), **settings)
    for task in range(tasks):
        learn(learner, CASE.loader(task))
    return learner


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.needs_dtype(torch.bfloat16)
def test_a_step_inside_an_autocast_protects_all_the_same(make: Any) -> None:
    learner = learned(GPM, 1, threshold=0.8)
    learner.begin_task(CASE.loader(1), loss_fn)
    watch = Watch.over(learner)
    optimizer = learner.wrap(make(learner.parameters(), lr=0.01))
    with torch.autocast("cpu", torch.bfloat16):
        train(learner, optimizer, CASE.loader(1), epochs=4)
    watch.held()
    assert watch.moved() > 1e-3


@pytest.mark.parametrize("verb", ["begin_task", "end_epoch", "end_task", "load_state_dict"])
def test_tasks_do_not_begin_or_end_while_another_is_shown(verb: str) -> None:
    learner = learned()
    if verb.startswith("end"):
        learner.begin_task(CASE.loader(2), loss_fn)
        train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1)), CASE.loader(2))
    arguments = {
        "begin_task": (CASE.loader(2), loss_fn),
        "end_epoch": (),
        "end_task": (CASE.loader(2),),
        "load_state_dict": (learner.state_dict(),),
    }
    with learner.as_task(0), pytest.raises(CuberError, match=f"{verb} inside as_task"):
        getattr(learner, verb)(*arguments[verb])
    if verb == "end_task":
        learner.end_task(CASE.loader(2))
    assert learner.tasks == 2 + (verb == "end_task")


def test_a_learner_that_has_let_go_answers_for_no_task() -> None:
    learner = learned()
    state = learner.state_dict()
    detach(learner)
    with pytest.raises(CuberError, match="detach"), learner.as_task(0):
        pass
    with pytest.raises(CuberError, match="detach"):
        learner.load_state_dict(state)


@pytest.mark.parametrize("task", [0.0, "0", [0], True])
def test_a_task_is_a_number_and_a_wrong_one_leaves_nothing_behind(task: Any) -> None:
    learner, x = learned(), CASE.inputs(0, 4)
    before, bare = logits(learner, 0, x), weights(learner)
    with pytest.raises(CuberError, match="number of a task"), learner.as_task(task):
        pass
    assert torch.equal(logits(learner, 0, x), before)
    assert all(torch.equal(now, bare[name]) for name, now in weights(learner).items())


@pytest.mark.parametrize("verb", ["begin_task", "end_task"])
def test_without_gradients_there_is_nothing_to_remember(verb: str) -> None:
    learner = learned(CUBER, 1)
    if verb == "end_task":
        learner.begin_task(CASE.loader(1), loss_fn)
        train(learner, learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1)), CASE.loader(1))
    with torch.inference_mode(), pytest.raises(CuberError, match="needs gradients"):
        getattr(learner, verb)(CASE.loader(1), *([loss_fn] if verb == "begin_task" else []))


def test_a_snapshot_brings_the_scalings_back_too() -> None:
    learner = learned(TRGP, 1, eps1=0.0)
    learner.begin_task(CASE.loader(1), loss_fn)
    optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.5))
    train(learner, optimizer, CASE.loader(1))
    snapshot, x = learner.snapshot(), CASE.inputs(1, 5)
    best = logits(learner, 1, x)
    train(learner, optimizer, CASE.loader(1))
    assert not torch.equal(logits(learner, 1, x), best)
    snapshot.restore()
    assert torch.equal(logits(learner, 1, x), best)
    learner.end_task(CASE.loader(1))


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda learner: pickle.loads(pickle.dumps(learner))])
def test_a_copy_of_a_learner_holds_the_copy_of_the_model(copied: Any) -> None:
    learner = learned(TRGP, 1, eps1=0.0)
    learner.begin_task(CASE.loader(1), loss_fn)
    learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
    twin = copied(learner)
    with pytest.raises(CuberError, match="has a learner already"):
        GPM(twin.model)
    train(twin, twin.wrap(torch.optim.SGD(twin.parameters(), lr=0.1)), CASE.loader(1))
    twin.end_task(CASE.loader(1))
    assert (twin.tasks, learner.tasks) == (2, 1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("kind", [FineTune, GPM])
def test_a_learner_is_not_copied_while_another_task_is_shown(kind: type, copied: Any) -> None:
    learner = learned(kind, 1)
    with learner.as_task(0), pytest.raises(CuberError, match="copying or saving a learner inside as_task"):
        copied(learner)
    learn(copy.deepcopy(learner), CASE.loader(1))


def test_two_optimizers_may_share_weights_and_scalings_between_them() -> None:
    learner = learned(TRGP, 1, eps1=0.0)
    learner.begin_task(CASE.loader(1), loss_fn)
    named = dict(learner.named_parameters())
    scalings = [parameter for name, parameter in named.items() if ".scaling." in name]
    weights = [parameter for name, parameter in named.items() if ".scaling." not in name]
    with pytest.raises(CuberError, match="wrap the one that has them first"):
        learner.wrap(torch.optim.SGD(weights, lr=0.1))
    learner.wrap(torch.optim.Adam(scalings, lr=0.01))
    learner.wrap(torch.optim.SGD(weights, lr=0.1))


def test_a_loader_that_does_not_shuffle_is_worth_a_word_where_it_is_not_read_to_its_end() -> None:
    data = TensorDataset(torch.randn(40, 8), torch.zeros(40, dtype=torch.long))
    learner = GPM(CASE.model(), samples=10)
    with pytest.warns(CuberWarning, match="only the first 10 of 40 samples"):
        learner.begin_task(DataLoader(data, batch_size=5), loss_fn)


def test_a_loader_that_shuffles_by_its_batch_sampler_is_not_warned_of() -> None:
    """As those of Hugging Face's Trainer do: ``loader.sampler`` is then sequential, and not used."""
    data = TensorDataset(torch.randn(40, 8), torch.zeros(40, dtype=torch.long))
    shuffled = DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 5, drop_last=False))
    assert isinstance(shuffled.sampler, SequentialSampler)
    GPM(CASE.model(), samples=10).begin_task(shuffled, loss_fn)
    ordered = DataLoader(data, batch_sampler=BatchSampler(SequentialSampler(data), 5, drop_last=False))
    with pytest.warns(CuberWarning, match="only the first 10 of 40 samples"):
        GPM(CASE.model(), samples=10).begin_task(ordered, loss_fn)


def test_normalization_that_somebody_holds_in_evaluation_mode_keeps_its_statistics() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    learner = GPM(model)
    learn(learner, CASE.loader(0))
    model[1].eval()
    before = model[1].running_mean.clone()
    learner.begin_task(CASE.loader(1), loss_fn)
    assert torch.equal(model[1].running_mean, before)


@pytest.mark.parametrize("loader", [None, 5])
def test_what_is_no_loader_is_told_so(loader: Any) -> None:
    with pytest.raises(CuberError, match="as a loader"):
        FineTune(CASE.model()).begin_task(loader, loss_fn)


@pytest.mark.parametrize("classes", [5, [2, -1], [2.5]])
def test_heads_need_a_number_of_classes_each(classes: Any) -> None:
    with pytest.raises(CuberError, match="number of classes of every task"):
        MultiHead(nn.Flatten(), 8, classes)


def test_a_state_that_is_none_or_not_whole_is_refused() -> None:
    learner = CUBER(CASE.model())
    for state in (None, {}, {"method": "CUBER"}):
        with pytest.raises(CuberError, match="this state"):
            learner.load_state_dict(state)  # type: ignore[arg-type]


def test_a_batch_counts_by_its_first_tensor_with_a_length_and_stays_of_its_kind() -> None:
    class Named(dict):
        """As tokenizers give them."""

    batch = Named(temperature=torch.tensor(1.0), x=torch.zeros(7, 2))
    assert batch_tools.size(batch) == 7
    assert isinstance(batch_tools.first(batch, 3), Named)
    assert batch_tools.size(batch_tools.first(batch, 3)) == 3
    assert len(batch["x"]) == 7


@pytest.mark.parametrize("kind", [GPM, TRGP, CUBER, HAT])
def test_a_snapshot_of_another_task_is_neither_taken_nor_restored(kind: type) -> None:
    learner = kind(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    best = learner.snapshot()
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(0))
    best.take()
    learner.end_task(CASE.loader(0))
    before = weights(learner)
    for _ in range(2):
        for act in (best.take, best.restore):
            with pytest.raises(CuberError, match="snapshot is of another task"):
                act()
        assert all(torch.equal(now, before[name]) for name, now in weights(learner).items())
        if learner.task is None:
            learner.begin_task(CASE.loader(1), loss_fn)


def test_a_snapshot_outlives_the_freezing_of_a_layer() -> None:
    learner = GPM(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    best, before = learner.snapshot(), weights(learner)
    train(learner, learner.wrap(sgd(learner.parameters())), CASE.loader(0))
    next(iter(learner.layers.values())).modules[0].requires_grad_(False)
    best.restore()
    assert all(torch.equal(now, before[name]) for name, now in weights(learner).items())


class Uncounted(IterableDataset[Any]):
    """Samples that nobody has counted."""

    def __iter__(self) -> Iterator[Any]:
        for x, y in CASE.loader(0):
            yield from zip(x, y, strict=True)


@pytest.mark.parametrize("kind", [FineTune, GPM, CUBER, EWC, ER])
def test_a_loader_that_cannot_say_how_long_it_is_will_do(kind: type) -> None:
    loader: Any = DataLoader(Uncounted(), batch_size=8)
    learner = kind(CASE.model())
    learn(learner, loader)
    assert learner.steps_per_epoch is None
    assert learner.tasks == 1


def test_hat_asks_how_many_steps_there_are_where_the_loader_cannot_say() -> None:
    learner = HAT(CASE.model())
    with pytest.raises(CuberError, match="steps="):
        learner.begin_task(DataLoader(Uncounted(), batch_size=8), loss_fn)
    learner.begin_task(DataLoader(Uncounted(), batch_size=8), loss_fn, steps=4)


@pytest.mark.parametrize("kind", [ER, AGEM])
def test_sparse_gradients_are_refused_by_those_who_mix_gradients(kind: type) -> None:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(8, 3))
    loader = [(torch.randint(9, (6, 2)), torch.randint(3, (6,)))]
    with pytest.raises(CuberError, match=r"those of '0' are sparse: make that layer with sparse=False"):
        kind(model).begin_task(loader, loss_fn)


@pytest.mark.parametrize("late", [False, True])
def test_thawing_what_old_tasks_need_is_worth_a_word(late: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    learner = GPM(model, norm_parameters="shared")
    learn(learner, CASE.loader(0))
    learner.begin_task(CASE.loader(1), loss_fn)
    sentence = r"'1.weight' \(and 1 more\) was frozen because it belongs to another task"
    if late:
        learner.wrap(sgd(learner.parameters()))
    model.requires_grad_(True)
    with pytest.warns(CuberWarning, match=sentence):
        learner.end_task(CASE.loader(1)) if late else learner.wrap(sgd(learner.parameters()))


class Remembering(nn.Module):
    """Puts another tensor in its buffer's place at every batch, as models do that average what they see."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.layer(x - self.mean)


def test_a_snapshot_knows_tensors_by_name() -> None:
    learner = GPM(Remembering())
    learner.begin_task(CASE.loader(0), loss_fn)
    optimizer = learner.wrap(sgd(learner.parameters()))
    best = learner.snapshot()
    train(learner, optimizer, CASE.loader(0))
    best.take()
    x = CASE.inputs(0, 5)
    expected = learner.model.eval()(x)
    train(learner, optimizer, CASE.loader(0))
    assert not torch.equal(learner.model.eval()(x), expected)
    best.restore()
    assert torch.equal(learner.model.eval()(x), expected)


def test_a_module_with_a_mark_of_its_own_is_not_taken_for_one_with_sparse_gradients() -> None:
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
    model.sparse = True  # type: ignore[assignment]
    learner = ER(model)
    learn(learner, CASE.loader(0))
    assert learner.tasks == 1
