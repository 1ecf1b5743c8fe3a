"""Boundaries of tasks in a stream of batches: noticed, recognized, not imagined."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cuber
from cuber import Boundaries, CuberError
from cuber.core.boundaries import GROUP, scores
from cuber.core.first_layer import FirstLayer
from cuber.subspace import ChangeTest, Density
from tests.loops import loss_fn
from tests.models import CASES

SHIFTS = {"A": 0.0, "B": 3.0, "C": -3.0}


def learner(inputs: int = 6) -> cuber.Method:
    return cuber.GPM(nn.Sequential(nn.Linear(inputs, 4), nn.ReLU(), nn.Linear(4, 2)))


def stream(tasks: str, batches: int = 40, size: int = 10, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Heavy-tailed inputs around another point in each task."""
    random = torch.Generator().manual_seed(seed)
    for task in tasks:
        for _ in range(batches):
            x = torch.randn(size, 6, generator=random) ** 3 / 2
            yield x + SHIFTS[task] * torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 0.0]), torch.zeros(size).long()


def events(boundaries: Boundaries, batches: Any) -> list[tuple[str, int, int | None]]:
    seen = [boundaries.observe(batch) for batch in batches]
    return [(each.kind, each.task, each.change) for each in seen if each.kind != "same"]


def test_new_tasks_are_noticed_and_those_that_come_back_recognized() -> None:
    boundaries = Boundaries(learner(), warm_up=100)
    found = events(boundaries, stream("ABACB"))
    assert [(kind, task) for kind, task, _ in found] == [("new", 1), ("known", 0), ("new", 2), ("known", 1)]
    assert all(abs((change or 0) - 40 * (1 + number)) <= 1 for number, (_, _, change) in enumerate(found))
    assert boundaries.task == 1
    assert boundaries.tasks == 3
    assert boundaries.batches == 200


def test_a_stream_of_one_task_raises_no_alarm() -> None:
    assert not [each for seed in range(3) for each in events(Boundaries(learner()), stream("A", 150, seed=seed))]


def test_samples_that_are_seen_again_and_again_raise_no_alarm() -> None:
    batches = list(stream("A", 30))
    assert not events(Boundaries(learner(), warm_up=100), batches * 10)


def test_a_slow_drift_is_reported_and_does_not_end_the_task() -> None:
    random = torch.Generator().manual_seed(0)
    drifting = [torch.randn(10, 6, generator=random) + step / 150 for step in range(600)]
    boundaries = Boundaries(learner(), delay=10, warm_up=100)
    found = events(boundaries, drifting)
    assert found
    assert {kind for kind, *_ in found} == {"drift"}
    assert boundaries.task == 0
    assert boundaries.tasks == 1


@pytest.mark.parametrize("rate", [0.003, 0.01])
def test_a_drift_that_takes_longer_than_the_delay_is_never_taken_for_a_task(rate: float) -> None:
    for seed in range(3):
        random = torch.Generator().manual_seed(seed)
        found = events(Boundaries(learner()), (torch.randn(10, 6, generator=random) + rate * n for n in range(400)))
        assert {kind for kind, *_ in found} <= {"drift"}


def test_a_task_whose_inputs_vary_less_is_noticed_too() -> None:
    random = torch.Generator().manual_seed(0)
    narrow = [torch.randn(10, 6, generator=random) * (0.3 if n >= 60 else 1) for n in range(100)]
    ((kind, task, change),) = events(Boundaries(learner()), narrow)
    assert (kind, task) == ("new", 1)
    assert abs((change or 0) - 60) <= 1


@pytest.mark.parametrize(("size", "delay"), [(10, 1), (10, 3), (2, 20)])
def test_an_abrupt_change_that_is_noticed_late_is_no_drift(size: int, delay: int) -> None:
    """Batches may be so small, or the delay so short, that the evidence takes longer."""
    random = torch.Generator().manual_seed(0)
    means, count = {"A": 0.0, "B": 4.0, "C": -4.0}, 400 // size
    coordinates = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    batches = [
        torch.randn(size, 6, generator=random) + means[task] * coordinates for task in "ABAC" for _ in range(count)
    ]
    found = events(Boundaries(learner(), delay=delay, warm_up=100), batches)
    assert [(kind, task) for kind, task, _ in found] == [("new", 1), ("known", 0), ("new", 2)]


