"""Regression, segmentation and token classification: any targets, measured by any metric."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

import cuber
from cuber import CuberError, Metric
from cuber.core.metric import ACCURACY, as_metric
from cuber.metrics import Measure
from cuber.report.comparison import compare
from cuber.report.figures import marks_of
from cuber.report.grouping import load_report
from cuber.report.page import render
from cuber.report.terminal import show_result
from cuber.training import Result, evaluate

RMSE = Metric(lambda output, y: functional.mse_loss(output, y).sqrt(), higher_is_better=False, name="RMSE")
MSE = Metric(functional.mse_loss, higher_is_better=False)


def pixel_accuracy(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(1) == y).double().mean()


def token_accuracy(output: Tensor, y: Tensor) -> float:
    """The mean over samples of the share of right tokens among those that are not ignored."""
    real = y != -100
    return float((((output.argmax(-1) == y) & real).sum(1) / real.sum(1)).mean())


def regression() -> cuber.Stream:
    """Disease progression of older and younger patients."""
    x, y = (torch.tensor(values, dtype=torch.float32) for values in load_diabetes(return_X_y=True))
    y = ((y - y.mean()) / y.std()).unsqueeze(1)
    tasks = []
    for name, rows in (("younger", x[:, 0] < 0), ("older", x[:, 0] >= 0)):
        own, target = 20 * x[rows], y[rows]
        tasks.append(cuber.Task(name, (own[50:], target[50:]), (own[:50], target[:50]), outputs=1))
    return cuber.Stream("diabetes", tasks, metric=MSE)


def segmentation() -> cuber.Stream:
    """Which pixels of a blurred digit are ink: bright ones, then dark ones."""
    images = torch.tensor(load_digits().images[:160], dtype=torch.float32).unsqueeze(1) / 16
    blurred = functional.avg_pool2d(images, 3, stride=1, padding=1)
    inks = {"bright": images > 0.6, "dark": (images > 0.2) & (images < 0.6)}
    tasks = [
        cuber.Task(name, (blurred[40:], y[40:]), (blurred[:40], y[:40]), outputs=2)
        for name, y in ((name, ink.squeeze(1).long()) for name, ink in inks.items())
    ]
    return cuber.Stream("ink", tasks, shared_head=True, metric=Metric(pixel_accuracy, higher_is_better=True))


def tokens() -> cuber.Stream:
    """The remainder of each number, then of the one before it; half of the positions are ignored."""
    random = torch.Generator().manual_seed(0)
    x = torch.randint(12, (200, 6), generator=random)
    ignored = torch.rand(x.shape, generator=random) < 0.5
    ignored[:, 1] = False
    one_hot = functional.one_hot(x, 12).float().transpose(1, 2)
    tasks = [
        cuber.Task(name, (one_hot[40:], y[40:]), (one_hot[:40], y[:40]), outputs=3)
        for name, y in (
            ("own", (x % 3).masked_fill(ignored, -100)),
            ("before", (x.roll(1, 1) % 3).masked_fill(ignored, -100)),
        )
    ]
    return cuber.Stream("tokens", tasks, metric=Metric(token_accuracy, higher_is_better=True))


class Positions(nn.Module):
    """A convolution over positions: samples x positions x 16."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv1d(12, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).relu().transpose(1, 2)


def token_loss(output: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), y.flatten())


def model_for(stream: cuber.Stream) -> nn.Module:
    torch.manual_seed(0)
    if stream.name == "diabetes":
        return cuber.MultiHead(nn.Sequential(nn.Linear(10, 16), nn.ReLU()), 16, [task.classes for task in stream])
    if stream.name == "ink":
        return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1))
    return cuber.MultiHead(Positions(), 16, [3, 3])


STREAMS = {"diabetes": regression, "ink": segmentation, "tokens": tokens}
OPTIONS: dict[str, dict[str, Any]] = {
    "diabetes": {"loss_fn": functional.mse_loss, "lr": 0.05},
    "ink": {"lr": 0.3},
    "tokens": {"lr": 0.5, "loss_fn": token_loss},
}


def learned(name: str, method: Any = cuber.GPM, **options: Any) -> tuple[Result, nn.Module, cuber.Stream]:
    stream = STREAMS[name]()
    model = model_for(stream)
    learner = method(model)
    result = cuber.learn(learner, stream, **{"epochs": 4, "batch_size": 16, **OPTIONS[name], **options})
    learner.show_task(1)
    return result, model, stream


