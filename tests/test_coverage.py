"""Common models are protected nearly as a whole: in a task, where it shows which layers are called in fact."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from benchmarks import coverage as benchmark
from torch import nn

from cuber import GPM
from cuber.core.coverage import Coverage

PLAIN = benchmark.torch_models()
SMALL = ["BERT", "ViT", "GPT-2, classification", "GPT-2, language model", "T5"]
SMALL += ["Llama, classification", "Llama, language model"]


def batch(name: str, task: int) -> dict[str, Any]:
    """Two samples; the words of tasks overlap."""
    generator = torch.Generator().manual_seed(task)
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 32, 32, generator=generator), "labels": torch.tensor([0, 3])}
    words = torch.randint(1 + 20 * task, 40 + 20 * task, (2, 6), generator=generator)
    per_word = name == "T5" or "language model" in name
    return {"input_ids": words, "labels": words if per_word else torch.tensor([1, 2])}


def learn(learner: Any, samples: dict[str, Any]) -> None:
    learner.begin_task([samples])
    optimizer = learner.wrap(torch.optim.AdamW(learner.parameters(), lr=0.01))
    for _ in range(3):
        optimizer.zero_grad()
        learner.loss(samples).backward()
        optimizer.step()
    learner.end_task([samples])


def shares(learner: Any) -> tuple[float, float]:
    """What is protected, and what is kept per task."""
    found = Coverage.of(learner)
    assert found is not None
    return found.protected / found.trained, found.per_task / found.trained


@pytest.mark.parametrize("name", PLAIN)
def test_models_of_torch_are_covered(name: str) -> None:
    assert sum(shares(GPM(PLAIN[name]()))) == 1


@pytest.mark.parametrize("name", SMALL)
def test_at_least_95_percent_of_small_transformers_is_protected_in_a_task(name: str) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    learner = GPM(benchmark.transformers_models()[name](), forward=lambda model, samples: model(**samples).loss)
    learner.begin_task([batch(name, 0)])
    protected, per_task = shares(learner)
    assert protected >= 0.95
    assert protected + per_task > (0.97 if name == "ViT" else 0.999)
    assert not learner.bypassed


@pytest.mark.parametrize("name", ["GPT-2, language model", "T5"])
def test_layers_and_embeddings_keep_what_the_first_task_needs(name: str) -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = benchmark.transformers_models()[name]()
    learner = GPM(model, forward=lambda model, samples: model(**samples).loss)
    learn(learner, batch(name, 0))
    before, pools = copy.deepcopy(model.state_dict()), {n: memory.basis for n, memory in learner.memory.items()}
    weights = {n: layer.matrix().detach().clone() for n, layer in learner.layers.items()}
    learn(learner, batch(name, 1))
    moved = {n: layer.matrix().detach() - weights[n] for n, layer in learner.layers.items()}
    assert all(float((moved[n] @ pools[n]).norm()) < 1e-4 * float(weights[n].norm()) for n in pools)
    assert all(change.norm() > 0 for change in moved.values())
    (shared,) = [key for key in ("transformer.wte.weight", "shared.weight") if key in before]
    table = model.state_dict()[shared]
    old = batch(name, 0)["input_ids"].unique()
    assert torch.equal(table[old], before[shared][old])
    assert not torch.equal(table, before[shared])


def test_the_table_names_what_is_not_covered() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.RNNCell(6, 2, bias=False))
    _, line = benchmark.table([("example", lambda: model)])
    assert line.split() == [
        "example",
        "44",
        "45.5",
        "%",
        "18.2",
        "%",
        "36.4",
        "%",
        "no",
        "rule",
        "for",
        "RNNCell",
        "36.4",
        "%",
    ]
