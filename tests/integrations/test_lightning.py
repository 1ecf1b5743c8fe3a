"""Lightning with the callback learns what a plain loop learns, to the bit, also when it is stopped and resumed."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cuber import CuberError, Method
from tests.integrations.small import METHODS, methods, mlp, same_answers
from tests.loops import learn as learn_in_plain_loop
from tests.loops import loss_fn, same_bits

lightning = pytest.importorskip("lightning.pytorch")

from cuber.integrations.lightning import ContinualCallback  # noqa: E402

TASKS, EPOCHS = 3, 2
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*you want to suppress this|.*treespec"),
]


class StoppedError(Exception):
    pass


class StopAt(lightning.Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            raise StoppedError


class Module(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Any, index: int) -> Tensor:
        x, y = batch
        return loss_fn(self.model(x), y)

    def configure_optimizers(self) -> Any:
        return adam(self.model.parameters())


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


def loader_of(task: int) -> DataLoader:
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(24, 6, generator=generator) + task
    return DataLoader(TensorDataset(x, (x[:, task] > task).long()), batch_size=6)


class StatefulLoader:
    """A loader that Lightning can resume in the middle of an epoch; with a plain one it begins the epoch again."""

    def __init__(self, task: int) -> None:
        self.batches, self.position = list(loader_of(task)), 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        self.position %= len(self)  # nothing asks for more than the last batch
        for batch in self.batches[self.position :]:
            self.position += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def trainer_of(learner: Method, task: int, folder: Path, *callbacks: Any, **options: Any) -> Any:
    return lightning.Trainer(
        callbacks=[ContinualCallback(learner, loader_of(task), loss_fn), *callbacks],
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{"enable_checkpointing": False, "max_epochs": EPOCHS, **options},
    )


def learn(learner: Method, folder: Path, tasks: Any = range(TASKS), module: Any = None) -> Method:
    for task in tasks:
        trainer_of(learner, task, folder).fit(module or Module(learner.model), loader_of(task))
    return learner


@methods
def test_the_same_bits_as_a_plain_loop(make: Any, tmp_path: Path) -> None:
    ours, plain = learn(make(mlp()), tmp_path), make(mlp())
    for task in range(TASKS):
        learn_in_plain_loop(plain, loader_of(task), adam, epochs=EPOCHS)
    assert ours.tasks == TASKS
    assert same_bits(ours.model, plain.model)
    assert same_answers(ours, plain)


@pytest.mark.parametrize(("method", "step"), [("GPM", 2), ("TRGP", 2), ("CUBER", 2), ("CUBER", 4)])
def test_stopped_in_mid_task_and_resumed_the_same_bits(method: str, step: int, tmp_path: Path) -> None:
    make = METHODS[method]  # the fourth step is the last of an epoch, and is saved before the epoch ends
    whole, stopped = learn(make(mlp()), tmp_path), learn(make(mlp()), tmp_path, range(1))
    saving = lightning.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=step, save_top_k=-1)
    trainer = trainer_of(stopped, 1, tmp_path, saving, StopAt(step + 1), enable_checkpointing=True)
    with pytest.raises(StoppedError):
        trainer.fit(Module(stopped.model), StatefulLoader(1))

    (checkpoint,) = tmp_path.glob(f"*step={step}.ckpt")
    resumed = make(mlp(seed=1))
    trainer_of(resumed, 1, tmp_path).fit(Module(resumed.model), StatefulLoader(1), ckpt_path=checkpoint)
    assert resumed.tasks == 2
    learn(resumed, tmp_path, range(2, TASKS))
    assert same_bits(resumed.model, whole.model)
    assert same_answers(resumed, whole)


@pytest.mark.parametrize("step", [4, 8, 12])
@pytest.mark.parametrize("make_loader", [loader_of, StatefulLoader])
def test_saved_at_the_last_step_of_an_epoch_and_resumed_each_epoch_ends_once(
    make_loader: Any, step: int, tmp_path: Path
) -> None:
    make, epochs = METHODS["CUBER"], 3

    def fit(learner: Any, saving: Any = None, **options: Any) -> tuple[Any, list[int]]:
        """The learner, and the steps after which it was told that an epoch ended."""
        trainer = trainer_of(
            learner, 1, tmp_path, *([saving] if saving else []), max_epochs=epochs, enable_checkpointing=bool(saving)
        )
        ends, end_epoch = [], learner.end_epoch
        learner.end_epoch = lambda: (ends.append(learner.steps), end_epoch())
        trainer.fit(Module(learner.model), make_loader(1), **options)
        return learner, ends

    saving = lightning.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=step, save_top_k=-1)
    whole, ends = fit(learn(make(mlp()), tmp_path, range(1)), saving)
    (checkpoint,) = tmp_path.glob(f"*step={step}.ckpt")
    resumed, later_ends = fit(make(mlp(seed=1)), ckpt_path=checkpoint)
    assert ends == [4, 8, 12]
    assert later_ends == [end for end in ends if end >= step]  # it is saved before the epoch ends
    assert resumed.tasks == 2
    assert same_bits(resumed.model, whole.model)
    assert same_answers(resumed, whole)


def test_the_older_package_takes_the_same_callback(tmp_path: Path) -> None:
    older = pytest.importorskip("pytorch_lightning")
    learner, plain = METHODS["CUBER"](mlp()), learn(METHODS["CUBER"](mlp()), tmp_path, range(1))

    class OlderModule(older.LightningModule):
        __init__, training_step = Module.__init__, Module.training_step
        configure_optimizers = Module.configure_optimizers

    silent = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    callback = ContinualCallback(learner, loader_of(0), loss_fn)
    trainer = older.Trainer(max_epochs=EPOCHS, accelerator="cpu", callbacks=[callback], **silent)
    module = OlderModule.__new__(OlderModule)
    older.LightningModule.__init__(module)
    module.model = learner.model
    trainer.fit(module, loader_of(0))
    assert same_bits(learner.model, plain.model)


def test_misuse_is_one_sentence(tmp_path: Path) -> None:
    learner = METHODS["GPM"](mlp())
    with pytest.raises(CuberError, match="the learner's model is not a part of this LightningModule"):
        learn(learner, tmp_path, range(1), module=Module(mlp()))
    trainer = trainer_of(learner, 0, tmp_path)
    trainer.fit(Module(learner.model), loader_of(0))
    with pytest.raises(CuberError, match="this ContinualCallback has learned its task"):
        trainer.fit(Module(learner.model), loader_of(0))
    trainer.save_checkpoint(tmp_path / "after.ckpt")
    accepted = inspect.signature(trainer.fit).parameters  # of lightning 2.6; before, the switch did not exist
    options = {"weights_only": True} if "weights_only" in accepted else {}
    with pytest.raises(CuberError, match="saved after task 0 had ended"):
        trainer_of(learner, 1, tmp_path).fit(
            Module(learner.model), loader_of(1), ckpt_path=tmp_path / "after.ckpt", **options
        )

    trainer.callbacks.remove(next(c for c in trainer.callbacks if isinstance(c, ContinualCallback)))
    trainer.save_checkpoint(tmp_path / "without.ckpt")
    with pytest.raises(CuberError, match=r"without\.ckpt' was not saved with a ContinualCallback"):
        trainer_of(learner, 1, tmp_path).fit(
            Module(learner.model), loader_of(1), ckpt_path=tmp_path / "without.ckpt", **options
        )
    with pytest.raises(CuberError, match="task 1 has begun already: resume it with ckpt_path="):
        learn(learner, tmp_path, range(1, 2))
