"""Save, load, move and measure what a learner remembers: written once for all methods.

A method declares its memory by attribute name and type::

    remembered = {"anchors": dict[str, Tensor], "steps": int}

Types may nest tensors, parameters, numbers, strings, lists, sets, dictionaries, dataclasses of these, ``| None``, and
``torch.Generator``. A class that is saved in its own way has a method ``to_plain()`` and a class method
``from_plain(plain, device)``; it is not moved when the model is.
"""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from cuber.core.misuse import require_no_view
from cuber.core.provenance import present_settings, sampled_weights
from cuber.errors import CuberError

if TYPE_CHECKING:
    from cuber.core.learner import Method

Plain = Any
"""Tensors, numbers, strings and None in lists and dictionaries."""
PROGRESS = ("tasks", "task", "epoch", "steps_per_epoch", "sample")
"""Attributes of every learner that say where it is in its loop."""


def save(learner: Method) -> dict[str, Any]:
    """Return a copy of what a learner must remember, as plain values and tensors."""
    require_no_view(learner, "state_dict")
    names = declared_state(type(learner), in_task=learner.task is not None)
    return copy.deepcopy(
        {
            "method": type(learner).__name__,
            "model": _shapes(learner.model),
            "settings": present_settings(learner),
            "weights": sampled_weights(learner),
            **{name: getattr(learner, name) for name in PROGRESS},
            "remembered": {name: to_plain(getattr(learner, name)) for name in names},
        }
    )


def load(learner: Method, state: dict[str, Any]) -> None:
    """Give a learner the values that :func:`save` returned."""
    for name in PROGRESS:
        setattr(learner, name, state[name])
    remembered = copy.deepcopy(state["remembered"])  # tensors that occur twice, such as statistics, stay one
    for name, kind in declared_state(type(learner), in_task=learner.task is not None).items():
        setattr(learner, name, from_plain(kind, remembered[name], learner.device))
    learner.memory_device = learner.device
    nothing_learned = learner.tasks == 0 and learner.task is None
    learner.expected_weights = {} if nothing_learned else state.get("weights", {})


def move(learner: Method) -> None:
    """Move what a learner remembers to the device of its model, if that was moved."""
    if learner.memory_device == learner.device:
        return
    for name in declared_state(type(learner), in_task=False):
        setattr(learner, name, moved(getattr(learner, name), learner.device))
    learner.memory_device = learner.device


def declared_state(method: type, *, in_task: bool) -> dict[str, Any]:
    """Return attribute -> type of what a method keeps: between tasks, or also in the middle of one."""
    names = declared(method, "remembered")
    return names | declared(method, "in_task") if in_task else names


def _shapes(model: nn.Module) -> dict[str, list[int]]:
    return {name: list(parameter.shape) for name, parameter in model.named_parameters()}


def to_plain(value: Any) -> Plain:
    """Return ``value`` as plain values and tensors; tensors are shared, not copied."""
    if isinstance(value, Tensor):
        return value.detach() if value.requires_grad else value
    if isinstance(value, torch.Generator):
        return value.get_state()
    if hasattr(value, "to_plain"):
        return value.to_plain()
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    return sorted(value) if isinstance(value, set) else value


def from_plain(kind: Any, plain: Plain, device: torch.device) -> Any:
    """Build a value of type ``kind`` from what :func:`to_plain` returned, with its tensors on ``device``.

    >>> from_plain(dict[int, Tensor], {"3": torch.ones(2)}, torch.device("cpu"))
    {3: tensor([1., 1.])}
    """
    arguments = get_args(kind)
    origin = get_origin(kind)
    if plain is None:
        return None
    if origin in (Union, types.UnionType):
        return from_plain(next(part for part in arguments if part is not type(None)), plain, device)
    if hasattr(kind, "from_plain"):
        return kind.from_plain(plain, device)
    if kind is torch.Generator:
        generator = torch.Generator()
        generator.set_state(plain.cpu())
        return generator
    if kind is nn.Parameter:
        return nn.Parameter(plain.to(device))
    if isinstance(plain, Tensor):
        return plain.to(device)
    if origin is dict:
        key, part = arguments
        return {key(name): from_plain(part, value, device) for name, value in plain.items()}
    if origin in (list, set):
        return origin(from_plain(arguments[0], value, device) for value in plain)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(  # type: ignore[operator]
            **{
                field.name: from_plain(hints[field.name], plain[field.name], device)
                for field in dataclasses.fields(kind)
                if field.name in plain  # states of earlier versions lack those that were added with a default
            }
        )
    return plain


