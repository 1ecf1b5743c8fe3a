"""A simulated accelerator: tensors that say they are on a device "gpu", whose numbers lie in memory beside them.

As on a real one, no operation takes tensors of both devices; torch's own exceptions are copies, indices, and CPU
tensors without dimensions. Registering a device cannot be undone, so use it in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

NAME = "gpu"
aten = torch.ops.aten

COPIES = {aten._to_copy.default, aten.copy_.default, aten.copy.default}
INDEXES = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
JOINS = {aten.cat.default, aten.stack.default}


class Remote(Tensor):
    """A tensor on the simulated device."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor) -> Remote:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            numbers.shape,
            strides=numbers.stride(),
            storage_offset=numbers.storage_offset(),
            dtype=numbers.dtype,
            device=torch.device(NAME, 0),
        )
        made.numbers = numbers
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(operation, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()  # torch's own reads memory

    def __getitem__(self, index: Any) -> Tensor:
        # Torch's own makes tensors of lists on the device, past every mode.
        return super().__getitem__(torch.tensor(index, dtype=torch.long) if isinstance(index, list) else index)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Remote({self.numbers})"


class Operations(TorchDispatchMode):
    """Also operations without any tensor of the device, such as those that make one."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(operation, args, kwargs or {})


class Literals(TorchFunctionMode):
    """``torch.tensor`` makes tensors past every dispatch mode."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = (kwargs or {}).get("device") if function is torch.tensor else None
        if device is None:
            return function(*args, **(kwargs or {}))
        return function(*args, **{**(kwargs or {}), "device": "cpu"}).to(device)


HAS_FLOAT64 = [True]
"""Apple's GPUs have not. Global, because backward passes run in threads without modes."""


@contextmanager
def accelerator(*, float64: bool = True) -> Iterator[None]:
    """While open, tensors can be made on the device, moved to it and back."""
    HAS_FLOAT64[0] = float64
    with Operations(), Literals():
        yield


def compute(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation in memory, after checking that a device could do it; put the result where it belongs."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    is_remote = any(isinstance(tensor, Remote) for tensor in tensors)
    stays = operation in COPIES | INDEXES
    if is_remote and not stays:
        for tensor in tensors:
            if not isinstance(tensor, Remote) and (tensor.dim() or operation in JOINS):
                raise RuntimeError(
                    f"{operation} takes tensors of one device, and one of shape {list(tensor.shape)} "
                    f"is on {tensor.device}"
                )
    to_remote = isinstance(args[0], Remote) if stays else is_remote
    if kwargs.get("device") is not None:
        to_remote = torch.device(kwargs["device"]).type == NAME
        kwargs = {**kwargs, "device": torch.device("cpu"), "pin_memory": False}
    if to_remote and kwargs.get("generator") is not None:
        raise RuntimeError(f"{operation} takes a generator of the device, not of the CPU")
    here, options = tree_map_only(Remote, lambda tensor: tensor.numbers, (args, kwargs))
    result = operation(*here, **options)
    if not to_remote:
        return result
    return return_and_correct_aliasing(operation, args, kwargs, tree_map_only(Tensor, to_device, result))


def to_device(tensor: Tensor) -> Tensor:
    if isinstance(tensor, Remote):
        return tensor
    if tensor.dtype == torch.float64 and not HAS_FLOAT64[0]:
        raise TypeError("the device has no float64")
    return Remote(tensor)


def register() -> torch.device:
    """Make torch know the device."""
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

    _setup_privateuseone_for_python_backend(NAME)
    # Where torch moves a model to a device of its own, each parameter stays the same object.
    torch.__future__.set_swap_module_params_on_conversion(True)
    return torch.device(NAME, 0)
