"""What a learner remembers is saved, loaded, moved and counted by its declared types."""

from __future__ import annotations

import copy
import io
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from cuber import CUBER, CuberError, FineTune
from cuber.core.state import bytes_by_kind, declared, from_plain, moved, nbytes, to_plain
from tests.loops import learn, loss_fn
from tests.models import CASES

CPU, META = torch.device("cpu"), torch.device("meta")


@dataclass
class Inner:
    values: Tensor
    norm: float
    tags: set[str] = field(default_factory=set)


@dataclass
class Outer:
    by_task: dict[int, Inner]
    parts: list[Inner | None]
    basis: Tensor | None = None
    names: dict[str, list[int]] = field(default_factory=dict)


class SavedInItsOwnWay:
    """Its plain form has tensors that exist nowhere else."""

    def __init__(self, total: float) -> None:
        self.total = total

    def to_plain(self) -> Any:
        return {"total": torch.full((4,), self.total, dtype=torch.float64)}

    @classmethod
    def from_plain(cls, plain: Any, device: torch.device) -> SavedInItsOwnWay:
        return cls(float(plain["total"][0]))


def outer() -> Outer:
    inner = Inner(torch.arange(3.0), 2.5, {"b", "a"})
    return Outer({3: inner, 10: Inner(torch.zeros(0), 0.0)}, [None, inner], torch.eye(2), {"x": [1, 2], "y": []})


