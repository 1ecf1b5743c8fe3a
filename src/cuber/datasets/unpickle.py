"""Safe unpickling: only numbers, text, containers and plain arrays.

A pickle is a program. Here its calls are recorded instead of made, and those that make an array of numbers are carried
out afterwards. None of them restores numpy's own objects, because the state of numpy's arrays and dtypes can turn bytes
into pointers. A checksum is no protection: it can be forged too.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from numbers import Integral
from typing import Any, BinaryIO, ClassVar

import numpy as np

from cuber.datasets.source import DamagedError

MAX_VALUES = 10**6
"""Number of values in a pickle, counted as often as they are used; those of CIFAR and miniImageNet have fewer."""
MAX_READS, MAX_BYTES, MAX_LINE = 10**7, 2**31, 2**20
"""Number of reads from a pickle, a few for each value, of bytes, and of bytes in a line; miniImageNet: 800 MB."""
_NAMES = {
    *("numpy.ndarray", "numpy.dtype", "numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar"),
    *("numpy.core.numeric._frombuffer", "_codecs.encode"),
}


def load_plain(file: BinaryIO) -> Any:
    """Load a pickle of containers, text, numbers and arrays; Python 2 strings become bytes.

    Raises:
        DamagedError: The pickle is cut off, holds anything else, is larger than ``MAX_READS`` and ``MAX_BYTES`` allow,
            or expands to more than ``MAX_VALUES`` values.
    """
    try:
        return _Resolver().resolve(_Unpickler(_Limited(file), encoding="bytes").load())
    except (DamagedError, OSError):
        raise
    except Exception as error:  # damaged pickles fail with unrelated types
        raise DamagedError(f"is cut off or no pickle ({str(error) or type(error).__name__})") from error


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


class _Limited:
    """A file of which only so much can be read: a compressed one may be a thousand times as long as it looks."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._reads = self._bytes = 0

    def read(self, size: int) -> bytes:
        self._count(size)  # before the file allocates memory for it
        return self._file.read(size)

    def readline(self) -> bytes:
        line = self._file.readline(MAX_LINE)
        self._count(len(line))
        return line

    def _count(self, size: int) -> None:
        self._reads, self._bytes = self._reads + 1, self._bytes + size
        if self._reads > MAX_READS or self._bytes > MAX_BYTES:
            raise DamagedError(f"is refused: it has more than {MAX_READS:,} parts or {MAX_BYTES:,} bytes")


def _with_plain_keys(load: Callable[[Any], None], keys: slice) -> Callable[[Any], None]:
    """Refuse containers as keys of a dictionary: the hash of a tuple of shared tuples can take forever."""

    def checked(unpickler: Any) -> None:
        if not all(isinstance(key, bytes | str | int | float) for key in unpickler.stack[keys]):
            raise DamagedError("is refused: it has a dictionary whose keys are neither text nor numbers")
        load(unpickler)

    return checked


_HASHING = (*pickle.EMPTY_SET, *pickle.ADDITEMS, *pickle.FROZENSET)
"""Opcodes that are left out because they hash any values."""
_KEYS = {pickle.DICT[0]: slice(0, None, 2), pickle.SETITEMS[0]: slice(0, None, 2), pickle.SETITEM[0]: slice(-2, -1)}
"""Opcodes of dictionaries -> where the keys are on the stack."""


class _Unpickler(pickle._Unpickler):
    # The Python implementation: the C one holds long byte strings twice.
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code: _with_plain_keys(load, _KEYS[code]) if code in _KEYS else load
        for code, load in pickle._Unpickler.dispatch.items()
        if code not in _HASHING
    }

    def find_class(self, module: str, name: str) -> Any:
        full = f"{module.replace('numpy._core', 'numpy.core')}.{name}"
        if full not in _NAMES:
            raise DamagedError(
                f"is refused: it asks for {module}.{name}, but these files hold only numbers, text, lists, "
                "dictionaries and arrays, so it has been tampered with"
            )
        return _Function(name)


class _Function:
    """A function that a pickle names; slots, because a pickle may set attributes."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments: Any) -> _Call:
        return _Call(self.name, arguments)


class _Call:
    """A recorded call, and the state that the pickle gives its result."""

    __slots__ = ("arguments", "name", "result", "state")

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name = name
        self.arguments = arguments
        self.state: Any = None
        self.result: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Resolver:
    """Replace calls by their results, and count values: lists that share lists can expand without bounds."""

    def __init__(self) -> None:
        self.count = 0
        self._encoded: dict[int, bytes] = {}

    def resolve(self, value: Any) -> Any:
        self.count += 1
        if self.count > MAX_VALUES:
            raise DamagedError(f"is refused: it holds more than {MAX_VALUES:,} values")
        if isinstance(value, _Call):
            if value.result is None:
                value.result = self._carry_out(value)
            return value.result
        if isinstance(value, list | tuple):
            return type(value)(map(self.resolve, value))
        if isinstance(value, dict):
            return {self.resolve(key): self.resolve(item) for key, item in value.items()}
        if isinstance(value, bytes | bytearray | str | int | float | np.generic) or value is None:
            return value
        raise DamagedError(f"is refused: it holds a {type(value).__name__}")

    def _carry_out(self, call: _Call) -> Any:
        state = self.resolve(call.state)
        if call.name == "_reconstruct":  # its arguments describe an empty array
            _, shape, dtype, fortran, raw = state
            return _buffer(raw, dtype).reshape(shape, order="F" if fortran else "C")
        arguments = self.resolve(call.arguments)
        if call.name == "_frombuffer":
            raw, dtype, shape, order = arguments
            return _buffer(raw, dtype).reshape(shape, order=order)
        if call.name == "scalar":
            dtype, raw = arguments
            return _buffer(raw, dtype)[0]
        if call.name == "dtype":
            dtype = np.dtype(text(arguments[0]))
            if state is not None:
                dtype = np.dtype(text(state[1]) + dtype.str[1:])  # with its byte order
            if dtype.kind in "biufSU":
                return dtype
            raise DamagedError(f"is refused: it holds an array of {dtype}, not of plain numbers")
        if call.name == "encode" and arguments[1] in ("latin1", "latin-1"):  # bytes that Python 3 wrote for Python 2
            # Once for each text, as many calls may share a long one.
            return self._encoded.setdefault(id(call.arguments[0]), arguments[0].encode("latin-1"))
        raise DamagedError("is refused: it makes a call that no array of numbers needs")


def _buffer(raw: bytes, dtype: np.dtype[Any]) -> np.ndarray:
    """Return an array of the bytes, without a copy because they may be more than the free memory."""
    if not isinstance(dtype, np.dtype):
        raise DamagedError("is refused: it holds an array without a type")
    return np.frombuffer(raw, dtype)
