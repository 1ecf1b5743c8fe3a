"""Layers whose weight is computed from other parameters, as by ``torch.nn.utils.parametrizations.weight_norm``.

The methods see the computed weight ``W = f(originals)``, which is what acts on the inputs. Steps of an optimizer change
the originals, so that W does not change by a multiple of its gradient: W is moved back after each step, or the change
of W is filtered, as with optimizers like Adam.

A weight is set by the right inverse r of the parametrization, ``originals = r(W)`` with ``f(r(W)) = W`` for every W.
The derivative of this equation, ``f' r' = 1``, also turns gradients of the originals into the gradient of W:
``r'^T (f'^T G) = G``. Where weight_norm computes a row of zeros, only the part of G along its direction is known.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _WeightNorm
from torch.nn.utils.parametrize import ParametrizationList

from cuber.errors import CuberError
from cuber.layers.backends import PlainBackend
from cuber.layers.computed import originals, parametrizations_of
from cuber.layers.protected import ProtectedLayer


class ParametrizedLayer(ProtectedLayer):
    """A layer whose weight is computed; ``parameters`` are those that it is computed from, and the bias."""

    is_parametrized = True

    @property
    def _parametrizations(self) -> ParametrizationList:
        found = parametrizations_of(self.modules[0]).get(self._weight_name)
        if found is None:
            raise CuberError(
                f"the {self._weight_name} of layer '{self.name}' was parametrized when the learner was made and is not "
                "any more: keep its parametrization, or make a new learner"
            )
        return found

    @property
    def parameter(self) -> nn.Parameter:
        # Not by the attribute: in parametrize.cached(), that is the weight before the step, and its graph may be gone.
        return self._parametrizations()

    @property
    def parameters(self) -> list[nn.Parameter]:
        own = list(self._parametrizations.parameters())
        return [*own, cast(nn.Parameter, self.bias)] if self.with_bias else own

    @property
    def tensors(self) -> list[Tensor]:
        weight = getattr(self.modules[0], self._weight_name)
        return [weight, cast(Tensor, self.bias)] if self.with_bias else [weight]

    def matrix(self) -> Tensor:
        return self.join([self.parameter, cast(Tensor, self.bias)] if self.with_bias else [self.parameter])

    def use_backend(self, name: str) -> None:
        self.backend = PlainBackend(self)  # the shortcuts are for weights that are parameters

    @torch.no_grad()
    def set_matrix(self, matrix: Tensor) -> None:
        """Set the originals so that ``[W | b]`` is this matrix."""
        weight, *bias = self.split(matrix)
        # Assigned to the module, the weight would share its memory with the originals.
        values = _right_inverse(self._parametrizations, weight.to(self.parameter))
        for original, value in zip(originals(self._parametrizations), values, strict=True):
            original.copy_(value)
        for value in bias:
            cast(Tensor, self.bias).copy_(value)

    def gradient(self) -> Tensor:
        """Return the gradient of ``[W | b]``, where the originals are as ``set_matrix`` leaves them."""
        weight = self.parameter.detach().requires_grad_()
        with torch.enable_grad():
            values = _right_inverse(self._parametrizations, weight)
        gradients = [original.grad for original in originals(self._parametrizations)]
        of_values = [torch.zeros_like(v) if g is None else g for v, g in zip(values, gradients, strict=True)]
        of_weight = torch.autograd.grad(values, weight, of_values)
        return self.join([*of_weight, *self._bias_gradient()])

    @torch.no_grad()
    def set_gradient(self, matrix: Tensor) -> None:
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.zero_()
        self.add_to_gradient(matrix)

    @torch.no_grad()
    def add_to_gradient(self, matrix: Tensor) -> None:
        of_weight, *of_bias = self.split(matrix)
        own = list(self._parametrizations.parameters())
        with torch.enable_grad():
            weight = self.parameter
            gradients = torch.autograd.grad(weight, own, of_weight.to(weight), materialize_grads=True)
        for parameter, gradient in zip(own, gradients, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        for gradient, value in zip(self._bias_gradient(), of_bias, strict=True):
            gradient.add_(value.to(gradient))

    def _bias_gradient(self) -> list[Tensor]:
        if not self.with_bias:
            return []
        bias = cast(nn.Parameter, self.bias)
        bias.grad = torch.zeros_like(bias) if bias.grad is None else bias.grad
        return [bias.grad]


def obstacle(module: nn.Module, name: str) -> str:
    """Return why the weight that a module computes cannot be set to every value; empty: it can.

    It is tried with a random weight. Parametrizations that hold a weight on a surface, as ``spectral_norm`` and
    ``orthogonal`` do, fail, and those that compute another weight in training than in evaluation.
    """
    # A copy: some change their buffers in training mode, some in the right inverse.
    parametrizations = copy.deepcopy(parametrizations_of(module)[name]).eval()
    kinds = ", ".join(type(step).__name__ for step in parametrizations)
    if not all(hasattr(step, "right_inverse") for step in parametrizations):
        return f"parametrized by {kinds}, which has no right_inverse"
    weight = parametrizations().detach()
    scale = weight.square().mean().sqrt()
    drawn = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)).to(weight)
    other = weight + drawn * scale.where(scale > 0, torch.ones_like(scale))
    holds = is_steady = False
    try:
        with torch.enable_grad():
            values = _right_inverse(parametrizations, other.requires_grad_())
            found = _computed(parametrizations, values)
        holds = _is_close(found, other) and all(value.requires_grad for value in values)
        is_steady = _is_steady(parametrizations, values, found)
    except Exception:  # whatever a parametrization raises for a weight that it cannot give
        pass
    if not holds:
        return f"parametrized by {kinds}, whose right_inverse is not for every weight"
    return "" if is_steady else f"parametrized by {kinds}, which computes another weight in training"


@torch.no_grad()
def _is_steady(parametrizations: ParametrizationList, values: list[Tensor], found: Tensor) -> bool:
    """Return whether a weight is the same in training mode, again and again, and training changes no buffer."""
    buffers = [buffer.clone() for buffer in parametrizations.buffers()]
    with torch.random.fork_rng([found.device] if found.is_cuda else []):  # the run draws the numbers that it would
        again = [_computed(parametrizations.train(), values) for _ in range(2)]
    unchanged = all(map(torch.equal, parametrizations.buffers(), buffers))
    return unchanged and all(_is_close(weight, found) for weight in again)


def _is_close(weight: Tensor, other: Tensor) -> bool:
    return bool((weight - other).norm() <= torch.finfo(weight.dtype).eps ** 0.5 * other.norm())


def _right_inverse(parametrizations: ParametrizationList, weight: Tensor) -> list[Tensor]:
    """Return what the originals have to be for a weight, differentiable."""
    value: Tensor | Iterable[Tensor] = weight
    for step in reversed(list(parametrizations)):
        if isinstance(step, _WeightNorm):
            value = _lengths_and_directions(step, cast(Tensor, value), originals(parametrizations)[1].detach())
        else:
            value = step.right_inverse(value)  # type: ignore[operator]
    return [value] if isinstance(value, Tensor) else list(value)


def _lengths_and_directions(norm: _WeightNorm, weight: Tensor, present: Tensor) -> Iterable[Tensor]:
    """Return the originals of ``weight_norm``. Rows that are 0 keep their direction, as torch divides by its length."""
    is_zero = torch.norm_except_dim(weight.detach(), 2, norm.dim) == 0
    if not bool(is_zero.any()):
        return cast(Iterable[Tensor], norm.right_inverse(weight))
    directions = torch.where(is_zero, present, weight)
    lengths = torch.norm_except_dim(directions, 2, norm.dim)
    return torch.where(is_zero, (weight * present).sum_to_size(lengths.shape) / lengths, lengths), directions


def _computed(parametrizations: ParametrizationList, values: list[Tensor]) -> Tensor:
    """Return the weight for these originals."""
    first, *others = parametrizations
    weight: Tensor = first(*values)
    for step in others:
        weight = step(weight)
    return weight
