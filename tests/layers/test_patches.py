"""Sums over patches that share what they see are those over patches written down, exactly: whole numbers throughout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from cuber.layers import patches as patches_module
from cuber.layers.patches import Patches, Step
from cuber.subspace import Gram
from tests.layers.table import LayerCase, convolutions, protected

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")

sides = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 7))
"""Kernel, stride, dilation, and by how much the space is longer than one patch."""


def patches_of(samples: int, channels: int, chosen: list[tuple[int, int, int, int]], seed: int) -> Patches:
    kernel, stride, dilation, longer = zip(*chosen, strict=True)
    space = [d * (k - 1) + 1 + more for k, d, more in zip(kernel, dilation, longer, strict=True)]
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-9, 10, (samples, channels, *space), generator=generator).float()
    return Patches(x, kernel, stride, dilation)


anything = st.builds(
    patches_of, st.integers(0, 3), st.integers(1, 3), st.lists(sides, min_size=1, max_size=3), st.integers(0, 10**6)
)


@example(patches_of(2, 1, [(3, 1, 1, 5), (1, 2, 1, 5)], 0))
@example(patches_of(1, 2, [(3, 1, 1, 6), (2, 5, 1, 7)], 0))  # steps larger than the kernel
@given(anything)
def test_products_total_and_count_are_those_of_the_vectors(patches: Patches) -> None:
    vectors = patches.vectors().double()
    assert patches.count == len(vectors)
    assert torch.equal(patches.total(), vectors.sum(0))
    assert torch.equal(patches.products(), vectors.T @ vectors)


@given(anything)
def test_taken_in_sample_by_sample_they_are_the_same(patches: Patches) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patches_module, "NUMBERS_AT_ONCE", 1)
        one_by_one = patches.products()
    assert torch.equal(one_by_one, patches.products())


@given(sides)
def test_after_a_step_a_place_sees_what_another_saw(side: tuple[int, int, int, int]) -> None:
    _, stride, dilation, _ = side
    step = Step.of(stride, dilation)
    assert step.patches * stride == step.shift * dilation


def test_what_patches_share_is_not_multiplied_again(monkeypatch: pytest.MonkeyPatch) -> None:
    patches = patches_of(2, 4, [(3, 1, 1, 20), (3, 1, 1, 20)], seed=0)
    multiplied: list[int] = []
    matmul = torch.Tensor.__matmul__

    def counted(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        multiplied.append(left.shape[0] * left.shape[1] * right.shape[1])
        return matmul(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    patches.products()
    every = patches.count * 36**2
    assert sum(multiplied) < 0.25 * every  # 15 blocks of 81, and the edges


@convolutions
@pytest.mark.parametrize("copies", [1, 40], ids=["few", "many"])
def test_a_gram_matrix_takes_in_a_layers_vectors(case: LayerCase, copies: int) -> None:
    module, x = case.layer(), case.input()
    if case.batched:
        x = torch.cat([x] * copies)
    layer, gram = protected(module), Gram(protected(module).dimension)
    layer.add_vectors(gram, module, x)
    vectors = layer.vectors(module, x)
    assert gram.count == len(vectors)
    assert torch.equal(gram.matrix, vectors.T @ vectors)


def test_few_vectors_are_kept_as_they_are() -> None:
    """Their eigenproblem is the smaller one."""
    conv = nn.Conv2d(8, 3, 3)
    layer, gram = protected(conv), Gram(73)
    layer.add_vectors(gram, conv, torch.randn(2, 8, 5, 5))
    assert gram._matrix is None
    layer.add_vectors(gram, conv, torch.randn(2, 8, 9, 9))
    assert gram._matrix is not None
    assert gram.count == 2 * 9 + 2 * 49