@pytest.mark.parametrize("count", [250, 400])
def test_passes_over_few_samples_of_many_dimensions_raise_no_alarm(count: int) -> None:
    """The samples that a density was fitted to come back in later passes; they must not score as others do not."""
    for seed in range(3):
        random = torch.Generator().manual_seed(seed)
        samples = torch.randn(count, 784, generator=random)
        passes = (samples[torch.randperm(count, generator=random)] for _ in range(6))
        boundaries = Boundaries(learner(784))
        assert not events(boundaries, (batch for one in passes for batch in one.split(10)))


@pytest.mark.parametrize("size", [1, 2, 5])
def test_groups_are_made_across_small_batches(size: int) -> None:
    random = torch.Generator().manual_seed(0)
    batches = [torch.randn(size, 6, generator=random) + 5 * (n >= 300) for n in range(400)]
    ((kind, task, change),) = events(Boundaries(learner(), warm_up=100, delay=60), batches)
    assert (kind, task) == ("new", 1)
    assert abs((change or 0) - 300) <= 4 * GROUP  # unusual samples just before it move it by chance


def test_what_an_image_is_made_of_is_noticed_in_a_convolution() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 2))
    random = torch.Generator().manual_seed(0)
    noise = [torch.randn(12, 1, 8, 8, generator=random) for _ in range(60)]
    smooth = [each.repeat_interleave(2, 2)[:, :, :8].contiguous() for each in noise[:20]]
    found = events(Boundaries(cuber.FineTune(model), warm_up=100), [*noise[20:], *smooth])
    assert found == [("new", 1, 40)]


@pytest.mark.parametrize("cut", [5, 20, 40, 44, 47, 90])
def test_a_saved_state_continues_to_the_bit(cut: int) -> None:
    batches = list(stream("ABA"))
    whole, first = Boundaries(learner(), warm_up=100), Boundaries(learner(), warm_up=100)
    expected = [whole.observe(batch) for batch in batches]
    before = [first.observe(batch) for batch in batches[:cut]]
    state = first.state_dict()
    saved = copy.deepcopy(state)
    first.observe(batches[cut])  # changes nothing in the state
    second = Boundaries(learner(), warm_up=100)
    second.load_state_dict(state)
    second.learner.model.double()  # the model may be moved or converted; all that is kept is on the CPU
    after = [second.observe((x.double(), y)) for x, y in batches[cut:]]
    assert before + after == expected
    assert str(saved) == str(state)


def test_neither_weights_nor_mode_nor_random_numbers_are_touched() -> None:
    method = cuber.GPM(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2)))
    before, random = copy.deepcopy(method.model.state_dict()), torch.get_rng_state()
    boundaries = Boundaries(method)
    for batch in stream("A", 3):
        boundaries.observe(batch)
    assert all(torch.equal(before[name], value) for name, value in method.model.state_dict().items())
    assert torch.equal(random, torch.get_rng_state())
    assert method.model.training
    assert not any(module._forward_pre_hooks for module in method.model.modules())


def test_memory_is_counted_and_does_not_grow_with_the_stream() -> None:
    boundaries = Boundaries(learner(), warm_up=100, delay=5)
    sizes = []
    for number, batch in enumerate(stream("A", 120)):
        boundaries.observe(batch)
        if number in (60, 119):
            sizes.append(boundaries.memory_bytes())
    waiting = (GROUP - 1) * 6 * 4  # bytes of samples whose group is not complete
    assert abs(sizes[0]["test"] - sizes[1]["test"]) <= waiting
    assert sizes[0]["tasks"] == 0 < sizes[0]["test"]


def test_a_learners_own_forward_is_used() -> None:
    method = cuber.CUBER(nn.Linear(6, 2), forward=lambda model, batch: model(batch["x"]).square().mean())
    found = events(Boundaries(method, warm_up=100), ({"x": x} for x, _ in stream("AB")))
    assert [kind for kind, *_ in found] == ["new"]


def test_the_loop_of_the_guide() -> None:
    text = (Path(__file__).parents[2] / "docs" / "boundaries.md").read_text()
    loop = text.partition("```python\n")[2].partition("```")[0]
    method = learner()
    exec(loop, {"cuber": cuber, "torch": torch, "learner": method, "batches": stream("AB"), "loss_fn": loss_fn})
    assert method.tasks == 2
    assert method.task is None


# What a sample is described by


