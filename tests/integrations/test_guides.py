"""The code in the guides to frameworks runs unchanged; a missing framework is one sentence."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from cuber import CuberError
from tests.integrations.small import methods, mlp, same_answers
from tests.loops import learn as learn_in_plain_loop
from tests.loops import loss_fn, same_bits

GUIDES = Path(__file__).parents[2] / "docs"


def code(guide: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (GUIDES / guide).read_text(), re.DOTALL)


def test_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.integrations.test_transformers import bert, sentences

    datasets = [sentences(task) for task in range(2)]
    scope: dict[str, Any] = {"model": bert(), "datasets": datasets, "folder": tmp_path}
    whole, resume, *_ = code("transformers.md")
    exec(whole, scope)
    learner = scope["learner"]
    assert learner.tasks == 2
    scope["model"] = bert()
    exec(resume, scope)
    assert same_bits(scope["model"], learner.model)


def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning.pytorch")
    from tests.integrations.test_lightning import Module, loader_of

    monkeypatch.chdir(tmp_path)  # the guide's Trainer logs to the current directory
    scope: dict[str, Any] = {"loss_fn": loss_fn, "x": torch.ones(1, 6)}
    scope |= {"module": Module(mlp()), "loaders": [loader_of(0), loader_of(1)]}
    whole, resume = code("lightning.md")
    exec(whole, scope)
    learner = scope["learner"]
    assert learner.tasks == 2
    scope |= {"module": Module(mlp()), "checkpoint": scope["trainer"].checkpoint_callback.best_model_path}
    exec(resume, scope)
    assert same_bits(scope["module"].model, learner.model)


def test_avalanche() -> None:
    pytest.importorskip("avalanche")
    from tests.integrations.test_avalanche import TASKS, benchmark

    scope: dict[str, Any] = {"torch": torch, "model": mlp(), "loss_fn": loss_fn, "benchmark": benchmark()}
    (whole,) = code("avalanche.md")
    exec(whole, scope | {"options": {"train_mb_size": 6, "evaluator": None}}, scope)
    assert scope["learner"].tasks == TASKS


@methods
@pytest.mark.parametrize("package", ["accelerate", "lightning.fabric"])
def test_accelerate_and_fabric_learn_what_a_plain_loop_does(package: str, make: Any) -> None:
    pytest.importorskip(package)
    (block,) = [block for block in code("transformers.md") if f"from {package} import" in block]
    ours, plain = make(mlp()), make(mlp())
    for task in range(3):
        x = torch.randn(24, 6, generator=torch.Generator().manual_seed(task)) + task
        loader = torch.utils.data.DataLoader(list(zip(x, (x[:, task] > task).long(), strict=True)), batch_size=6)
        exec(block, {"torch": torch, "learner": ours, "loader": loader, "loss_fn": loss_fn})
        learn_in_plain_loop(plain, loader, lambda parameters: torch.optim.SGD(parameters, lr=0.01))
    assert same_bits(ours.model, plain.model)
    assert same_answers(ours, plain)


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("transformers", ["transformers"]),
        ("lightning", ["lightning.pytorch", "pytorch_lightning"]),
        ("avalanche", ["avalanche.training.plugins"]),
    ],
)
def test_a_missing_package_is_one_sentence(extra: str, packages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for package in packages:
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"cuber.integrations.{extra}", raising=False)
    with pytest.raises(
        CuberError, match=rf"^cuber\.integrations\.{extra} needs pip install 'cuber-learn\[{extra}\]' \("
    ):
        importlib.import_module(f"cuber.integrations.{extra}")
