"""How forward passes are computed: what is asked for is what is done, by run and by resumed run, or it is said."""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cuber
from cuber.cli.main import main
from cuber.errors import CuberError
from cuber.training import RunDirectory, Stopped
from cuber.training.forward import autocast, compiling
from tests.training import small
from tests.training.test_directory import StopAt, figures, learn

COMPILER = shutil.which(os.environ.get("CXX", "g++"))
BF16, COMPILED = {"precision": "bf16"}, {"compile": True}
STEP, VALIDATION, TEST = 4, 20, 30
"""Samples in each batch of the steps and the tests; the learner's own looks have others."""


@pytest.fixture
def quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of torch.compile but for the C++."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


@pytest.fixture
def broken_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(*_: Any) -> Any:
        raise OSError("no compiler\nbut a long story")

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))


def same_when_stopped(tmp_path: Path, **how: Any) -> cuber.Result:
    """A run that is stopped and goes on ends with the same bits as one that is not."""
    whole = learn(tmp_path / "whole", model=(undisturbed := small.model_with_norm()), **how)
    with pytest.raises(Stopped):
        learn(RunDirectory(tmp_path / "run", loggers=[StopAt(3)]), **how)
    result = learn(tmp_path / "run", model=(resumed := small.model_with_norm()), **how)
    assert figures(result) == figures(whole)
    for name, tensor in undisturbed.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name])
    return whole


# Precision


def dtypes_seen(**how: Any) -> dict[int, set[torch.dtype]]:
    """What the model answered in, by the size of the batch."""
    seen: dict[int, set[torch.dtype]] = {}

    def note(module: nn.Module, arguments: tuple[Tensor], output: Tensor) -> None:
        seen.setdefault(len(output), set()).add(output.dtype)

    model = small.model()
    model.register_forward_hook(note)
    learner = cuber.CUBER(model, task_inference=False)  # a batch whose tasks are inferred is answered in parts
    cuber.learn(learner, small.stream(), epochs=1, lr=0.1, batch_size=STEP, patience=1, **how)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    return seen


@pytest.mark.needs_dtype(torch.bfloat16)
def test_steps_and_tests_are_in_the_precision_asked_for_and_the_weights_are_not() -> None:
    for how, dtype in (({}, torch.float32), (BF16, torch.bfloat16)):
        seen = dtypes_seen(**how)
        assert [seen.pop(size) for size in (STEP, VALIDATION, TEST)] == [{dtype}] * 3
        assert set.union(*seen.values()) == {torch.float32}, "a learner looks at the data in full precision"


@pytest.mark.needs_dtype(torch.bfloat16)
def test_old_tasks_are_protected_in_full_precision_all_the_same() -> None:
    learner = cuber.GPM(small.model(), threshold=0.8)
    before: dict[str, Tensor] = {}

    def first_task_is_over(moment: Any) -> None:
        if moment.task == 0:
            before.update({name: layer.matrix().detach().clone() for name, layer in learner.layers.items()})

    cuber.learn(learner, small.stream(2), **small.FAST, **BF16, progress=first_task_is_over)
    for name, layer in learner.layers.items():
        pool = learner.memory[name]
        change = layer.matrix().detach() - before[name]
        assert change.norm() > 1e-3
        assert (change @ pool.basis_of(0)).norm() < 1e-5 * before[name].norm()


@pytest.mark.needs_dtype(torch.bfloat16)
def test_a_run_in_bf16_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    in_bf16 = same_when_stopped(tmp_path, **BF16)
    assert in_bf16.history[0][0].train_loss != learn(None).history[0][0].train_loss


def test_where_torch_has_no_autocast_it_is_said() -> None:
    with pytest.raises(CuberError, match="precision 'bf16' cannot work on meta: "):
        autocast("bf16", torch.device("meta"))


# Compiled


@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs a C++ compiler, and there is none")
def test_compiled_it_learns_the_same(tmp_path: Path) -> None:
    plain, compiled = (
        cuber.learn(cuber.CUBER(model, eps1=0.0), small.stream(2), **{**small.FAST, "epochs": 2}, **how)
        for model, how in ((small.model(), {}), (small.model(), COMPILED))
    )
    for one, other in zip(plain.history, compiled.history, strict=True):
        assert [epoch.train_loss for epoch in one] == pytest.approx([epoch.train_loss for epoch in other], abs=1e-5)


@pytest.mark.usefixtures("quick_compiler")
def test_a_compiled_run_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    same_when_stopped(tmp_path, **COMPILED)


@pytest.mark.usefixtures("quick_compiler")
def test_there_may_be_more_tasks_than_torch_compiles_one_function_for() -> None:
    learner = cuber.CUBER(small.model(), eps1=0.0)
    with torch._dynamo.config.patch(cache_size_limit=1, fail_on_cache_limit_hit=True):
        cuber.learn(learner, small.stream(), epochs=1, lr=0.1, batch_size=STEP, **COMPILED)


@pytest.mark.usefixtures("quick_compiler")
def test_a_model_that_is_a_protected_layer_itself_is_given_back() -> None:
    model = nn.Linear(8, 3)
    learner = cuber.GPM(model)
    forward = model.forward
    cuber.learn(learner, small.stream(2, shared_head=True), epochs=1, lr=0.1, **COMPILED)
    assert model.forward is forward
    learner.detach()
    assert "forward" not in vars(model)


def test_batches_that_mix_tasks_are_not_compiled() -> None:
    with pytest.raises(CuberError, match="compile does not work with Multitask and a head for each task"):
        cuber.learn(cuber.Multitask(small.model()), small.stream(), **small.FAST, **COMPILED)


@pytest.mark.usefixtures("broken_compiler")
def test_where_nothing_can_be_compiled_nothing_is_trained(tmp_path: Path) -> None:
    model = small.model_with_norm()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CuberError, match=r"\(torch.compile: OSError: no compiler\): install a C\+\+ compiler"):
        learn(tmp_path / "run", model=model, **COMPILED)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert "forward" not in vars(model)
    assert not (tmp_path / "run").exists()


def test_an_error_of_the_compiler_without_a_message_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError

    monkeypatch.setattr(torch, "compile", fail)
    with pytest.raises(CuberError, match=r"\(torch.compile: RuntimeError\): install"):
        compiling(small.model())


@pytest.mark.usefixtures("broken_compiler")
def test_the_command_line_says_so_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        main(["run", "split-digits", "--compile", "--quiet"])
    captured = capsys.readouterr()
    assert (exit.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert captured.err.startswith("cuber: compile does not work here")


# What a run directory says


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        pytest.param(
            BF16,
            "training.precision was 'float32' and is now 'bf16'",
            marks=pytest.mark.needs_dtype(torch.bfloat16),
        ),
        (COMPILED, "training.compile was False and is now True"),
    ],
)
def test_a_run_does_not_go_on_in_another_way(tmp_path: Path, how: Any, sentence: str) -> None:
    with pytest.raises(Stopped):
        learn(RunDirectory(tmp_path, loggers=[StopAt(1)]))
    with pytest.raises(CuberError, match=f"another configuration: {sentence};"):
        learn(tmp_path, **how)
    learn(tmp_path)
