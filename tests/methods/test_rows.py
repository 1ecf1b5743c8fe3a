"""Embeddings: the rows that old tasks have used stay, to the bit, whatever the optimizer does; the others learn."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, GPM, HAT, OWM, TRGP, CuberError, SoftCUBER
from cuber.layers import UsedRows, scan
from tests.loops import OPTIMIZERS, learn, logits, loss_fn, sgd, train

METHODS: dict[str, Any] = {"GPM": GPM, "TRGP": TRGP, "CUBER": CUBER, "SoftCUBER": SoftCUBER, "OWM": OWM, "HAT": HAT}
Loader = list[tuple[Tensor, Tensor]]


class Reader(nn.Module):
    """Words and their positions, and a layer on their mean."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(12, 6, **options), nn.Embedding(5, 6)
        self.inner, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        both = self.words(x) + self.positions(torch.arange(x.shape[1]))
        return self.out(self.inner(both.mean(1)).relu())


class LanguageModel(nn.Module):
    """An embedding whose weight is also the last layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.out = nn.Embedding(12, 6), nn.Linear(6, 6), nn.Linear(6, 12)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(self.words(x).mean(1)).relu())


class Scaled(nn.Embedding):
    """As in several models of transformers: more than a lookup."""

    def forward(self, input: Tensor) -> Tensor:
        return 3 * super().forward(input)


def words(first: int, last: int, seed: int = 0, length: int = 4) -> Loader:
    """Samples of words from first to last, each of them at least once."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(first, last + 1, (16, length), generator=generator)
    x.view(-1)[: last - first + 1] = torch.arange(first, last + 1)
    return list(zip(x.split(4), torch.randint(3, (16,), generator=generator).split(4), strict=True))


def model(build: Any = Reader) -> Any:
    torch.manual_seed(0)
    return build()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("method", METHODS)
def test_rows_of_old_tasks_stay_and_others_learn(method: str, optimizer: str) -> None:
    learner = METHODS[method](model())
    learn(learner, words(0, 4), OPTIMIZERS[optimizer])
    before = learner.model.words.weight.detach().clone()
    learn(learner, words(3, 8, seed=1), OPTIMIZERS[optimizer], epochs=2)
    change = (learner.model.words.weight - before).norm(dim=1)
    assert not change[:5].any()
    assert (change[5:9] > 1e-4).all()
    assert learner.rows["words"].nonzero().flatten().tolist() == list(range(9))
    assert learner.rows["positions"].tolist() == [True] * 4 + [False]
    for line in ("words: 9 of 12 rows protected", "positions: 4 of 5 rows protected"):
        assert line in repr(learner)
    assert learner.memory_bytes()["rows"] == 12 + 5


@pytest.mark.parametrize("method", [GPM, OWM])
def test_momentum_of_the_last_task_moves_no_row(method: Any) -> None:
    learner = method(model())
    optimizer = torch.optim.SGD(learner.model.parameters(), lr=0.05, momentum=0.9)
    for task, last in enumerate((4, 8)):
        loader = words(0, last, seed=task)
        learner.begin_task(loader, loss_fn)
        before = learner.model.words.weight.detach().clone()
        train(learner, learner.wrap(optimizer), loader)
        learner.end_task(loader)
    assert torch.equal(learner.model.words.weight[:5], before[:5])


def test_all_data_of_a_task_counts_and_not_only_the_samples_of_the_bases() -> None:
    learner = GPM(model(), samples=4)
    learn(learner, words(0, 11))
    assert learner.rows["words"].all()


