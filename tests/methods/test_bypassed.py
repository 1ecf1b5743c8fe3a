"""Layers whose weight is used without calling them: their states can be loaded, and messages name them."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import cuber
from tests.methods.lora import learn, loss_fn


class Net(nn.Module):
    """A transformer of torch, whose attention uses the weight of ``out_proj`` without calling it."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x)[:, 0])


OUTPUT = "encoder.layers.0.self_attn.out_proj"


class Shortcut(nn.Module):
    """A layer, and an embedding, whose weights are used without calling them from some task on."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.calls = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) if self.calls else functional.one_hot(x, 9).float() @ self.words.weight
        x = self.inner(x) if self.calls else functional.linear(x, self.inner.weight, self.inner.bias)
        return self.head(x.relu().mean(1))


def sequences(task: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 5, 8, generator=torch.Generator().manual_seed(task))
    return x, (x[:, 0, 0] > 0).long()


def words(task: int) -> tuple[Tensor, Tensor]:
    x = torch.randint(3 * task, 3 * task + 3, (32, 4), generator=torch.Generator().manual_seed(task))
    return x, (x[:, 0] == x[:, 1]).long()


def lora() -> Any:
    pytest.importorskip("peft")
    torch.manual_seed(0)
    return cuber.LoRA(Net(), rank=1, threshold=0.8)


def test_a_run_of_lora_on_torchs_transformer_is_reopened(tmp_path: Path) -> None:
    tasks = [cuber.Task(str(number), sequences(number), sequences(number)) for number in range(2)]
    stream, learners = cuber.Stream("sequences", tasks, shared_head=True), [lora(), lora()]
    first, again = (cuber.learn(learner, stream, epochs=1, lr=0.1, directory=tmp_path / "run") for learner in learners)
    assert again.accuracy == first.accuracy
    assert learners[1].bypassed == learners[0].bypassed == {OUTPUT}
    assert learners[1].layers.keys() == learners[0].layers.keys()


def test_states_of_before_and_after_a_layer_was_dropped_are_loaded_by_each_learner() -> None:
    learner = lora()
    new = learner.state_dict()
    learn(learner, [sequences(0)])
    learned = copy.deepcopy((learner.state_dict(), learner.model.state_dict()))
    for other in (lora(), learner):
        other.load_state_dict(new)
        assert OUTPUT in other.layers
        assert not other.bypassed
        other.load_state_dict(learned[0])
        other.model.load_state_dict(learned[1])
        assert OUTPUT not in other.layers
        learn(other, [sequences(1)])
        assert other.bypassed == {OUTPUT}
    other = lora()
    other.load_state_dict(learner.state_dict())
    with pytest.raises(cuber.CuberError, match=f"other targets: '{OUTPUT}' is adapted in one of them only"):
        cuber.LoRA(Net(), rank=1, targets=["linear1", "linear2"]).load_state_dict(learner.state_dict())


@pytest.mark.parametrize("method", [cuber.GPM, cuber.TRGP, cuber.OWM])
@pytest.mark.parametrize("in_task", [True, False])
def test_an_earlier_state_protects_again_what_was_dropped_since(method: Any, in_task: bool) -> None:
    torch.manual_seed(0)
    learner = method(Shortcut())
    learn(learner, [words(0)])
    if in_task:
        learner.begin_task([words(1)], loss_fn)
    saved = copy.deepcopy((learner.state_dict(), learner.model.state_dict()))
    if in_task:
        learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        learner.end_task([words(1)])
    names = list(learner.layers), list(learner.row_memory.tables), dict(learner.uncovered_parameters)
    learner.model.calls = False
    learn(learner, [words(2)])
    assert learner.bypassed == {"words", "inner"}
    learner.load_state_dict(learner.state_dict())
    learner.load_state_dict(saved[0])
    learner.model.load_state_dict(saved[1])
    assert not learner.bypassed
    assert (list(learner.layers), list(learner.row_memory.tables)) == names[:2]
    assert learner.uncovered_parameters == names[2]
    assert str(learner.state_dict()["remembered"]) == str(saved[0]["remembered"])


def test_where_all_chosen_layers_are_bypassed_the_error_names_them() -> None:
    pytest.importorskip("peft")
    learner = cuber.LoRA(Net(), rank=1, targets=["out_proj"])
    for _ in range(2):
        with pytest.raises(cuber.CuberError, match=rf"^task 0 .*: it uses the weights of {OUTPUT} without calling .*"):
            learner.begin_task([sequences(0)], loss_fn)


class Branches(nn.Module):
    """A layer for each task."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.branches = nn.Linear(8, 8), nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.classifier, self.task = nn.Linear(8, 2), 0

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.branches[self.task](self.stem(x).relu()).relu())


def test_lora_does_not_warn_of_layers_that_belong_to_another_task() -> None:
    pytest.importorskip("peft")
    torch.manual_seed(0)
    model = Branches()
    learner = cuber.LoRA(model, rank=1, threshold=0.8)
    with warnings.catch_warnings():
        warnings.simplefilter("error", cuber.CuberWarning)
        for model.task in range(2):
            x, y = sequences(model.task)
            learn(learner, [(x[:, 0], y)])
    assert [list(learner.ranks[f"task_{task}"]) for task in range(2)] == [
        ["stem", "branches.0"],
        ["stem", "branches.1"],
    ]