def assert_same(one: Any, other: Any) -> None:
    """Fail unless both have the same types and values throughout."""
    assert type(one) is type(other)
    if isinstance(one, Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    elif hasattr(one, "__dict__"):
        assert_same(vars(one), vars(other))
    else:
        assert one == other


def saved_and_loaded(plain: Any) -> Any:
    """Write a plain value to a file and read it, without any class of ours."""
    file = io.BytesIO()
    torch.save(plain, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


CASES_OF_TYPES: dict[str, tuple[Any, Any]] = {
    "nested dataclasses": (Outer, outer()),
    "a dataclass or None": (Inner | None, Inner(torch.ones(2), 1.0)),
    "None": (Inner | None, None),
    "integer keys": (dict[int, dict[str, Tensor]], {3: {"a": torch.ones(1)}, -1: {}}),
    "a set": (set[str], {"b", "a"}),
    "a list of lists": (list[list[int]], [[1], [], [2, 3]]),
    "half precision": (dict[str, Tensor], {"x": torch.ones(2, dtype=torch.bfloat16)}),
    "a number": (int, 7),
    "a class that is saved in its own way": (dict[str, SavedInItsOwnWay], {"x": SavedInItsOwnWay(2.0)}),
}


@pytest.mark.parametrize("name", CASES_OF_TYPES)
def test_what_is_saved_is_loaded_as_it_was(name: str) -> None:
    kind, value = CASES_OF_TYPES[name]
    assert_same(from_plain(kind, saved_and_loaded(to_plain(value)), CPU), value)


simple = st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)


@given(st.dictionaries(st.integers(), st.lists(st.none() | simple, max_size=3), max_size=3))
def test_any_dictionary_of_lists_is_loaded_as_it_was(value: Any) -> None:
    assert_same(from_plain(dict[int, list[Any | None]], to_plain(value), CPU), value)


def test_parameters_are_saved_as_tensors_and_loaded_as_parameters() -> None:
    value = {"mask": nn.Parameter(torch.randn(3))}
    plain = to_plain(value)
    assert not plain["mask"].requires_grad
    loaded = from_plain(dict[str, nn.Parameter], plain, CPU)
    assert isinstance(loaded["mask"], nn.Parameter)
    assert torch.equal(loaded["mask"], value["mask"])


def test_a_generator_goes_on_where_it_was() -> None:
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    loaded = from_plain(torch.Generator, to_plain(generator), CPU)
    assert torch.equal(torch.rand(5, generator=generator), torch.rand(5, generator=loaded))


def test_tensors_are_moved_to_a_device_in_place_and_all_of_them() -> None:
    value = outer()
    inner = value.by_task[3]
    assert moved(value, META) is value
    assert value.by_task[3] is inner
    assert {t.device for t in (inner.values, value.parts[1].values, value.basis)} == {META}  # type: ignore[union-attr]
    assert from_plain(Outer, to_plain(outer()), META).basis.device == META
    own = SavedInItsOwnWay(1.0)
    assert moved([own], META) == [own]


def test_bytes_are_those_of_all_tensors_and_shared_ones_count_once() -> None:
    shared = torch.zeros(5)
    assert nbytes({"a": [shared, shared], "b": Inner(shared, 0.0)}) == 20
    assert nbytes([Inner(shared, 0.0), Inner(torch.zeros(5), 0.0)]) == 40
    assert nbytes(outer()) == 12 + 16
    assert nbytes([SavedInItsOwnWay(float(i)) for i in range(10)]) == 320
    assert nbytes([1, "x", None, {"y"}]) == 0


def test_bytes_are_counted_by_attribute_or_by_field_under_their_kinds() -> None:
    attributes = {"memory": {"layer": outer(), "other": outer()}, "fisher": {"w": torch.zeros(2)}, "steps": 3}
    counted = bytes_by_kind(attributes, {"basis": "bases", "fisher": "importance"})
    assert counted == {"by_task": 24, "parts": 24, "bases": 32, "names": 0, "importance": 8, "steps": 0}


def test_a_class_declares_what_it_adds_to_its_bases() -> None:
    class Base:
        remembered: ClassVar[dict[str, Any]] = {"a": int, "b": int}

    class Between(Base):
        pass

    class Derived(Between):
        remembered: ClassVar[dict[str, Any]] = {"b": str, "c": int}

    assert declared(Derived, "remembered") == {"a": int, "b": str, "c": int}
    assert declared(Base, "remembered") == {"a": int, "b": int}


# Whole learners


class Counting(FineTune):
    """A method of a user's own, which remembers something."""

    remembered: ClassVar[dict[str, Any]] = {"seen": dict[int, Inner], "count": int}
    in_task: ClassVar[dict[str, Any]] = {"inside": Tensor | None}

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: dict[int, Inner] = {}
        self.count = 0
        self.inside: Tensor | None = None

    def on_task_begin(self) -> None:
        self.inside = torch.ones(3)

    def on_task_end(self, loader: Any) -> None:
        self.seen[self.tasks] = Inner(torch.ones(2), 1.0, {"learned"})
        self.count += 1


def test_what_a_method_of_a_users_own_declares_is_saved_loaded_and_counted() -> None:
    case = CASES["mlp"]
    learner = Counting(case.model())
    learn(learner, case.loader(0))
    assert learner.memory_bytes()["values"] == 8
    between = saved_and_loaded(learner.state_dict())
    assert "inside" not in between["remembered"]
    learner.begin_task(case.loader(1), loss_fn)
    twin = Counting(case.model())
    twin.load_state_dict(saved_and_loaded(learner.state_dict()))
    assert_same([twin.seen, twin.count, twin.inside], [learner.seen, 1, torch.ones(3)])
    twin.load_state_dict(between)
    assert twin.task is None
    assert twin.count == 1


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    case = CASES["mlp"]
    learner = CUBER(case.model(), eps1=0.0)
    for task in range(2):
        learn(learner, case.loader(task))
    learner.begin_task(case.loader(2), loss_fn)
    return {**learner.state_dict(), "weights": {}}  # it is loaded into other models


def test_a_state_is_plain_values_and_independent_of_the_learner(state: dict[str, Any]) -> None:
    case = CASES["mlp"]
    learner = CUBER(case.model(), eps1=0.0)
    learner.load_state_dict(saved_and_loaded(state))
    assert_same({**learner.state_dict(), "weights": {}}, state)
    before = copy.deepcopy(state)
    learner.load_state_dict(state)
    for layer in learner.memory.values():
        layer.basis.zero_()
    assert_same(state, before)


def test_a_state_of_the_version_before_is_refused_in_one_sentence(state: dict[str, Any]) -> None:
    """Then everything lay side by side, without "remembered"."""
    old = {key: value for key, value in state.items() if key != "remembered"} | state["remembered"]
    learner = CUBER(CASES["mlp"].model(), eps1=0.0)
    with pytest.raises(CuberError, match=r"saved by an earlier version of cuber.*learn the tasks again"):
        learner.load_state_dict(old)
    assert learner.tasks == 0


@pytest.mark.parametrize("lacking", ["tasks", "remembered", "memory", "with_bias", "anchors"])
def test_a_state_that_lacks_something_is_refused_and_changes_nothing(state: dict[str, Any], lacking: str) -> None:
    partly = copy.deepcopy(state)
    partly.pop(lacking, None)
    partly.get("remembered", {}).pop(lacking, None)
    learner = CUBER(CASES["mlp"].model(), eps1=0.0)
    with pytest.raises(CuberError, match=f"this state is incomplete: it lacks '{lacking}'"):
        learner.load_state_dict(partly)
    assert learner.tasks == 0
    assert all(memory.size == 0 for memory in learner.memory.values())
