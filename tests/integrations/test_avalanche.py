"""An Avalanche strategy with the plugin learns what a plain loop learns, to the bit.

Skipped where Avalanche cannot be imported: it needs torchvision, which not every build of torch has.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from cuber import CuberError
from tests.integrations.small import METHODS, methods, mlp, same_answers
from tests.loops import learn as learn_in_plain_loop
from tests.loops import logits, loss_fn, same_bits, sgd

pytest.importorskip("avalanche")

from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.evaluation.metrics import accuracy_metrics
from avalanche.training.plugins import EvaluationPlugin
from avalanche.training.supervised import Naive

from cuber.integrations.avalanche import CuberPlugin

TASKS, EPOCHS = 3, 2


def data(task: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(24, 6, generator=torch.Generator().manual_seed(task)) + task
    return x, (x[:, task] > task).long()


def benchmark() -> Any:
    class Labeled(TensorDataset):
        targets: list[int]

    def dataset(task: int) -> Any:
        labeled = Labeled(*data(task))
        labeled.targets = labeled.tensors[1].tolist()
        return as_classification_dataset(labeled)

    experiences = [dataset(task) for task in range(TASKS)]
    return benchmark_from_datasets(train=experiences, test=experiences)


def strategy_of(learner: Any, **options: Any) -> Any:
    evaluator = EvaluationPlugin(accuracy_metrics(experience=True), loggers=[])
    how = {"train_mb_size": 6, "train_epochs": EPOCHS, "eval_mb_size": 6, "device": "cpu", "evaluator": evaluator}
    plugins = [CuberPlugin(learner)]
    return Naive(
        model=learner.model,
        optimizer=sgd(learner.model.parameters()),
        criterion=loss_fn,
        plugins=plugins,
        **{**how, **options},
    )


@methods
@pytest.mark.parametrize("eval_every", [-1, 1])
def test_the_same_bits_as_a_plain_loop(make: Any, eval_every: int) -> None:
    ours, plain, stream = make(mlp()), make(mlp()), benchmark()
    strategy = strategy_of(ours, eval_every=eval_every)
    for task, experience in enumerate(stream.train_stream):
        strategy.train(experience, eval_streams=[stream.test_stream], shuffle=False)
        x, y = data(task)
        learn_in_plain_loop(plain, list(zip(x.split(6), y.split(6), strict=True)), sgd, epochs=EPOCHS)
    assert ours.tasks == TASKS
    assert same_bits(ours.model, plain.model)
    assert same_answers(ours, plain)
    assert len(strategy.optimizer.param_groups[0]["params"]) == len(list(ours.model.parameters()))


def test_experiences_are_evaluated_as_their_tasks() -> None:
    learner, stream = METHODS["TRGP"](mlp()), benchmark()
    strategy = strategy_of(learner)
    for experience in stream.train_stream:
        strategy.train(experience, shuffle=False)
        strategy.eval(stream.test_stream)  # also of experiences that were not learned yet
    found = {name: value for name, value in strategy.eval(stream.test_stream).items() if name.startswith("Top1")}
    for task, value in enumerate(found.values()):
        x, y = data(task)
        assert value == pytest.approx(float((logits(learner, task, x).argmax(1) == y).float().mean()))
    assert learner.views == 0


def test_another_model_is_refused() -> None:
    strategy = strategy_of(METHODS["GPM"](mlp()))
    strategy.model = mlp()
    with pytest.raises(CuberError, match="the strategy trains another model than the learner's"):
        strategy.train(benchmark().train_stream[0])