def test_old_answers_stay_while_new_words_are_learned() -> None:
    learner = GPM(model(), threshold=1.0)
    first = words(0, 3, length=2)[:1]
    learn(learner, first)
    before = logits(learner, 0, first[0][0])
    learn(learner, words(4, 11, seed=1), OPTIMIZERS["AdamW"], epochs=5)
    assert torch.allclose(logits(learner, 0, first[0][0]), before, atol=0.01)
    assert not torch.allclose(logits(learner, 0, words(4, 11, seed=1)[0][0]), torch.zeros(3), atol=0.01)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_weight_that_is_tied_to_a_layer_is_held_in_rows_and_in_directions(optimizer: str) -> None:
    learner = TRGP(model(LanguageModel), eps1=0.0, threshold=0.9)
    learn(learner, words(0, 4), OPTIMIZERS[optimizer])
    weight = learner.model.words.weight
    before, basis = weight.detach().clone(), learner.memory["out"].basis[:-1].clone()
    assert 0 < basis.shape[1] < 6
    loader = words(3, 8, seed=1)
    learner.begin_task(loader, loss_fn)
    pool = learner.memory["out"].basis
    start = learner.layers["out"].matrix().detach().clone()
    train(learner, learner.wrap(OPTIMIZERS[optimizer](learner.parameters())), loader, epochs=2)
    moved = learner.layers["out"].matrix().detach() - start
    assert not moved[:5, :-1].any()
    assert (moved @ pool).norm() < 1e-5 * start.norm()
    assert (weight - before)[5:].norm() > 1e-3
    learner.end_task(loader)


def test_a_subclass_that_computes_more_than_a_lookup_is_covered() -> None:
    network = model()
    network.words = Scaled(12, 6)
    learner = GPM(network)
    learn(learner, words(2, 6))
    assert learner.rows["words"].nonzero().flatten().tolist() == [2, 3, 4, 5, 6]


def test_padding_keeps_its_row() -> None:
    learner = GPM(model(lambda: Reader(padding_idx=0)))
    for task in range(2):
        learn(learner, words(0, 4 + task, seed=task), OPTIMIZERS["AdamW"])
    assert not learner.model.words.weight[0].any()


@pytest.mark.parametrize("call", [{"input": 0, "weight": 1}, {"weight": 1}, {}])
def test_lookups_are_noticed_however_they_are_called(call: dict[str, int]) -> None:
    table, bag = nn.Embedding(6, 2), nn.EmbeddingBag(5, 2)
    both = torch.tensor([1, 4]), table.weight
    with UsedRows(scan(nn.ModuleList([table, bag])).tables.values()) as used:
        given = [value for i, value in enumerate(both) if i not in call.values()]
        torch.nn.functional.embedding(*given, **{key: both[i] for key, i in call.items()})
        bag(torch.tensor([3, 3, 0]), torch.tensor([0, 2]))
    assert used.rows["0"].nonzero().flatten().tolist() == [1, 4]
    assert used.rows["1"].nonzero().flatten().tolist() == [0, 3]


@pytest.mark.parametrize(
    ("indices", "used"),
    [
        ([[1, 2, 0], [3, 0, 0]], [1, 2, 3]),  # as the mask
        ([1, 2, 0, 3, 0, 0], [1, 2, 3]),  # all positions of all samples, one after another
        ([[4, 5, 6]], [4, 5]),  # positions, the same for all samples: none has the last
        ([4, 5, 6], [4, 5]),
        ([4, 5], [4, 5]),  # one for each sample
        ([[4, 5], [5, 6], [6, 0]], [0, 4, 5, 6]),  # positions first
        ([[4, 5, 6, 7], [0, 4, 5, 6]], [0, 4, 5, 6, 7]),  # another sequence
    ],
)
def test_padding_uses_no_row(indices: Any, used: list[int]) -> None:
    table, bag = nn.Embedding(8, 2), nn.EmbeddingBag(8, 2)
    with UsedRows(scan(nn.ModuleList([table, bag])).tables.values()) as rows:
        rows.real = torch.tensor([[True, True, False], [True, False, False]])
        table(torch.tensor(indices))
        bag(torch.tensor([[1, 2, 0], [3, 0, 0]]))
    assert rows.rows["0"].nonzero().flatten().tolist() == used
    assert rows.rows["1"].nonzero().flatten().tolist() == [0, 1, 2, 3]  # a bag adds up all of it