def moved(value: Any, device: torch.device) -> Any:
    """Return ``value`` with its tensors on ``device``; dataclasses and containers are changed in place."""
    if isinstance(value, Tensor):
        return value.to(device)
    if hasattr(value, "to_plain"):
        return value
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            setattr(value, field.name, moved(getattr(value, field.name), device))
    elif isinstance(value, dict):
        value.update({key: moved(part, device) for key, part in value.items()})
    elif isinstance(value, list):
        value[:] = [moved(part, device) for part in value]
    return value


def nbytes(value: Any) -> int:
    """Count the bytes of all tensors in ``value``; a tensor that occurs twice counts once."""
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors_in(value)}.values())


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Iterate over all tensors in ``value``."""
    if isinstance(value, Tensor):
        yield value
    elif hasattr(value, "to_plain"):
        yield from tensors_in(value.to_plain())
    elif isinstance(value, Mapping | list | tuple):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def memory_bytes(learner: Method) -> dict[str, int]:
    """Count the bytes that a learner keeps between tasks, by kind."""
    kinds = {"statistics": "statistics"} | declared(type(learner), "kinds")
    names = declared_state(type(learner), in_task=False)
    total = bytes_by_kind({name: getattr(learner, name) for name in names}, kinds)
    return {kind: size for kind, size in total.items() if size or kind in kinds.values()}


def bytes_by_kind(attributes: Mapping[str, Any], kinds: Mapping[str, str]) -> dict[str, int]:
    """Count the bytes in attributes, by their names or, where they hold dataclasses, by the names of their fields.

    Args:
        attributes: attribute -> value.
        kinds: other names to count under, for attributes and fields.
    """
    total: dict[str, int] = {}
    for name, value in attributes.items():
        parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(dataclasses.is_dataclass(part) for part in parts):
            sizes = [
                (field.name, nbytes(getattr(part, field.name))) for part in parts for field in dataclasses.fields(part)
            ]
        else:
            sizes = [(name, nbytes(value))]
        for counted, size in sizes:
            kind = kinds.get(counted, counted)
            total[kind] = total.get(kind, 0) + size
    return total


def declared(owner: type, name: str) -> dict[str, Any]:
    """Merge the mappings that a class and its bases declare under one name."""
    return {key: kind for cls in reversed(owner.__mro__) for key, kind in vars(cls).get(name, {}).items()}


def check_state(learner: Method, state: Any) -> None:
    """Raise unless a state was saved by the same method, with the same memory, around the same model."""
    method, shapes = type(learner).__name__, _shapes(learner.model)
    in_task = isinstance(state, dict) and state.get("task") is not None
    names = declared_state(type(learner), in_task=in_task)
    saved_by = state.get("method", "something else") if isinstance(state, dict) else type(state).__name__
    if saved_by != method:
        raise CuberError(f"this state was saved by {saved_by}, not {method}")
    if "remembered" not in state and "statistics" in state:
        raise CuberError(
            "this state was saved by an earlier version of cuber, in another format: load it with that version, or "
            "learn the tasks again"
        )
    lacking = [name for name in ("model", *PROGRESS, "remembered") if name not in state]
    lacking += [name for name in names if name not in state.get("remembered", names)]
    if lacking:
        raise CuberError(f"this state is incomplete: it lacks '{lacking[0]}'; save learner.state_dict() again")
    saved = state["model"]
    if saved != shapes:
        name = next(name for name in {**saved, **shapes} if shapes.get(name) != saved.get(name))
        raise CuberError(
            f"this state belongs to another model: parameter '{name}' is {saved.get(name, 'missing')} "
            f"there and {shapes.get(name, 'missing')} here"
        )
