"""What A-GEM and ER keep of old tasks, and how it is shown to the network again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import AGEM, ER, CuberError, MultiHead
from cuber.replay import EpisodicMemory
from tests.loops import learn, loss_fn, same_bits, sgd, train
from tests.methods.test_replay import BOTH, HEADS, in_third_task, learned
from tests.methods.test_resume import through_a_file

# Normalization and dropout


class Seen(nn.Module):
    """Writes down what passes, and whether it is training."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Tensor, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.log.append((x.detach(), self.training))
        return x


def normalized() -> tuple[nn.Module, Seen]:
    seen = Seen()
    backbone = nn.Sequential(nn.Linear(8, 12), nn.BatchNorm1d(12), seen, nn.Dropout(0.5), nn.ReLU())
    return MultiHead(backbone, 12, [3] * 3), seen


@BOTH
def test_old_tasks_are_replayed_with_their_statistics_and_the_present_ones_do_not_move(kind: type) -> None:
    model: Any
    model, seen = normalized()
    learner = kind(model, replay=5)
    for task in range(2):
        learn(learner, [(x + 5 * task, y) for x, y in HEADS.loader(task)])
    learner.begin_task(HEADS.loader(2), loss_fn)
    optimizer = learner.wrap(sgd(learner.parameters()))
    x, y = HEADS.loader(2)[0]
    loss_fn(model(x), y).backward()
    present = copy.deepcopy(model.state_dict())
    seen.log.clear()
    optimizer.step()
    assert [training for _, training in seen.log] == [True, True], "one pass for each old task, dropout as in training"
    assert all(layer.training for layer in model.modules())
    assert all(torch.equal(value, present[name]) for name, value in model.named_buffers())
    assert model.task == 2