@pytest.mark.parametrize(
    ("samples", "used"),
    [
        (3, [4, 5, 6]),  # as many samples as positions: one for each sample, perhaps
        (1, [4, 5]),
    ],
)
def test_one_dimension_that_may_be_that_of_samples_is_taken_whole(samples: int, used: list[int]) -> None:
    table = nn.Embedding(8, 2)
    with UsedRows(scan(nn.ModuleList([table])).tables.values()) as rows:
        rows.real = torch.tensor([[True, True, False]] * samples)
        table(torch.tensor([4, 5, 6]))
    assert rows.rows["0"].nonzero().flatten().tolist() == used


@pytest.mark.parametrize("method", ["CUBER", "OWM"])
def test_a_task_goes_on_from_a_saved_state_with_the_same_bits(method: str) -> None:
    def begun() -> Any:
        learner = METHODS[method](model())
        learn(learner, words(0, 4))
        learner.begin_task(words(3, 8, seed=1), loss_fn)
        return learner

    learner, adam = begun(), OPTIMIZERS["AdamW"]
    saved, weights = learner.state_dict(), copy.deepcopy(learner.model.state_dict())
    resumed = METHODS[method](model())
    resumed.model.load_state_dict(weights)
    resumed.load_state_dict(saved)
    resumed.resume_task(loss_fn)
    for one in (learner, resumed):
        train(one, one.wrap(adam(one.parameters())), words(3, 8, seed=1))
        one.end_task(words(3, 8, seed=1))
    assert torch.equal(learner.model.words.weight, resumed.model.words.weight)
    assert torch.equal(learner.model.words.weight[:5], weights["words.weight"][:5])
    assert torch.equal(learner.rows["words"], resumed.rows["words"])


def test_an_embedding_that_was_frozen_while_tasks_were_learned_cannot_train_later() -> None:
    learner = GPM(model())
    learner.model.words.requires_grad_(False)
    fresh = GPM(copy.deepcopy(learner.model))
    learn(fresh, words(0, 4))
    fresh.model.words.requires_grad_(True)
    with pytest.raises(CuberError, match="'words' was frozen while earlier tasks were learned"):
        fresh.begin_task(words(0, 4), loss_fn)
    state = learner_state_with_rows()
    with pytest.raises(CuberError, match="'words' is protected in this state but frozen here"):
        fresh.load_state_dict(state)


def learner_state_with_rows() -> Any:
    learner = GPM(model())
    learn(learner, words(0, 4), sgd)
    return learner.state_dict()


def test_an_exported_task_has_a_scaled_layer_and_the_embedding_that_it_was_tied_to() -> None:
    learner = TRGP(model(LanguageModel), eps1=0.0)
    for task in range(2):
        learn(learner, words(0, 4 + task, seed=task))
    x = words(0, 5)[0][0]
    for task in range(2):
        exported = learner.export(task)
        assert torch.allclose(exported(x), logits(learner, task, x), atol=1e-6)
        assert torch.equal(exported.words.weight, learner.model.words.weight)
    assert learner.memory["out"].scalings[1] is not None
    assert not torch.equal(exported.out.weight, exported.words.weight)


class TiedInside(nn.Module):
    """An embedding whose weight is also that of a layer in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.out = nn.Embedding(12, 6), nn.Linear(6, 12), nn.Linear(12, 3)
        self.inner.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.inner(self.words(x).mean(1)).relu())


def test_an_exported_task_has_a_gated_layer_and_the_embedding_that_it_was_tied_to() -> None:
    learner = HAT(model(TiedInside))
    for task in range(2):
        learn(learner, words(0, 4 + task, seed=task))
    x = words(0, 5)[0][0]
    for task in range(2):
        exported = learner.export(task)
        assert torch.allclose(exported(x), logits(learner, task, x), atol=1e-6)
        assert not torch.equal(exported.inner.weight, exported.words.weight)


@pytest.mark.parametrize("network", [nn.LSTM(4, 3), nn.MultiheadAttention(4, 2)], ids=["lstm", "attention"])
def test_a_module_with_several_weights_refuses_to_be_traced_with_a_learner(network: nn.Module) -> None:
    x = torch.randn(2, 3, 4)
    inputs = (x, x, x) if isinstance(network, nn.MultiheadAttention) else (x,)
    GPM(network)
    with pytest.raises(CuberError, match=r"learner\.export"):
        torch.jit.trace(network, inputs)
