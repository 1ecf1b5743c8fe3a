"""Safe unpickling: only numbers, text, containers and plain arrays.

A pickle is a program. Those read here can call only the five functions below. None of them is numpy's own, because the
state of numpy's arrays and dtypes can turn bytes into pointers. A checksum is no protection: it can be forged too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from numbers import Integral
from typing import Any, BinaryIO

import numpy as np

from cuber.datasets.source import DamagedError

_NDARRAY = "numpy.ndarray"
_KINDS = "biufSU"
MAX_VALUES = 10**6
"""Number of values in a pickle, counted as often as they are used; those of CIFAR and miniImageNet have fewer."""


def load_plain(file: BinaryIO) -> Any:
    """Load a pickle of containers, text, numbers and arrays; Python 2 strings become bytes.

    Raises:
        DamagedError: The pickle is truncated, holds anything else, or expands to more than ``MAX_VALUES`` values.
    """
    try:
        return _Resolver().resolve(_Unpickler(file, encoding="bytes").load())
    except (DamagedError, OSError):
        raise
    except Exception as error:  # damaged pickles fail with unrelated types
        raise DamagedError(f"is cut off or no pickle ({str(error) or type(error).__name__})") from error


class _Unpickler(pickle._Unpickler):
    # The Python implementation: the C one holds long byte strings twice.
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return _NDARRAY
        function = _ALLOWED.get((module.replace("numpy._core", "numpy.core"), name))
        if function is None:
            raise DamagedError(
                f"is refused: it asks for {module}.{name}, but these files hold only numbers, text, lists, "
                "dictionaries and arrays, so it has been tampered with"
            )
        return _Call(function)


class _Call:
    """An allowed function, wrapped for each pickle because a pickle may set attributes of it."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


class _Dtype:
    """Placeholder for a numpy.dtype while the pickle is read."""

    __slots__ = ("dtype",)

    def __init__(self, name: Any, *_: Any) -> None:
        self.dtype = _plain_dtype(text(name))

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.dtype = _plain_dtype(text(state[1]) + self.dtype.str[1:])  # with its byte order


def _plain_dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind not in _KINDS or dtype.fields is not None or dtype.subdtype is not None:
        raise DamagedError(f"is refused: it holds an array of {dtype}, not of plain numbers")
    return dtype


class _Array:
    """Placeholder for a numpy.ndarray while the pickle is read."""

    __slots__ = ("array",)

    def __init__(self, *_: Any) -> None:
        self.array: np.ndarray = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        # Without a copy, because the array may be larger than the free memory.
        self.array = np.frombuffer(raw, dtype.dtype).reshape(shape, order="F" if fortran else "C")


def _from_buffer(raw: bytes, dtype: _Dtype, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.__setstate__((None, shape, dtype, order == "F", raw))
    return array


def _scalar(dtype: _Dtype, raw: bytes) -> Any:
    return np.frombuffer(raw, dtype.dtype)[0]


def _latin1(value: str, encoding: str) -> bytes:
    """Decode bytes that Python 3 pickled for Python 2."""
    if encoding not in ("latin1", "latin-1"):
        raise DamagedError(f"is refused: it asks for the codec {encoding}")
    return value.encode("latin-1")


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _latin1,
}


class _Resolver:
    """Replace placeholders by arrays, and count values: lists that share lists can expand without bounds."""

    count = 0

    def resolve(self, value: Any) -> Any:
        self.count += 1
        if self.count > MAX_VALUES:
            raise DamagedError(f"is refused: it holds more than {MAX_VALUES:,} values")
        if isinstance(value, _Array):
            return value.array
        if isinstance(value, list | tuple):
            return type(value)(map(self.resolve, value))
        if isinstance(value, dict):
            return {self.resolve(key): self.resolve(item) for key, item in value.items()}
        if isinstance(value, bytes | str | int | float | np.generic) or value is None:
            return value
        raise DamagedError(f"is refused: it holds a {type(value).__name__}")


def text(value: Any) -> str:
    """Return a Python 2 or Python 3 string as str."""
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def whole_numbers(values: Any) -> np.ndarray:
    """Return a list or array of whole numbers as an array; of other values it could be much larger than the pickle."""
    if isinstance(values, list) and all(isinstance(value, Integral) for value in values):
        values = np.array(values)
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iu":
        raise DamagedError("has labels or indices that are not a list of whole numbers")
    return values
