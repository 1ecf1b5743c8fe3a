"""Layers whose weight is used without calling them: their states can be loaded, and messages name them."""

from __future__ import annotations

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


def sequences(task: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(32, 5, 8, generator=torch.Generator().manual_seed(task))
    return x, (x[:, 0, 0] > 0).long()


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


def test_other_targets_are_refused_although_bypassed_layers_may_be_missing() -> None:
    learner = lora()
    learn(learner, [sequences(0)])
    with pytest.raises(cuber.CuberError, match=f"other targets: '{OUTPUT}' is adapted in one of them only"):
        cuber.LoRA(Net(), rank=1, targets=["linear1", "linear2"]).load_state_dict(learner.state_dict())


def test_where_all_chosen_layers_are_bypassed_the_error_names_them() -> None:
    pytest.importorskip("peft")
    learner = cuber.LoRA(Net(), rank=1, targets=["out_proj"])
    for _ in range(2):
        with pytest.raises(cuber.CuberError, match=rf"^task 0 .*: it uses the weights of {OUTPUT} without calling .*"):
            learner.begin_task([sequences(0)], loss_fn)


class Shortcut(nn.Module):
    """A layer whose weight is used without calling it from some task on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.calls = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        x = self.inner(x) if self.calls else functional.linear(x, self.inner.weight, self.inner.bias)
        return self.head(x.relu())


@pytest.mark.parametrize("method", [cuber.GPM, cuber.CUBER, cuber.SoftCUBER, cuber.OWM, cuber.HAT])
def test_a_layer_that_a_later_task_bypasses_stops_no_method(method: Any) -> None:
    torch.manual_seed(0)
    learner = method(Shortcut())
    for task in range(3):
        x, y = sequences(task)
        learn(learner, [(x[:, 0], y)])
        learner.model.calls = False
    assert learner.bypassed == {"inner"}
    learner.load_state_dict(learner.state_dict())
    assert learner.tasks == 3


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