@pytest.mark.parametrize("method", [cuber.GPM, cuber.ER, cuber.EWC, cuber.Multitask], ids=lambda m: m.__name__)
@pytest.mark.parametrize("name", STREAMS)
def test_tasks_with_any_targets_are_learned_and_measured(name: str, method: Any) -> None:
    result, model, stream = learned(name, method)
    test, metric = stream[1].test, stream.metric
    with torch.no_grad():
        value = float(metric.function(model.eval()(test.x), test.y))
    assert result.accuracy[-1][1] == pytest.approx(value, rel=1e-5)
    assert result.metric == Measure(metric.name, metric.higher_is_better, unit="")
    assert value < 1 if name == "diabetes" else value > 0.5  # the variance is 1; the most frequent class has less
    assert result.tasks[0]["outputs"] == stream[0].outputs
    assert result.training["metric"] == metric.name


@pytest.mark.parametrize("lower", [True, False])
def test_transfer_above_zero_is_improvement_in_either_direction(lower: bool) -> None:
    """The negated function, with the direction turned, has the same BWT and forgetting."""
    metric = (
        MSE if lower else Metric(lambda output, y: -functional.mse_loss(output, y), higher_is_better=True, name="-")
    )
    result = learned("diabetes", cuber.FineTune, metric=metric, lr=0.3)[0]
    sign = -1 if lower else 1
    first, last = result.accuracy[0][0], result.accuracy[1][0]
    assert first is not None
    assert last is not None
    assert result.bwt == pytest.approx(sign * (last - first))
    assert result.forgetting == pytest.approx(max(0.0, sign * (first - last)))
    assert abs(result.bwt or 0) > 1e-3
    assert result.to_dict()["bwt"] == result.bwt


def test_a_mean_over_batches_counts_each_sample_once() -> None:
    stream = regression()
    model = model_for(stream).eval()
    with torch.no_grad():
        whole = float(functional.mse_loss(model(stream[0].test.x), stream[0].test.y))
    for size in (50, 16, 7):
        assert evaluate(model, stream[0].test, size, metric=MSE).accuracy == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("value", [torch.tensor(100, dtype=torch.int8), torch.tensor(5000.0).half(), np.int8(100)])
def test_a_metric_of_a_narrow_dtype_is_averaged_without_overflow(value: Any) -> None:
    stream = regression()
    metric = Metric(lambda output, y: value, higher_is_better=True, name="constant")
    assert evaluate(model_for(stream), stream[0].test, 50, metric=metric).accuracy == pytest.approx(float(value))


def test_a_torchmetrics_object_sees_all_batches_of_a_split() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    r2 = torchmetrics.R2Score()
    stream = regression()
    model = model_for(stream).eval()
    test = stream[0].test
    with torch.no_grad():
        output = model(test.x)
    residual, spread = (output - test.y).square().sum(), (test.y - test.y.mean()).square().sum()
    assert evaluate(model, test, 7, metric=as_metric(r2)).accuracy == pytest.approx(
        float(1 - residual / spread), rel=1e-5
    )
    assert r2.update_count == 0  # the user's own object is not used
    result = learned("diabetes", metric=torchmetrics.MeanSquaredError())[0]
    assert result.metric == Measure("MeanSquaredError", higher_is_better=False, unit="")
    assert result.accuracy[1][0] == pytest.approx(learned("diabetes")[0].accuracy[1][0], rel=1e-5)
    counted = torchmetrics.classification.MulticlassAccuracy(2, average="micro")
    found = learned("ink", metric=counted, epochs=1)[0].accuracy[1][1]
    assert found == pytest.approx(learned("ink", epochs=1)[0].accuracy[1][1], rel=1e-5)


def test_early_stopping_keeps_the_epoch_with_the_best_validation_loss() -> None:
    stream = regression().split(0.2)
    result = cuber.learn(
        cuber.FineTune(model_for(stream)),
        stream,
        loss_fn=functional.mse_loss,
        metric=Metric(lambda output, y: 1.0, higher_is_better=False, name="constant"),
        epochs=12,
        lr=0.4,
        patience=2,
        floor=0.1,
    )
    for history in result.history:
        losses = [epoch.validation_loss for epoch in history]
        assert history[losses.index(min(losses))].kept  # type: ignore[type-var]
        assert {epoch.validation_accuracy for epoch in history} == {1.0}


