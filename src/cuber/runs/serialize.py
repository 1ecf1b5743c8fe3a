"""State as a tree of dictionaries, lists, numbers, text and tensors, taken apart for files without pickle."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cuber.errors import CuberError

MARK = "$"
"""Begins the only key of a JSON object that stands for what JSON has not got."""


def take_apart(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """The tree as JSON has it, and its tensors by name; tensors with the same content are kept once.

    >>> plain, tensors = take_apart({"step": 3, "weights": [torch.zeros(2), torch.zeros(2)], 7: (1.5, None)})
    >>> len(tensors)
    1
    >>> put_together(plain, tensors)
    {'step': 3, 'weights': [tensor([0., 0.]), tensor([0., 0.])], 7: (1.5, None)}
    """
    tensors: dict[str, Tensor] = {}
    names: dict[bytes, str] = {}

    def name_of(tensor: Tensor) -> str:
        content = tensor.detach().cpu().contiguous()
        digest = hashlib.blake2b(_bytes(content), digest_size=16)
        digest.update(repr((content.dtype, tuple(content.shape))).encode())
        name = names.setdefault(digest.digest(), str(len(names)))
        tensors.setdefault(name, content.clone())
        return name

    def plain(value: Any, place: str) -> Any:
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {f"{MARK}float": repr(value)}
        if isinstance(value, Tensor):
            return {f"{MARK}tensor": name_of(value)}
        if isinstance(value, np.ndarray):
            return {f"{MARK}array": [str(value.dtype), name_of(torch.from_numpy(value.astype(_carrier(value.dtype))))]}
        if isinstance(value, list):
            return [plain(part, f"{place}[{i}]") for i, part in enumerate(value)]
        if isinstance(value, tuple):
            return {f"{MARK}tuple": [plain(part, f"{place}[{i}]") for i, part in enumerate(value)]}
        if isinstance(value, dict):
            if all(isinstance(key, str) and not key.startswith(MARK) for key in value):
                return {key: plain(part, f"{place}.{key}") for key, part in value.items()}
            return {f"{MARK}dict": [[plain(key, place), plain(part, f"{place}[{key}]")] for key, part in value.items()]}
        raise CuberError(f"a {type(value).__name__} cannot be saved (in the state at {place or 'its root'})")

    return plain(tree, ""), tensors


def put_together(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The inverse of ``take_apart``; every tensor is a copy of its own."""
    if isinstance(plain, list):
        return [put_together(part, tensors) for part in plain]
    if not isinstance(plain, dict):
        return plain
    if len(plain) == 1 and (only := next(iter(plain))).startswith(MARK):
        value = plain[only]
        match only.removeprefix(MARK):
            case "float":
                return float(value)
            case "tensor":
                return tensors[value].clone()
            case "array":
                return tensors[value[1]].numpy().astype(value[0])
            case "tuple":
                return tuple(put_together(part, tensors) for part in value)
            case "dict":
                return {put_together(key, tensors): put_together(part, tensors) for key, part in value}
    return {key: put_together(part, tensors) for key, part in plain.items()}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _carrier(dtype: np.dtype) -> type:
    """A type that torch has, and that holds every value of this one: torch knows few unsigned integers."""
    return np.int64 if dtype.kind == "u" else dtype.type
