"""Looking at the theorems' conditions: it changes nothing, sees what the learner saw, and survives a stop."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import cuber
from cuber.cli.main import main
from cuber.core.batches import Batch
from cuber.experiments.results import load
from cuber.subspace import NO_FORGETTING
from cuber.training import RunDirectory, Stopped, TheoryRecorder
from cuber.training.theory_recorder import curvatures
from tests.training import small
from tests.training.test_directory import Noisy, StopAt, figures


class Looking(TheoryRecorder):
    """Also keeps the learner's own gradients and curvatures, for an oracle."""

    def __init__(self, learner: cuber.Method) -> None:
        super().__init__(learner)
        self.first: list[dict[str, torch.Tensor]] = []
        self.kept: list[dict[str, torch.Tensor]] = []
        self.weights: list[dict[str, torch.Tensor]] = []
        """When a task began, when it had been learnt, when the next one began, ..."""

    def began(self, sample: list[Batch]) -> None:
        super().began(sample)
        with self.learner.as_task(None):
            self.first.append(self.learner.mean_gradients(sample))
        self._weigh()

    def ending(self, loader: Any) -> None:
        super().ending(loader)
        self.kept.append(self.learner.mean_gradients(loader))
        self._weigh()

    def _weigh(self) -> None:
        self.weights.append({name: layer.matrix().detach().clone() for name, layer in self.learner.layers.items()})


def learn(
    *, observed: bool = True, model: Any = None, stream: cuber.Stream | None = None, **changes: Any
) -> tuple[cuber.Result, Looking | None]:
    learner = cuber.CUBER(model or small.model_with_norm(), eps1=0.1, keep=changes.pop("keep", 0.1))
    observer = Looking(learner) if observed else None
    training = {**small.FAST, "patience": 2, **changes}
    return cuber.learn(learner, stream or small.stream(), observer=observer, **training), observer


@pytest.fixture(scope="module")
def whole() -> cuber.Result:
    """A run that nobody stops."""
    return learn()[0]


def without_theory(result: cuber.Result) -> dict[str, Any]:
    return figures(dataclasses.replace(result, theory=[]))


@pytest.mark.parametrize("samples", ["fixed", "drawn anew each time"])
def test_looking_changes_no_bit(samples: str) -> None:
    def stream() -> cuber.Stream:
        if samples == "fixed":
            return small.stream()
        tasks = [(f"{n}", Noisy(10 * n), small.blobs(10 * n + 1, 30)) for n in range(3)]
        return cuber.Stream("noisy", [cuber.Task(*task, classes=3) for task in tasks])

    changes = {"patience": None} if samples != "fixed" else {}
    plain, _ = learn(observed=False, model=(untouched := small.model_with_norm()), stream=stream(), **changes)
    told, _ = learn(model=(looked_at := small.model_with_norm()), stream=stream(), **changes)
    assert plain.theory == []
    assert len(told.theory) == 3
    assert without_theory(told) == without_theory(plain)
    for name, tensor in untouched.state_dict().items():
        assert torch.equal(tensor, looked_at.state_dict()[name]), name


def test_the_conditions_are_those_that_the_learner_decided_its_regimes_by(whole: cuber.Result) -> None:
    decided = 0
    for task, by_layer in enumerate(whole.regimes):
        for name, by_task in by_layer.items():
            conditions = whole.theory[task][name]["old"]
            assert conditions.keys() == by_task.keys()
            for old, regime in by_task.items():
                assert conditions[old]["ratio"] == pytest.approx(regime["ratio"], rel=1e-6)
                if regime["regime"] != NO_FORGETTING:
                    assert conditions[old]["cosine"] == regime["cosine"]
                    decided += 1
    assert decided > 4


def test_what_the_theorems_ask_for_by_hand() -> None:
    """With whole gradients kept, everything follows from the gradients at both ends and the curvatures."""
    result, looking = learn(keep=1.0)
    assert looking is not None
    seen = 0
    for task, by_layer in enumerate(result.theory):
        for name, layer in by_layer.items():
            new = looking.first[task][name]
            assert layer["first"]["gradient"] == pytest.approx(float(new.norm()))
            assert layer["last"]["gradient"] == pytest.approx(float(looking.kept[task][name].norm()))
            for old, conditions in layer["old"].items():
                ended = looking.kept[old][name]
                cosine = float((ended * new).sum() / ended.norm() / new.norm())
                H = 2 * max(result.theory[old][name]["last"]["smoothness"], layer["first"]["smoothness"])
                allowed = max(0.0, 4 * cosine * float(ended.norm()) / (H * float(new.norm())))
                assert conditions["cosine"] == pytest.approx(cosine, abs=1e-6)
                assert conditions["eps2"] == pytest.approx(float(ended.norm() / new.norm()) / 2)
                assert conditions["step_size"] == pytest.approx(allowed, rel=1e-4, abs=1e-9)
                moved = looking.weights[2 * task + 1][name] - looking.weights[2 * task][name]
                assert conditions["agreement"] == pytest.approx(-float((ended * moved).sum()), rel=1e-4, abs=1e-7)
                seen += 1
    assert seen == 6