def test_accuracy_is_the_default_and_leaves_no_trace_in_files(tmp_path: Path) -> None:
    stream = cuber.Stream(
        "two", [cuber.Task(n, (torch.eye(4), [0, 1, 0, 1]), (torch.eye(4), [0, 1, 0, 1])) for n in "ab"]
    )
    result = cuber.learn(cuber.GPM(cuber.MultiHead(nn.Linear(4, 4), 4, [2, 2])), stream, epochs=1, lr=0.1)
    assert stream.metric is ACCURACY
    written = json.loads(result.save(tmp_path).read_text())
    assert "metric" not in {*written, *written["training"]}
    assert "outputs" not in written["tasks"][0]
    assert Result.load(tmp_path) == result


def test_a_result_names_its_metric_after_it_was_saved(tmp_path: Path) -> None:
    result = learned("diabetes")[0]
    path = result.save(tmp_path)
    assert Result.load(tmp_path) == result
    assert repr(result).partition("seed 0: ")[2].startswith("mse_loss 0.")
    values = json.loads(path.read_text())
    for wrong in ({"name": 3}, {"higher_is_better": "yes"}, {"nme": "x"}, []):
        path.write_text(json.dumps(values | {"metric": wrong}))
        with pytest.raises(CuberError, match="damaged"):
            Result.load(tmp_path)


def test_tables_and_the_page_name_the_metric_and_its_direction(tmp_path: Path) -> None:
    for name, metric in (("mse", MSE), ("rmse", RMSE)):
        for seed in (0, 1):
            learned(
                "diabetes", cuber.SoftCUBER, metric=metric, seed=seed, epochs=1, directory=tmp_path / name / str(seed)
            )
    report = load_report([tmp_path])
    assert [group.metric.name for group in report.groups] == ["mse_loss", "RMSE"]  # never in one mean
    tables = compare(report).tables
    acc = next(table for table in tables if table.kind == "acc" and table.context == {"metric": "RMSE"})
    assert [column.heading for column in acc.columns][2:] == ["RMSE", "BWT"]
    assert "lower RMSE is better; BWT above 0: old tasks have improved" in acc.notes
    group = report.groups[1]
    found = group.variants[0].figure("bwt")
    assert found is not None
    assert found.mean == pytest.approx(sum(result.bwt or 0 for result in group.results) / 2)
    page = render(report)
    assert "Test RMSE on each task" in page
    assert "RMSE (lower is better): mean over all tasks" in page
    assert "ACC" not in page.partition("<main>")[2]
    assert "%" not in page.partition("Test RMSE on each task")[2].partition("Predicted change")[0].replace("100%", "")
    assert marks_of(report)
    shown = io.StringIO()
    show_result(group.results[0], Console(file=shown, width=80))
    assert "Test RMSE (lower is better) (soft-cuber on diabetes, seed 0)" in shown.getvalue()
    assert not {"ACC", "%"} & set(shown.getvalue().split())


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, float]:
        return torch.full((3,), float(index)), index / 20


def test_a_dataset_may_have_any_targets() -> None:
    task = cuber.Task("numbers", Pairs(), Pairs(), outputs=1)
    _, y = next(iter(task.train.batches([torch.tensor([1, 2])], 0)))
    assert y.dtype == torch.float32
    assert y.tolist() == pytest.approx([0.05, 0.1])
    with pytest.raises(CuberError, match="labels must be whole numbers"):
        next(iter(cuber.Task("labels", Pairs(), Pairs(), classes=2).train.batches([torch.tensor([1, 2])], 0)))