@pytest.mark.parametrize("name", CASES)
def test_all_methods_see_the_same_of_every_model_and_leave_it_as_it_was(name: str) -> None:
    """A method without protected layers attaches them for a moment; inputs that training changes are refused alike."""
    torch.manual_seed(0)
    model = CASES[name].model()
    batch = CASES[name].loader(0)[0]
    results: list[Any] = []
    for method in (cuber.GPM, cuber.FineTune):
        first = FirstLayer(method(copy.deepcopy(model)))
        forwards = [vars(module).get("forward") for module in first.learner.model.modules()]
        try:
            results.append(first.describe(batch))
            assert len(results[-1]) == len(batch[0])
        except CuberError as error:
            results.append(str(error))
        assert forwards == [vars(module).get("forward") for module in first.learner.model.modules()]
    assert str(results[0]) == str(results[1])


def learned(batch: tuple[Tensor, Tensor]) -> cuber.Method:
    method = learner()
    method.begin_task([batch], nn.functional.cross_entropy)
    method.wrap(torch.optim.SGD(method.parameters(), lr=0.1))
    method.end_task([batch])
    return method


def test_boundaries_and_task_inference_describe_a_sample_alike() -> None:
    batch = next(stream("A"))
    method = learned(batch)
    assert isinstance(method, cuber.GPM)
    assert torch.equal(FirstLayer(method).describe(batch), method.describe_inputs(batch[0]))


def test_a_batch_may_be_observed_while_tasks_are_inferred() -> None:
    batch = next(stream("A"))
    method = learned(batch)
    expected = FirstLayer(method).describe(batch)
    with method.as_task("infer"):
        assert torch.equal(FirstLayer(method).describe(batch), expected)


@pytest.mark.parametrize("method", [cuber.GPM, cuber.OWM, cuber.FineTune])
def test_padding_is_not_described(method: type[cuber.Method]) -> None:
    first = FirstLayer(method(nn.Linear(6, 2), forward=lambda model, batch: model(batch["x"]).mean()))
    x, mask = torch.randn(3, 5, 6), torch.ones(3, 5)
    longer = {
        "x": torch.cat([x, torch.full((3, 4, 6), 9.0)], dim=1),
        "attention_mask": torch.cat([mask, mask[:, :4] * 0], 1),
    }
    torch.testing.assert_close(first.describe(longer), first.describe({"x": x, "attention_mask": mask}))


def test_a_copy_of_a_protected_model_keeps_the_forward_passes_that_it_came_with() -> None:
    method = cuber.FineTune(copy.deepcopy(learner().model))
    before = [vars(module).get("forward") for module in method.model.modules()]
    assert any(before)
    FirstLayer(method).describe(next(stream("A")))
    assert [vars(module).get("forward") for module in method.model.modules()] == before


def test_a_group_of_samples_is_scored_by_the_density_at_its_mean() -> None:
    vectors = torch.randn(61, 5, generator=torch.Generator().manual_seed(0))
    density = Density.fit(vectors)
    means = vectors[:60].reshape(20, GROUP, 5).mean(1)
    assert torch.allclose(scores(density, vectors), -density.log_density(means))
    assert len(scores(density, vectors[: GROUP - 1])) == 0


# Bad use


def test_bad_settings_are_one_sentence() -> None:
    with pytest.raises(CuberError, match=r"Boundaries: false_alarms must be a number from 1e-09 to 0.5, not 0"):
        Boundaries(learner(), false_alarms=0.0)
    with pytest.raises(CuberError, match=r"Boundaries: delay must be a whole number of at least 1, not 0"):
        Boundaries(learner(), delay=0)
    with pytest.raises(TypeError, match=r"delay"):
        Boundaries(learner(), delays=3)


def test_what_has_no_boundaries_is_refused() -> None:
    with pytest.raises(CuberError, match=r"Boundaries takes a learner such as cuber.CUBER\(model\), not a Linear"):
        Boundaries(nn.Linear(6, 2))  # type: ignore[arg-type]
    with pytest.raises(CuberError, match=r"Multitask learns all tasks at once: there are no boundaries to find"):
        Boundaries(cuber.Multitask(nn.Linear(6, 2)))
    detached = learner()
    detached.detach()
    with pytest.raises(CuberError, match=r"detached"):
        Boundaries(detached)
    with pytest.raises(CuberError, match=r"no trained layer of this model has a rule"):
        Boundaries(cuber.FineTune(nn.LayerNorm(6)))


def test_inputs_that_training_changes_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(9, 6), nn.Flatten(), nn.Linear(12, 2))
    with pytest.raises(CuberError, match=r"the inputs of layer '2' are computed by trained parameters"):
        Boundaries(cuber.FineTune(model)).observe(torch.zeros(4, 2).long())


