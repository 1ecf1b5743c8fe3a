"""Avalanche: a plugin for supervised strategies, which learns each experience as a task."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from cuber.core import batches
from cuber.core.learner import Method
from cuber.errors import CuberError, needs_extra
from cuber.integrations import wrap

with needs_extra("avalanche", __name__):
    from avalanche.training.plugins import SupervisedPlugin


class CuberPlugin(SupervisedPlugin):
    """Learns each experience of a strategy as a task, and evaluates it as that task.

    Args:
        learner: a learner around the strategy's model; without ``forward=``, its loss is the strategy's.

    >>> strategy = Naive(model=model, optimizer=optimizer, plugins=[CuberPlugin(learner)])  # doctest: +SKIP
    >>> for experience in benchmark.train_stream:  # doctest: +SKIP
    ...     strategy.train(experience)
    """

    def __init__(self, learner: Method) -> None:
        super().__init__()
        self.learner = learner
        self.tasks: dict[int, int] = {}
        """Number of an experience -> task."""
        self._evaluated = ExitStack()

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        learner = self.learner
        if strategy.model is not learner.model:
            raise CuberError("the strategy trains another model than the learner's: give both the same object")

        def loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
            strategy.mbatch = list(batches.to(batch, learner.device))
            strategy.mb_output = strategy.forward()
            return strategy.criterion()

        self._given, learner.forward = learner.forward, learner.forward or loss
        learner.begin_task(strategy.dataloader)
        self.tasks[strategy.experience.current_experience] = learner.tasks
        wrap(learner, [strategy.optimizer])

    def after_training_epoch(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        self.learner.end_epoch()

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        added = {id(p) for p in self.learner.parameters()} - {id(p) for p in strategy.model.parameters()}
        self.learner.end_task(strategy.dataloader)
        self.learner.forward = self._given
        for group in strategy.optimizer.param_groups:  # Avalanche keeps one optimizer for all experiences
            group["params"] = [p for p in group["params"] if id(p) not in added]

    def before_eval_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Show the task of an experience; the model is left as it is for those that were not learned yet."""
        task = self.tasks.get(strategy.experience.current_experience)
        if task is not None:
            self._evaluated.enter_context(self.learner.as_task(task))

    def after_eval_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        self._evaluated.close()