def test_what_a_task_with_outputs_keeps() -> None:
    stream = regression().split(0.1).shrink(train=20, test=10).first(1)
    assert (stream[0].outputs, stream.metric, len(stream[0].train)) == (1, MSE, 20)
    assert repr(stream[0]).endswith("1 outputs)")
    with pytest.raises(CuberError, match=r"give classes .* or outputs .*, not both"):
        cuber.Task("both", stream[0].train, stream[0].test, classes=2, outputs=2)
    with pytest.raises(CuberError, match="outputs must be a whole number of at least 1, not 0"):
        cuber.Task("none", stream[0].train, stream[0].test, outputs=0)
    with pytest.raises(CuberError, match="some targets are NaN"):
        cuber.Task("nan", (torch.eye(2), [0.0, math.nan]), (torch.eye(2), [0.0, 1.0]), outputs=1)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            functional.mse_loss,
            r"metric 'mse_loss' does not say whether higher is better: pass cuber.Metric\(mse_loss, ",
        ),
        ("mse", "metric must be a cuber.Metric or a torchmetrics object, not 'mse'"),
        (Metric(lambda output, y: output, higher_is_better=True, name="m"), r"'m' returns a tensor of shape \(2, 1\)"),
        (Metric(lambda output, y: "high", higher_is_better=True, name="m"), "'m' returns a str: it must return one"),
        (Metric(lambda output, y: math.nan, higher_is_better=True, name="m"), "metric 'm' is nan"),
        (Metric(lambda output, y: output[9], higher_is_better=True, name="m"), "'m' cannot take the model's output"),
        (None, "needs a metric"),
    ],
)
def test_a_wrong_metric_is_one_sentence(metric: Any, message: str) -> None:
    stream = cuber.Stream("diabetes", regression().tasks)
    with pytest.raises(CuberError, match=message):
        cuber.learn(cuber.GPM(model_for(stream)), stream, epochs=1, lr=0.1, loss_fn=functional.mse_loss, metric=metric)


def test_a_metric_must_say_which_direction_is_better() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    with pytest.raises(CuberError, match="'MeanMetric' does not say whether higher is better"):
        as_metric(torchmetrics.MeanMetric())
    assert as_metric(Metric(torchmetrics.MeanMetric(), higher_is_better=False)).accumulates
    with pytest.raises(CuberError, match="higher_is_better of metric 'mse_loss' must be True or False"):
        Metric(functional.mse_loss, higher_is_better=None)  # type: ignore[arg-type]
    with pytest.raises(CuberError, match="a metric is a function of output and target, not a float"):
        Metric(0.5, higher_is_better=True)  # type: ignore[arg-type]
    with pytest.raises(CuberError, match="does not say whether higher is better"):
        cuber.Stream("diabetes", regression().tasks, metric=functional.mse_loss)


def test_a_loss_that_does_not_fit_the_targets_is_one_sentence() -> None:
    stream = regression()
    with pytest.raises(CuberError, match="the loss cannot take the model's output and the targets"):
        cuber.learn(cuber.GPM(model_for(stream)), stream, epochs=1, lr=0.1, loss_fn=nn.NLLLoss())


@pytest.mark.parametrize(
    ("y", "outputs", "message"),
    [
        (torch.randn(8, 1), 1, r"task 0 \('t0'\) has outputs=1, .*: pass learn\(\.\.\., loss_fn=\.\.\.\)"),
        (torch.zeros(8, dtype=torch.long), 1, "has outputs=1"),
        (torch.randn(8, 3), 3, r"neither labels nor probabilities, .*: pass learn\(\.\.\., loss_fn="),
        (torch.tensor([1.0, 1.0, 0.0]).repeat(8, 1), 3, "neither labels nor probabilities"),
    ],
)
def test_targets_that_are_numbers_need_a_loss(y: Tensor, outputs: int, message: str) -> None:
    x = torch.randn(8, 4)
    stream = cuber.Stream("numbers", [cuber.Task("t0", (x, y), (x, y), outputs=outputs)], metric=MSE)
    with pytest.raises(CuberError, match=message):
        cuber.learn(cuber.GPM(nn.Linear(4, outputs)), stream, epochs=1, lr=0.1)


def test_probabilities_of_classes_are_learned_with_the_default_loss() -> None:
    torch.manual_seed(0)
    x = torch.randn(32, 4)
    data = x, (3 * x[:, :3]).softmax(1)
    cross_entropy = Metric(functional.cross_entropy, higher_is_better=False)
    stream = cuber.Stream("shares", [cuber.Task("t0", data, data, outputs=3)], metric=cross_entropy)
    model = nn.Linear(4, 3)
    before = evaluate(model, stream[0].test, 8, metric=cross_entropy).accuracy
    assert cuber.learn(cuber.GPM(model), stream, epochs=5, lr=0.5).acc < 0.8 * before