def test_a_layers_curvature_is_the_largest_of_its_own_hessian() -> None:
    learner = cuber.CUBER(small.model(2, shared_head=True))
    x, y = small.blobs(0, 30)
    sample = [(x[:20], y[:20]), (x[20:], y[20:])]
    learner.begin_task(sample, torch.nn.functional.cross_entropy)
    found = curvatures(learner, sample)
    assert found.keys() == learner.layers.keys()
    for name, layer in learner.layers.items():

        def loss(weight: torch.Tensor, name: str = name) -> torch.Tensor:
            answer = torch.func.functional_call(learner.model, {f"{name}.weight": weight}, x)
            return torch.nn.functional.cross_entropy(answer, y)

        assert not layer.with_bias
        size = layer.parameter.numel()
        hessian = torch.autograd.functional.hessian(loss, layer.parameter.detach()).reshape(size, size)
        assert found[name] == pytest.approx(float(torch.linalg.matrix_norm(hessian, 2)), rel=0.1)


@pytest.mark.parametrize("epochs", [4, 13])
def test_a_run_that_goes_on_keeps_what_was_recorded(whole: cuber.Result, tmp_path: Path, epochs: int) -> None:
    with pytest.raises(Stopped):
        learn(directory=RunDirectory(tmp_path / "run", loggers=[StopAt(epochs)]))
    result, _ = learn(directory=tmp_path / "run")
    assert figures(result) == figures(whole)
    assert cuber.Result.load(tmp_path / "run").theory == whole.theory


def test_who_looks_on_from_the_middle_has_nothing_to_tell_of_what_was_before(
    whole: cuber.Result, tmp_path: Path
) -> None:
    with pytest.raises(Stopped):
        learn(observed=False, directory=RunDirectory(tmp_path / "run", loggers=[StopAt(3)]))
    result, _ = learn(directory=tmp_path / "run")
    assert without_theory(result) == without_theory(whole)
    first, second, third = result.theory
    assert {name: set(layer) for name, layer in first.items()} == {name: {"old", "last"} for name in first}
    assert second == whole.theory[1]
    assert third == whole.theory[2]


def test_a_layer_that_an_old_task_did_not_reach_has_no_cosine() -> None:
    learner = cuber.CUBER(small.model())
    observer = TheoryRecorder(learner)
    cuber.learn(learner, small.stream(2), observer=observer, **small.FAST)
    learner.memory[name := next(iter(learner.layers))].gradients[0] = None
    x, y = small.blobs(20, 40)
    learner.begin_task([(x, y)], torch.nn.functional.cross_entropy)
    observer.began([(x, y)])
    told = observer.records[2][name]["old"]
    assert told[0]["ratio"] > 0
    assert [told[0][part] for part in ("cosine", "eps2", "step_size", "agreement")] == [None] * 4
    assert told[1]["cosine"] is not None


@pytest.mark.parametrize("method", [cuber.TRGP, cuber.FineTune, cuber.EWC])
def test_methods_without_old_gradients_are_refused(method: type[cuber.Method]) -> None:
    with pytest.raises(cuber.CuberError, match=f"which {method.__name__.lower()} does not keep: choose cuber"):
        TheoryRecorder(method(small.model()))


# On the command line


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]):
    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(["run", "split-digits", "--epochs", "1", "--tasks", "2", "--quiet", *arguments])
        captured = capsys.readouterr()
        return exit.value.code or 0, captured.out, captured.err

    return call


def test_the_command_records_and_says_when_a_finished_run_has_not(command, tmp_path: Path) -> None:
    plain, told = tmp_path / "plain", tmp_path / "told"
    assert command("--out", str(plain))[0] == command("--theory", "--out", str(told))[0] == 0
    assert cuber.Result.load(plain).theory == []
    assert list(cuber.Result.load(told).theory[1]) == ["backbone.layers.0", "backbone.layers.1"]
    assert load([told])[0].result is not None  # whoever makes tables can read it
    assert ", without what --theory records; --fresh" in command("--theory", "--out", str(plain))[1]
    assert "holds this run already; --fresh" in command("--theory", "--out", str(told))[1]


def test_a_method_without_old_gradients_is_refused_before_anything_is_written(command, tmp_path: Path) -> None:
    code, out, err = command("--theory", "--method", "trgp", "--out", str(tmp_path / "run"))
    assert (code, out) == (2, "")
    assert "which trgp does not keep: choose cuber" in err
    assert not (tmp_path / "run").exists()


def test_nothing_but_the_recorder_imports_the_theory() -> None:
    script = "import sys, cuber; cuber.learn; import cuber.experiments; assert 'cuber.theory' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_records_that_make_no_sense_are_damage(command, tmp_path: Path) -> None:
    command("--theory", "--out", str(tmp_path / "run"))
    path = tmp_path / "run" / "result.json"
    path.write_text(path.read_text().replace('"agreement"', '"disagreement"'))
    (run,) = load([tmp_path / "run"])
    assert "theory[1].backbone.layers.0.old.0.agreement is missing" in run.reason


def test_records_from_before_products_were_kept_have_no_agreement() -> None:
    learner = cuber.CUBER(small.model(2, shared_head=True), eps1=0.0)
    observer, loss = TheoryRecorder(learner), torch.nn.functional.cross_entropy
    for task in range(2):
        loader = [small.blobs(task, 30)]
        learner.begin_task(loader, loss)
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
        observer.began(loader)
        loss(learner.model(loader[0][0]), loader[0][1]).backward()
        optimizer.step()
        for layer in observer.records[task].values():
            for conditions in layer["old"].values():
                del conditions["start"]
        observer.ending(loader)
        learner.end_task(loader)
    agreements = [layer["old"][0]["agreement"] for layer in observer.records[1].values()]
    assert agreements == [None] * len(learner.layers)
