"""A Trainer with the callback learns what a plain loop learns, to the bit, also when it is stopped and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cuber import CuberError, Method
from tests.integrations.small import METHODS, methods
from tests.loops import same_bits

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from cuber.integrations.transformers import ContinualCallback  # noqa: E402

TASKS, EPOCHS = 3, 2


class StoppedError(Exception):
    pass


class StopAt(transformers.TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise StoppedError


def bert(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, **size, **dropouts)
    return transformers.BertForSequenceClassification(config)


def sentences(task: int, seed: int = 0, count: int = 20) -> list[dict[str, Any]]:
    """Five words each, among them one of two that tell the class, others in each task."""
    generator = torch.Generator().manual_seed(10 * seed + task)
    words = torch.randint(8, 20, (count, 5), generator=generator)
    labels = torch.randint(2, (count,), generator=generator)
    words[:, task] = 2 * task + labels
    return [{"input_ids": row, "labels": int(label)} for row, label in zip(words, labels, strict=True)]


def trainer_of(model: nn.Module, task: int, folder: Path, **options: Any) -> Any:
    arguments = transformers.TrainingArguments(
        str(folder / f"task-{task}"),
        **{
            "per_device_train_batch_size": 4,
            "num_train_epochs": EPOCHS,
            "learning_rate": 0.01,
            "warmup_steps": 3,
            "optim": "adamw_torch",
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": True,
            **options,
        },
    )
    return transformers.Trainer(model, arguments, train_dataset=sentences(task), eval_dataset=sentences(task, seed=1))


def learn(learner: Method, folder: Path, tasks: Any = range(TASKS), **options: Any) -> Method:
    for task in tasks:
        ContinualCallback(learner, trainer_of(learner.model, task, folder, **options)).train()
    return learner


def learn_in_plain_loop(learner: Method, folder: Path) -> Method:
    model = learner.model
    for task in range(TASKS):
        loader = trainer_of(model, task, folder).get_train_dataloader()
        learner.begin_task(loader)
        optimizer = learner.wrap(torch.optim.AdamW(learner.parameters(), lr=0.01, weight_decay=0.0))
        steps = EPOCHS * len(loader)
        scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 3, steps)
        for epoch in range(EPOCHS):
            loader.set_epoch(epoch)
            model.train()
            for batch in loader:
                optimizer.zero_grad()
                model(**batch).loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
            learner.end_epoch()
        learner.end_task(trainer_of(model, task, folder).get_train_dataloader())
    return learner


@methods
def test_the_same_bits_as_a_plain_loop(make: Any, tmp_path: Path) -> None:
    ours = learn(make(bert()), tmp_path)
    plain = make(bert())
    plain.forward = lambda model, batch: model(**batch).loss
    learn_in_plain_loop(plain, tmp_path)
    assert ours.tasks == TASKS
    if make is not METHODS["GPM"]:
        assert any(memory.scalings[-1] for memory in ours.memory.values())
    assert same_bits(ours.model, plain.model)
    ids = sentences(0)[0]["input_ids"][None]
    for task in range(TASKS):
        with ours.as_task(task), plain.as_task(task):
            assert torch.equal(ours.model(ids).logits, plain.model(ids).logits)


@pytest.mark.parametrize(("method", "step"), [("GPM", 3), ("TRGP", 3), ("CUBER", 3), ("CUBER", 5)])
def test_stopped_in_mid_task_and_resumed_the_same_bits(method: str, step: int, tmp_path: Path) -> None:
    make = METHODS[method]  # the fifth step is the last of an epoch, and is saved before the epoch ends
    how = {"save_strategy": "steps", "save_steps": step}
    whole = learn(make(bert(dropout=0.1)), tmp_path / "whole")
    stopped = learn(make(bert(dropout=0.1)), tmp_path, range(1))
    trainer = trainer_of(stopped.model, 1, tmp_path, **how)
    trainer.add_callback(StopAt(step + 1))
    with pytest.raises(StoppedError):
        ContinualCallback(stopped, trainer).train()

    resumed = make(bert(dropout=0.1))
    assert not same_bits(resumed.model, stopped.model)
    ContinualCallback(resumed, trainer_of(resumed.model, 1, tmp_path, **how)).train(resume_from_checkpoint=True)
    assert resumed.tasks == 2
    learn(resumed, tmp_path, range(2, TASKS))
    assert same_bits(resumed.model, whole.model)
    resumed.model.eval(), whole.model.eval()
    ids = sentences(0)[0]["input_ids"][None]
    for task in range(TASKS):
        with resumed.as_task(task), whole.as_task(task):
            assert torch.equal(resumed.model(ids).logits, whole.model(ids).logits)


def test_the_best_checkpoint_is_loaded_with_its_scalings(tmp_path: Path) -> None:
    how = {"save_strategy": "epoch", "eval_strategy": "epoch", "load_best_model_at_end": True}
    learner = learn(METHODS["CUBER"](bert()), tmp_path, range(1))
    # A higher loss counts as better, and the first epoch begins with it.
    wanted = {**how, "metric_for_best_model": "loss", "greater_is_better": True, "learning_rate": 0.05}
    trainer = trainer_of(learner.model, 1, tmp_path, **wanted)
    losses: dict[str, float] = {}

    class Losses(transformers.TrainerCallback):
        def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any, **kwargs: Any) -> None:
            losses[f"checkpoint-{state.global_step}"] = metrics["eval_loss"]

    trainer.add_callback(Losses())
    ContinualCallback(learner, trainer).train()
    best = Path(trainer.state.best_model_checkpoint).name
    assert losses[best] == max(losses.values()) > min(losses.values())
    with learner.as_task(1):
        assert trainer.evaluate()["eval_loss"] == pytest.approx(losses[best], rel=1e-5)


def test_a_loss_of_the_trainers_own_is_the_learners_loss(tmp_path: Path) -> None:
    model = bert()
    learner = METHODS["CUBER"](model)
    trainer = trainer_of(model, 0, tmp_path, label_smoothing_factor=0.5)
    callback = ContinualCallback(learner, trainer)
    (batch, *_) = trainer.get_train_dataloader()
    smoothed = callback._loss(model, batch).detach()
    assert torch.equal(smoothed, trainer.compute_loss(model, dict(batch)).detach())
    assert not torch.isclose(smoothed, model(**batch).loss.detach(), rtol=1e-4)
    assert "labels" in batch  # which the Trainer takes out


def test_misuse_is_one_sentence(tmp_path: Path) -> None:
    learner = METHODS["GPM"](bert())
    with pytest.raises(CuberError, match="another model than the learner's"):
        ContinualCallback(learner, trainer_of(bert(), 0, tmp_path))
    trainer = trainer_of(learner.model, 0, tmp_path, save_strategy="epoch")
    callback = ContinualCallback(learner, trainer)
    with pytest.raises(CuberError, match="call the train method of the ContinualCallback"):
        trainer.train()
    with pytest.raises(CuberError, match=r"there is no checkpoint in .*task-0' to resume from"):
        callback.train(resume_from_checkpoint=True)
    callback.train()
    assert learner.forward is None
    with pytest.raises(CuberError, match="this Trainer has trained already"):
        callback.train()

    learn(learner, tmp_path, range(1, 2))
    with pytest.raises(CuberError, match=r"the checkpoint is of task 0, but the learner has learned 2 tasks"):
        ContinualCallback(learner, trainer_of(learner.model, 0, tmp_path)).train(resume_from_checkpoint=True)
    for file in (tmp_path / "task-0").glob("checkpoint-*/cuber-0.pt"):
        file.unlink()
    with pytest.raises(CuberError, match=r"was not saved with a ContinualCallback: it has no cuber-0\.pt"):
        ContinualCallback(learner, trainer_of(learner.model, 0, tmp_path)).train(resume_from_checkpoint=True)
