"""Lightning: one ``Trainer.fit`` per task, saved and resumed with its checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cuber.core.batches import Batch
from cuber.core.learner import LossFunction, Method
from cuber.errors import CuberError, needs_extra
from cuber.integrations import resume, wrap

with needs_extra("lightning", __name__):
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class ContinualCallback(Callback):
    """Learns a task in ``Trainer.fit``; make a new Trainer with a new callback for each task.

    Args:
        learner: a learner around the LightningModule or a part of it.
        loader: the task's training data, as for ``begin_task``.
        loss_fn: ``loss_fn(output, target)``, unless the learner has a ``forward=``.

    >>> for loader in loaders:  # doctest: +SKIP
    ...     trainer = Trainer(max_epochs=5, callbacks=[ContinualCallback(learner, loader, cross_entropy)])
    ...     trainer.fit(module, loader)
    """

    def __init__(self, learner: Method, loader: Iterable[Batch], loss_fn: LossFunction | None = None) -> None:
        self.learner, self.loader, self.loss_fn = learner, loader, loss_fn
        self._began = self._loaded = False

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin the task before the module is wrapped, but on its device; the state in a checkpoint replaces it."""
        if stage != "fit":
            return
        if self._began or self._loaded:
            raise CuberError(
                "this ContinualCallback has learned its task: make a new one, and a Trainer, for each task"
            )
        if not any(module is self.learner.model for module in pl_module.modules()):
            raise CuberError("the learner's model is not a part of this LightningModule: give both the same object")
        if self.learner.task is None:  # else a checkpoint of this task must follow
            self.learner.model.to(trainer.strategy.root_device)
            self.learner.begin_task(self.loader, self.loss_fn)
            self._began = True

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.ckpt_path is not None and not self._loaded:
            raise CuberError(f"'{trainer.ckpt_path}' was not saved with a ContinualCallback: it has no learner's state")
        if not (self._began or self._loaded):
            raise CuberError(f"task {self.learner.task} has begun already: resume it with ckpt_path=")
        wrap(self.learner, trainer.optimizers)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """End the epoch of a checkpoint of its last step, after which Lightning goes on with the next epoch."""
        if self.learner.epoch < trainer.current_epoch:
            self.learner.end_epoch()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.learner.end_epoch()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.learner.end_task(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.learner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        resume(self.learner, state_dict, self.loss_fn)
        self._loaded = True