@pytest.mark.parametrize("statistics", ["task", "batch"])
def test_what_a_replayed_sample_is_normalized_by(statistics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any
    model, seen = normalized()
    learner = ER(model, replay=9, norm_statistics=statistics)
    for task in range(2):
        learn(learner, [(x + 5 * task, y) for x, y in HEADS.loader(task)])
    learner.begin_task(HEADS.loader(2), loss_fn)
    optimizer = learner.wrap(sgd(learner.parameters()))
    draws: list[Any] = []
    draw = EpisodicMemory.draw
    monkeypatch.setattr(EpisodicMemory, "draw", lambda *given: draws.append(draw(*given)) or draws[-1])
    x, y = HEADS.loader(2)[0]
    loss_fn(model(x), y).backward()
    seen.log.clear()
    weights = copy.deepcopy(model.backbone[:2])
    optimizer.step()
    before = [weights[0](batch[0]).detach() for _, batch in draws[0]]
    answers = torch.cat([output for output, _ in seen.log])
    if statistics == "batch":
        together = torch.cat(before)
        expected = (together - together.mean(0)) / (together.var(0, unbiased=False) + 1e-5).sqrt()
    else:
        expected = torch.cat(
            [
                (part - learner.statistics[task]["backbone.1.running_mean"])
                / (learner.statistics[task]["backbone.1.running_var"] + 1e-5).sqrt()
                for (task, _), part in zip(draws[0], before, strict=True)
            ]
        )
    expected = expected * weights[1].weight + weights[1].bias
    assert torch.allclose(answers, expected.detach(), atol=1e-4)


# Batches of any make


@BOTH
def test_batches_that_are_dictionaries_go_through_forward(kind: type) -> None:
    def forward(model: nn.Module, batch: dict[str, Any]) -> Tensor:
        return batch["scale"] * loss_fn(model(batch["x"]), batch["y"])

    def run(learner: Any, as_dictionary: bool) -> Any:
        torch.manual_seed(3)
        for task in range(3):
            pairs = HEADS.loader(task, dtype=torch.float64)
            loader: list[Any] = pairs
            if as_dictionary:
                loader = [{"scale": torch.tensor(1.0), "x": x, "y": y} for x, y in pairs]
            learner.begin_task(loader, None if as_dictionary else loss_fn)
            optimizer = learner.wrap(sgd(learner.parameters()))
            for batch in loader * 3:
                optimizer.zero_grad()
                learner.loss(batch).backward()
                optimizer.step()
            learner.end_task(loader)
        return torch.cat([p.flatten() for p in learner.model.parameters()])

    models = [HEADS.model(dtype=torch.float64) for _ in range(2)]
    settings = {"memory": 20, "replay": 7}
    ours = run(kind(models[0], forward=forward, **settings), True)
    assert torch.allclose(ours, run(kind(models[1], **settings), False), rtol=1e-9)


@BOTH
def test_batches_that_cannot_be_kept_are_refused_before_anything_is_learned(kind: type) -> None:
    loader = [{"x": x, "y": y, "names": [f"{x[0, 0]}"] * len(x)} for x, y in HEADS.loader(0)]
    learner = kind(HEADS.model(), forward=lambda model, batch: loss_fn(model(batch["x"]), batch["y"]))
    with pytest.raises(CuberError, match="a replay memory keeps tensors"):
        learner.begin_task(loader)
    assert learner.task is None
    learner.begin_task([{"x": x, "y": y} for x, y in HEADS.loader(0)])


# What is kept


@BOTH
def test_images_of_bytes_are_kept_as_bytes_and_in_the_state(kind: type) -> None:
    generator = torch.Generator().manual_seed(0)
    learner = kind(nn.Sequential(nn.Flatten(), nn.Linear(2 * 144, 3)), memory=90)
    for task in range(2):
        images = torch.randint(256, (80, 2, 12, 12), generator=generator) / 255
        images = (images - torch.tensor([0.1, 0.2]).view(2, 1, 1)) / torch.tensor([0.3, 0.4 + task]).view(2, 1, 1)
        learn(learner, list(zip(images.split(10), torch.arange(80).remainder(3).split(10), strict=True)))
    assert sum(learner.episodic_memory.sizes.values()) == 90
    pixels, tables = 90 * 288, 2 * 2 * 256 * 4
    assert learner.memory_bytes()["samples"] == pixels + tables + 90 + 2 * 3 * 8
    state = through_a_file(learner.state_dict())
    tensors = [
        part for episode in state["remembered"]["episodic_memory"] for column in episode["tensors"] for part in column
    ]
    assert sum(tensor.nbytes for tensor in tensors) == learner.memory_bytes()["samples"]
    assert {tensor.dtype for tensor in tensors if tensor.numel() > 2000} == {torch.uint8}


def test_agem_shares_its_memory_equally_among_the_tasks_so_far() -> None:
    learner = AGEM(HEADS.model(), memory=11)
    for sizes in ({0: 11}, {0: 6, 1: 5}, {0: 4, 1: 4, 2: 3}, {0: 3, 1: 3, 2: 3, 3: 2}):
        learn(learner, HEADS.loader(len(sizes) - 1))
        assert learner.episodic_memory.sizes == sizes
    text = repr(learner)
    assert "3 samples of task 0 in memory" in text
    assert "2 samples of task 3 in memory" in text


def test_er_fills_its_reservoir_and_counts_what_it_has_seen_once() -> None:
    learner = ER(HEADS.model(), memory=30)
    for task in range(3):
        learn(learner, HEADS.loader(task), epochs=5)
        assert learner.seen == 24 * (task + 1)
        assert sum(learner.episodic_memory.sizes.values()) == min(30, learner.seen)
    drawn = learner.episodic_memory.draw(30, torch.Generator())
    kept = torch.cat([x for _, (x, _) in drawn])
    assert len(kept.unique(dim=0)) == 30
    assert len(learner.episodic_memory.sizes) == 3


@BOTH
def test_a_new_learner_with_the_same_seed_remembers_and_draws_the_same(kind: type) -> None:
    learners = []
    for seed in (1, 1, 2):
        learner = kind(HEADS.model(), memory=9, replay=4)
        torch.manual_seed(seed)
        for task in range(2):
            learn(learner, HEADS.loader(task))
        learners.append(learner)
    one, same, other = (learner.episodic_memory.to_plain()[0]["tensors"][0][0] for learner in learners)
    assert torch.equal(one, same)
    assert one.shape != other.shape or not torch.equal(one, other)
    assert same_bits(learners[0].model, learners[1].model)


@BOTH
def test_no_random_number_of_the_user_s_is_drawn(kind: type) -> None:
    learner, optimizer = in_third_task(kind)
    state = torch.get_rng_state()
    train(learner, optimizer, HEADS.loader(2))
    learner.end_task(HEADS.loader(2))
    assert torch.equal(torch.get_rng_state(), state)


@BOTH
def test_a_state_of_a_memory_of_another_size_is_refused(kind: type) -> None:
    state = learned(kind, memory=10).state_dict()
    with pytest.raises(CuberError, match=r"a memory of 10 samples, not 20: make the learner with memory=10"):
        kind(HEADS.model(), memory=20).load_state_dict(state)
