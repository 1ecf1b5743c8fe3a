"""Hugging Face's Trainer: one Trainer per task, saved and resumed with its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cuber.core import batches
from cuber.core.learner import Method
from cuber.errors import CuberError, needs_extra
from cuber.integrations import resume, wrap

with needs_extra("transformers", __name__):
    from transformers import Trainer, TrainerCallback
    from transformers.trainer_utils import get_last_checkpoint


class ContinualCallback(TrainerCallback):
    """Learns a task with a Trainer: call its ``train`` instead of the Trainer's.

    Args:
        learner: a learner around the Trainer's model; without ``forward=``, its loss is ``trainer.compute_loss``.
        trainer: a new Trainer with the task's training data; the callback adds itself.

    Raises:
        CuberError: the Trainer trains another model.

    >>> for data in datasets:  # doctest: +SKIP
    ...     trainer = Trainer(model, arguments, train_dataset=data)
    ...     ContinualCallback(learner, trainer).train()
    """

    def __init__(self, learner: Method, trainer: Trainer) -> None:
        if trainer.model is not learner.model:
            raise CuberError("this Trainer trains another model than the learner's: give both the same object")
        self.learner, self.trainer, self._in_train = learner, trainer, False
        trainer.add_callback(self)

    def train(self, resume_from_checkpoint: str | Path | bool | None = None, **kwargs: Any) -> Any:
        """Learn the task from its beginning, or from a checkpoint.

        Args:
            resume_from_checkpoint: a checkpoint's folder; True: the last one in the Trainer's output folder.
            kwargs: more arguments of ``trainer.train``.

        Returns:
            What ``trainer.train`` returns.
        """
        learner, trainer = self.learner, self.trainer
        if trainer.state.global_step:
            raise CuberError("this Trainer has trained already: make a new one for each task, and to resume")
        folder = trainer.args.output_dir
        checkpoint = get_last_checkpoint(folder) if resume_from_checkpoint is True else resume_from_checkpoint or None
        if resume_from_checkpoint and checkpoint is None:
            raise CuberError(f"there is no checkpoint in '{folder}' to resume from")
        given, learner.forward = learner.forward, learner.forward or self._loss
        self._in_train = True
        try:
            if checkpoint is None:
                loader = trainer.get_train_dataloader()
                steps, accumulated = batches.steps(loader), trainer.args.gradient_accumulation_steps
                learner.begin_task(loader, steps=None if steps is None else -(-steps // accumulated))
            self._wrap(checkpoint)
            output = trainer.train(resume_from_checkpoint=checkpoint, **kwargs)
            if trainer.args.load_best_model_at_end:  # the Trainer has loaded the model's weights only
                self._wrap(trainer.state.best_model_checkpoint)
            learner.end_task(trainer.get_train_dataloader())  # a new one, whose order does not depend on resuming
        finally:
            learner.forward, self._in_train = given, False
        return output

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._in_train:
            raise CuberError("call the train method of the ContinualCallback, not the Trainer's")
        if self.learner.epoch < int(state.epoch or 0):  # saved after the last step of an epoch, before its end
            self.learner.end_epoch()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._optimizer.zero_grad()  # the Trainer clears the gradients of the model only

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.learner.end_epoch()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.save(self.learner.state_dict(), self._file(Path(args.output_dir, f"checkpoint-{state.global_step}")))

    def _file(self, checkpoint: str | Path) -> Path:
        return Path(checkpoint, f"cuber-{self.trainer.args.process_index}.pt")  # samples differ between processes

    def _wrap(self, checkpoint: str | Path | None) -> None:
        """Wrap the Trainer's optimizer, for the state in a checkpoint if there is one."""
        if checkpoint is not None:
            file = self._file(checkpoint)
            if not file.exists():
                raise CuberError(f"'{checkpoint}' was not saved with a ContinualCallback: it has no {file.name}")
            resume(self.learner, torch.load(file, map_location=self.learner.device, weights_only=True))
        created = self.trainer.create_optimizer()
        self._optimizer = getattr(created, "optimizer", created)  # without the wrapper of Accelerate
        wrap(self.learner, [self._optimizer])

    def _loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        return self.trainer.compute_loss(model, dict(batches.to(batch, self.learner.device)))