@pytest.mark.parametrize("track", [True, False])
def test_inputs_that_are_normalized_by_changing_statistics_are_refused(track: bool) -> None:
    def norm() -> nn.Module:
        return nn.BatchNorm1d(6, affine=False, track_running_stats=track)

    refused = r"layer '1' are normalized by statistics that change .* normalize the data"
    for method in (cuber.GPM, cuber.FineTune):
        with pytest.raises(CuberError, match=refused):
            Boundaries(method(nn.Sequential(norm(), nn.Linear(6, 2)))).observe(torch.randn(4, 6))
    later = nn.Sequential(nn.Linear(6, 6), norm(), nn.Linear(6, 2))
    assert Boundaries(cuber.GPM(later)).observe(torch.randn(4, 6)).kind == "same"


def test_batches_are_observed_with_a_learner_of_this_model_and_with_gradients() -> None:
    boundaries = Boundaries(learner())
    with torch.inference_mode(), pytest.raises(CuberError, match=r"observe needs gradients: call it outside torch.inf"):
        boundaries.observe(torch.randn(4, 6))
    boundaries.learner.detach()
    with pytest.raises(CuberError, match=r"detached"):
        boundaries.observe(torch.randn(4, 6))


def test_bad_batches_are_one_sentence() -> None:
    boundaries = Boundaries(learner(), warm_up=100)
    with pytest.raises(CuberError, match=r"the model cannot take a batch|reaches no layer"):
        boundaries.observe("text")
    with pytest.raises(CuberError, match=r"layer '0' sees inputs that are not finite: check the batches"):
        boundaries.observe(torch.full((5, 6), torch.nan))
    with pytest.raises(
        CuberError, match=r"an input of real numbers for each of the 0 samples of a batch: give batches with at least"
    ):
        boundaries.observe(torch.zeros(0, 6))
    with pytest.raises(CuberError, match=r"layer '0' does not see an input of real numbers"):
        boundaries.observe(torch.randn(5, 6).to_sparse())
    boundaries.observe(torch.randn(5, 6))
    other = r"has inputs of another shape, described by 12 numbers per sample instead of 6: observe takes batches of"
    with pytest.raises(CuberError, match="batch 1 " + other):
        boundaries.observe(torch.randn(5, 3, 6))
    assert boundaries.batches == 1
    boundaries.observe(torch.randn(100, 6))
    with pytest.raises(CuberError, match="batch 2 " + other):
        boundaries.observe(torch.randn(5, 3, 6))


def test_inputs_too_large_for_a_density_are_one_sentence() -> None:
    boundaries = Boundaries(learner(), warm_up=20)
    boundaries.observe(torch.randn(10, 6))
    with pytest.raises(CuberError, match=r"the inputs of the batches up to 1 are too large for a density: scale them"):
        boundaries.observe(1e30 * torch.ones(10, 6))


def test_states_of_other_settings_are_refused() -> None:
    for damaged in ({}, None, {"began": 0}):
        state = {"settings": Boundaries(learner()).settings, "state": damaged}
        with pytest.raises(CuberError, match=r"this is not a state of Boundaries"):
            Boundaries(learner()).load_state_dict(state)
    with pytest.raises(CuberError, match=r"this state was saved with the settings .*'delay': 3.*: choose the same"):
        Boundaries(learner()).load_state_dict(Boundaries(learner(), delay=3).state_dict())
    with pytest.raises(CuberError, match=r"this is not a state of Boundaries: save boundaries.state_dict\(\)"):
        Boundaries(learner()).load_state_dict(learner().state_dict())
    with pytest.raises(CuberError, match=r"this is not a state of Boundaries"):
        Boundaries(learner()).load_state_dict({"state": Boundaries(learner()).state_dict()["state"]})


def test_a_change_that_is_located_too_early_does_not_hide_a_known_task(monkeypatch: pytest.MonkeyPatch) -> None:
    add = ChangeTest.add

    def early(self: ChangeTest, log_bet: float) -> None:
        add(self, log_bet)
        if self.log_cusum > 3 and self.start > 2:
            self.start -= 1 if self.batches - self.start == 1 else 0

    monkeypatch.setattr(ChangeTest, "add", early)
    found = events(Boundaries(learner(), warm_up=100), stream("ABA"))
    assert [(kind, task) for kind, task, _ in found] == [("new", 1), ("known", 0)]
    assert found[1][2] == 79
