"""Convert nested state to JSON and named tensors, and back."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cuber.errors import CuberError

MARK = "$"
"""First character of the only key of a JSON object that stands for a value which JSON lacks."""


def flatten(tree: Any) -> tuple[Any, dict[str, Tensor]]:
    """Return nested state as JSON values, and its tensors by name; tensors with the same content are stored once.

    >>> plain, tensors = flatten({"step": 3, "weights": [torch.zeros(2), torch.zeros(2)], 7: (1.5, None)})
    >>> len(tensors)
    1
    >>> unflatten(plain, tensors)
    {'step': 3, 'weights': [tensor([0., 0.]), tensor([0., 0.])], 7: (1.5, None)}
    """
    tensors: dict[str, Tensor] = {}
    names: dict[bytes, str] = {}

    def name_of(tensor: Tensor) -> str:
        content = tensor.detach().cpu().contiguous()
        data = content.reshape(-1).view(torch.uint8).numpy().tobytes() if content.numel() else b""
        digest = hashlib.blake2b(data, digest_size=16)
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
            # Torch lacks most unsigned integers; those of numpy's generators fit into int64.
            dtype = np.int64 if value.dtype.kind == "u" else value.dtype.type
            return {f"{MARK}array": [str(value.dtype), name_of(torch.from_numpy(value.astype(dtype)))]}
        if isinstance(value, list | tuple):
            parts = [plain(part, f"{place}[{i}]") for i, part in enumerate(value)]
            return parts if isinstance(value, list) else {f"{MARK}tuple": parts}
        if isinstance(value, dict):
            if all(isinstance(key, str) and not key.startswith(MARK) for key in value):
                return {key: plain(part, f"{place}.{key}") for key, part in value.items()}
            return {f"{MARK}dict": [[plain(key, place), plain(part, f"{place}[{key}]")] for key, part in value.items()]}
        raise CuberError(f"a {type(value).__name__} cannot be saved (in the state at {place or 'its root'})")

    return plain(tree, ""), tensors


def unflatten(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the state that ``flatten`` was given; every tensor is a copy."""
    if isinstance(plain, list):
        return [unflatten(part, tensors) for part in plain]
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
                return tuple(unflatten(part, tensors) for part in value)
            case "dict":
                return {unflatten(key, tensors): unflatten(part, tensors) for key, part in value}
    return {key: unflatten(part, tensors) for key, part in plain.items()}
