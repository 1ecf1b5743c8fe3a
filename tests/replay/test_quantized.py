"""Quantized tensors: lossless, and never larger than the original."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cuber.replay import QuantizedTensor

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def whole(quantized: QuantizedTensor) -> Tensor:
    return quantized.rows(torch.arange(len(quantized.codes)))


def same(one: Tensor, other: Tensor) -> bool:
    """Compare bits, to distinguish NaN and -0.0."""
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.view(bits), other.view(bits))


def bytes_of(seed: int, *shape: int) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


@given(
    st.integers(0, 1000),
    st.sampled_from(DTYPES),
    st.integers(1, 400),
    st.lists(st.integers(1, 6), max_size=3),
    st.integers(1, 600),
)
def test_every_tensor_comes_back_and_takes_no_more_room(seed, dtype, count, shape, different) -> None:
    generator = torch.Generator().manual_seed(seed)
    palette = torch.randn(different, generator=generator, dtype=torch.float64).mul(9)
    values = palette[torch.randint(different, (count, *shape), generator=generator)].to(dtype)
    quantized = QuantizedTensor.of(values)
    assert same(whole(quantized), values)
    assert quantized.nbytes <= values.nbytes
    rows = torch.randint(count, (5,), generator=generator)
    assert same(quantized.rows(rows), values[rows])
    assert same(whole(quantized.only(rows)), values[rows])


def test_grey_images_are_bytes_however_they_are_normalized() -> None:
    images = bytes_of(0, 200, 1, 28, 28).float().div(255).sub(0.13).div(0.31)
    quantized = QuantizedTensor.of(images)
    assert quantized.codes.dtype == torch.uint8
    assert quantized.nbytes == 200 * 28 * 28 + 256 * 4
    assert same(whole(quantized), images)


def test_colours_have_a_table_for_each_channel_where_one_will_not_do() -> None:
    mean, std = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)
    images = (bytes_of(1, 100, 3, 16, 16).float() / 255 - mean) / std
    assert len(images.unique()) > 256
    quantized = QuantizedTensor.of(images)
    assert quantized.nbytes == 100 * 3 * 16 * 16 + 3 * 256 * 4
    assert same(whole(quantized), images)
    assert same(quantized.rows(torch.tensor([7, 7, 3])), images[[7, 7, 3]])


def test_labels_are_bytes_too() -> None:
    labels = torch.arange(1000) % 10
    quantized = QuantizedTensor.of(labels)
    assert quantized.nbytes == 1000 + 10 * 8
    assert same(whole(quantized), labels)


@pytest.mark.parametrize("different", [256, 257])
def test_a_byte_tells_256_values_apart_and_no_more(different: int) -> None:
    values = torch.arange(different).double().repeat(10)
    quantized = QuantizedTensor.of(values)
    assert (quantized.table is not None) == (different == 256)
    assert same(whole(quantized), values)


def test_zeros_keep_their_sign_and_what_is_no_number_its_bits() -> None:
    values = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf")]).repeat(50)
    quantized = QuantizedTensor.of(values)
    assert quantized.codes.dtype == torch.uint8
    assert same(whole(quantized), values)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.int8])
def test_bytes_stay_bytes(dtype: torch.dtype) -> None:
    values = bytes_of(2, 50, 4).to(dtype)
    quantized = QuantizedTensor.of(values)
    assert quantized.table is None
    assert quantized.codes.dtype == dtype
    assert quantized.nbytes == values.nbytes


@pytest.mark.parametrize("shape", [(10, 0), (0, 3), (0,)])
def test_nothing_at_all_is_kept_as_it_is(shape: tuple[int, ...]) -> None:
    assert whole(QuantizedTensor.of(torch.zeros(shape))).shape == shape


def test_complex_numbers_are_numbers_too() -> None:
    values = torch.complex(torch.ones(400), torch.arange(400.0) % 3)
    assert torch.equal(whole(QuantizedTensor.of(values)), values)
    assert torch.equal(whole(QuantizedTensor.of(values.to(torch.complex128))), values.to(torch.complex128))
