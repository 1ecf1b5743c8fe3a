"""Pickles yield numbers, text, containers and arrays, and cannot execute anything."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import pickle
import struct
import subprocess
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuber.datasets.source import DamagedError
from cuber.datasets.unpickle import load_plain, whole_numbers
from tests.datasets import files


def load(content: bytes) -> Any:
    return load_plain(io.BytesIO(content))


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(min_size=1),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner),
    max_leaves=8,
)


@settings(deadline=None, max_examples=40)
@given(plain, st.integers(2, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_back(value: Any, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("dtype", ["u1", "<i8", ">i4", "f4", "?", "S3", "U2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_come_back(protocol: int, dtype: str, order: Any) -> None:
    array = np.asarray(np.arange(12).reshape(3, 4).astype(dtype), order=order)
    back = load(pickle.dumps({"array": array, "list": [array, 1], "tuple": (array,)}, protocol))
    for same in (back["array"], back["list"][0], back["tuple"][0]):
        np.testing.assert_array_equal(same, array)
        assert same.dtype == array.dtype
    assert load(pickle.dumps([np.int64(7), np.float32(0.5)], protocol)) == [7, 0.5]


def test_python_2() -> None:
    images = files.channels_first(files.pictures(2, 32, 32, 3))
    back = load(files.python2_pickle({"data": images, "labels": [3, 4]}))
    np.testing.assert_array_equal(back[b"data"], images)
    assert back[b"labels"] == [3, 4]


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "evil",
    [
        Calls(os.system, "exit 3"),
        Calls(builtins.eval, "1"),
        Calls(builtins.getattr, "", "join"),
        Calls(subprocess.Popen, ["true"]),
        Calls(np.load, "x"),
        Calls(np.frombuffer, b"x"),
        Calls(bytearray, 10),
        np.array([1, "x", None], dtype=object),
        np.zeros(2, dtype=[("a", "u1")]),
        np.datetime64("2020-01-01"),
        {1, 2},
        range(3),
        DamagedError("mine"),
    ],
)
def test_everything_else_is_refused(evil: Any, protocol: int) -> None:
    with pytest.raises(DamagedError, match=r"is refused|no pickle"):
        load(pickle.dumps({"data": [evil]}, protocol))


def test_refusal_names_what_was_asked_for() -> None:
    with pytest.raises(DamagedError, match=r"is refused: it asks for (posix|nt)\.system, .* tampered"):
        load(pickle.dumps(Calls(os.system, "true")))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R.",  # another codec
        b"\x80\x02cnumpy\ndtype\nX\x01\x00\x00\x00O\x85R.",  # a dtype of objects
        b"\x80\x02cnumpy\ndtype\nU\x02u1\x85R(K\x03U\x02O,tb.",  # a byte order that adds a field of objects
        b"\x80\x02cnumpy\ndtype\n.",  # a function as a value
        b"\x80\x02cnumpy\ndtype\n}X\x08\x00\x00\x00functionK\x01sb.",  # a state for a function
        b"\x80\x02Qprobe.",  # a persistent identifier
        b"\x80\x02\x82\x01.",  # an extension code
        b"\x80\x02](h\x00e.",  # a list that holds itself, badly
        b"\x80\x02]q\x00(h\x00e.",  # a list that holds itself
        b"\x80\x02X\xff\xff\xff\x7f.",  # a text of two gigabytes, but for the gigabytes
    ],
)
def test_crafted(content: bytes) -> None:
    with pytest.raises(DamagedError):
        load(content)


def shared_pairs(depth: int) -> bytes:
    """Opcodes of a tuple of two equal tuples of two equal tuples and so on."""
    pairs = (b"h%ch%c\x86q%c" % (number, number, number + 1) for number in range(depth))
    return b"K\x01q\x00" + b"0".join(pairs)


@pytest.mark.parametrize(
    "content",
    [
        b"}" + shared_pairs(60) + b"K\x01s.",
        b"}(" + shared_pairs(60) + b"K\x01u.",
        b"(" + shared_pairs(60) + b"K\x01d.",
        b"\x8f(" + shared_pairs(60) + b"\x90.",
        b"(" + shared_pairs(60) + b"\x91.",
    ],
    ids=["item", "items", "dict", "set", "frozenset"],
)
def test_hashes_that_would_take_forever_are_not_computed(content: bytes) -> None:
    with pytest.raises(DamagedError):
        load(b"\x80\x04" + content)


def test_depth_is_limited() -> None:
    for content in (b"]" + b"]" * 10**5 + b"a" * 10**5, b")" + b"\x85" * 10**5):
        with pytest.raises(DamagedError, match="recursion"):
            load(b"\x80\x02" + content + b".")


def test_the_number_of_parts_and_bytes_is_limited_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before memory is taken for them: a compressed file may be a thousand times as long as it looks."""
    monkeypatch.setattr("cuber.datasets.unpickle.MAX_READS", 1000)
    with pytest.raises(DamagedError, match="more than 1,000 parts"):
        load(b"\x80\x02](" + b"N" * 2000 + b"e.")
    for opcode in (b"\x8e", b"\x96", b"\x8d"):  # bytes, a bytearray and a text of a petabyte
        with pytest.raises(DamagedError, match=r"bytes|MemoryError"):
            load(b"\x80\x05" + opcode + struct.pack("<Q", 10**15) + b".")


def test_calls_that_share_a_long_text_do_not_copy_it() -> None:
    text, call = pickle.dumps("x" * 1000, 2)[2:-1], b"c_codecs\nencode\nq\x01"
    again = b"h\x01h\x00X\x06\x00\x00\x00latin1\x86R"
    found = load(b"\x80\x02" + text + b"0" + call + b"0](" + again * 100 + b"e.")
    assert found == [b"x" * 1000] * 100
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("kind", [list, tuple])
def test_shared_containers_do_not_expand_without_bounds(kind: Any) -> None:
    value = kind(range(10))
    for _ in range(20):
        value = kind([value] * 10)
    content = pickle.dumps({"data": 1, "labels": value}, 2)
    assert len(content) < 1000
    with pytest.raises(DamagedError, match="more than 1,000,000 values"):
        load(content)


def test_labels_that_share_a_large_value_are_not_made_an_array() -> None:
    large = np.zeros(10**6, np.uint8)
    shared = load(pickle.dumps([[large] * 10**5, ["x" * 10**6] * 10**5]))
    for values in (*shared, [0.5], [2**70], [], 3):
        with pytest.raises(DamagedError, match="not a list of whole numbers"):
            whole_numbers(values)
    assert whole_numbers([3, np.int32(4)]).tolist() == [3, 4]


def test_an_array_cannot_promise_more_than_it_brings() -> None:
    whole = files.python2_pickle({"data": np.zeros((2, 2), np.uint8)})
    size = b"J" + struct.pack("<i", 2)
    with pytest.raises(DamagedError, match="cannot reshape"):
        load(whole.replace(size, b"J" + struct.pack("<i", 1 << 30), 1))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=60))
def test_noise_is_refused_or_plain(noise: bytes) -> None:
    found = None
    with contextlib.suppress(DamagedError):
        found = load(b"\x80\x02" + noise)
    assert not callable(found)
