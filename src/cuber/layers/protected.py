"""A protected layer: its weight as a matrix, and its forward pass while a learner is attached."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.func import debug_unwrap

from cuber.core.device import full_precision
from cuber.errors import CuberError
from cuber.layers.product import HeldScaling, ProjectedProduct, multiplied
from cuber.layers.rule import Rule
from cuber.subspace import Gram, Held, PartlyHeld, Projector, Reading, Scaling

WORTHWHILE = 500_000
"""A projection of the inputs instead of the gradient must save so many multiplications."""

Observer = Callable[["ProtectedLayer", nn.Module, Tensor], None]


class ProtectedLayer:
    """One weight (and bias) with every module that uses it; tied modules are one layer, seen in several places.

    ``matrix()`` is ``[W | b]``, out x (d + 1), or W alone where there is no bias to train: the bias is the weight
    of an input that is always 1.
    """

    def __init__(self, name: str, modules: list[nn.Module], rule: type[Rule]) -> None:
        self.name = name
        self.modules = modules
        self.rule = rule
        self.with_bias = self.bias is not None and self.bias.requires_grad
        self.outputs, dimension = rule.matrix(self.parameter).shape
        self.dimension = dimension + self.with_bias
        """d, one more with a bias."""
        self._scaling: Scaling | None = None
        self.product: ProjectedProduct | None = None
        """Set while the gradient that training gives to the weight is to be projected."""
        self._held: Held | PartlyHeld | None = None
        self._reading: Reading | None = None
        self._holding: nn.Parameter | None = None
        self._moved: tuple[list[tuple[int, int]] | None, Tensor] | None = None
        """The weight's marks, and how far it had moved then; no marks: it is to be looked at before it is believed."""
        self.gradient_along: Tensor | None = None
        """The present ``.grad`` along the free columns, if the backward pass has told: out x f."""
        self.observer: Observer | None = None

    @property
    def parameter(self) -> nn.Parameter:
        return self._own("weight")  # type: ignore[return-value]

    @property
    def bias(self) -> nn.Parameter | None:
        return self._own("bias")

    def _own(self, name: str) -> nn.Parameter | None:
        # Asked many times in a step; a module's attributes take ten times as long to look up as its parameters.
        parameter = self.modules[0]._parameters.get(name)
        return parameter if parameter is not None else getattr(self.modules[0], name)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weight, and the bias if it is trained."""
        return [self.parameter, self.bias] if self.with_bias else [self.parameter]  # type: ignore[list-item]

    @property
    def trains(self) -> bool:
        """Whether nobody has frozen it, or a part of it."""
        return all(parameter.requires_grad for parameter in self.parameters)

    @property
    def moves(self) -> bool:
        """Whether an optimizer may move any of it: also what is frozen, by a gradient that somebody has left there."""
        return any(parameter.requires_grad or parameter.grad is not None for parameter in self.parameters)

    def require_whole(self) -> None:
        """Raise if somebody has frozen a part of it since the task began: [W | b] can only be protected as one."""
        if self.with_bias and self.parameter.requires_grad != self.bias.requires_grad:  # type: ignore[union-attr]
            frozen = "weight" if self.bias.requires_grad else "bias"  # type: ignore[union-attr]
            raise CuberError(
                f"the {frozen} of layer '{self.name}' was frozen in the middle of a task: its weight and bias are "
                "protected as one; freeze both, or set requires_grad back"
            )

    @property
    def dimensions_after_units(self) -> int:
        """Of the layer's output: how many come after the one that counts its output units."""
        return self.rule.dimensions_after_units(self.modules[0])

    def matrix(self) -> Tensor:
        """``[W | b]``, differentiable."""
        return self.join(list(self.parameters))

    @torch.no_grad()
    def set_matrix(self, matrix: Tensor) -> None:
        for parameter, value in zip(self.parameters, self.split(matrix), strict=True):
            parameter.copy_(value)

    def gradient(self) -> Tensor:
        """The present ``.grad`` as a matrix."""
        return self.join([torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters])

    def set_gradient(self, matrix: Tensor) -> None:
        for parameter, value in zip(self.parameters, self.split(matrix), strict=True):
            parameter.grad = value.clone() if parameter.grad is None else parameter.grad.copy_(value)

    def is_projected(self) -> bool:
        """Whether the present ``.grad`` came out of the backward pass projected, and still is: that is looked at."""
        given, self.gradient_along = self.product.take() if self.product is not None else (False, None)
        if self.product is None or not given:
            return False
        gradients = [_gradient_of(parameter) for parameter in self.parameters]
        projector = self.product.projector
        if not projector.rank:
            return True
        return projector.passes(*self.along(gradients, *projector.probes))

    def along(self, tensors: list[Tensor], *directions: Tensor) -> list[Tensor]:
        """``join(tensors) @ direction`` for each, without joining; one by one, which is faster than a thin product."""
        matrix = self.rule.matrix(tensors[0])
        if matrix.dtype != directions[0].dtype:
            directions = tuple(direction.to(matrix) for direction in directions)
        if not self.with_bias:
            return [matrix.mv(direction) for direction in directions]
        return [matrix.mv(direction[:-1]) + tensors[1] * direction[-1] for direction in directions]

    @torch.no_grad()
    def project_gradient(self, projector: Projector) -> None:
        """Take the protected directions out of the present ``.grad``, in place if it lies as a matrix does."""
        gradient = _gradient_of(self.parameter)
        matrix = self.rule.matrix(gradient)
        if self.with_bias or not projector.fits(matrix) or matrix.data_ptr() != gradient.data_ptr():
            self.set_gradient(projector(self.gradient()))
        else:
            projector.in_place(matrix)

    @torch.no_grad()
    def add_gradient(self, coordinates: Tensor, free: Tensor, times: float) -> None:
        """Add ``times coordinates @ free'`` to the present ``.grad``, in place: it is as large as W."""
        if self.gradient_along is not None:
            self.gradient_along = torch.add(self.gradient_along, coordinates, alpha=times)
        weight, *bias = [_gradient_of(parameter) for parameter in self.parameters]
        matrix = self.rule.matrix(weight)
        if matrix.data_ptr() == weight.data_ptr() and matrix.dtype == free.dtype:
            matrix.addmm_(coordinates, free[: matrix.shape[1]].mT, alpha=times)
        else:
            weight += times * self.rule.weight(coordinates @ free[: matrix.shape[1]].mT, weight)
        for gradient in bias:
            gradient += times * (coordinates @ free[-1])

    def join(self, tensors: list[Tensor]) -> Tensor:
        """A tensor for each of ``parameters`` (gradients, say) as one out x d matrix."""
        matrix = self.rule.matrix(tensors[0])
        return torch.cat([matrix, tensors[1].unsqueeze(1)], dim=1) if self.with_bias else matrix

    def split(self, matrix: Tensor) -> list[Tensor]:
        """The inverse of ``join``."""
        if not self.with_bias:
            return [self.rule.weight(matrix, self.parameter)]
        return [self.rule.weight(matrix[:, :-1], self.parameter), matrix[:, -1]]

    def vectors(self, module: nn.Module, x: Tensor) -> Tensor:
        """The input vectors in ``x``, m x d, ending in 1 where the layer has a bias."""
        return self._with_one(self.rule.vectors(module, x))

    def add_vectors(self, gram: Gram, module: nn.Module, x: Tensor) -> None:
        """Let a Gram matrix take in the input vectors in ``x``; many patches without writing them down."""
        patches = self.rule.patches(module, x)
        if patches is None or patches.count < self.dimension:
            gram.add(self.vectors(module, x))
            return
        products = patches.products()
        if self.with_bias:
            total = patches.total().unsqueeze(1)
            ones = total.new_full((1, 1), patches.count)
            products = torch.cat([torch.cat([products, total], 1), torch.cat([total, ones]).T])
        gram.add_products(products, patches.count)

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        """The forward pass with the effective weight ``W~``."""
        # With no more input vectors than the weight has rows, what is done to them is cheaper than what is done to it.
        few = self.rule.multiplies and not x.is_nested and x.dim() > 1 and x.shape[:-1].numel() <= self.outputs
        product, scaling = self._product_for(module, x), self.scaling
        if few and (scaling or self._saves(product, x)):
            y = self._from_inputs(self._with_one(x), product, scaling)
            return y if self.with_bias or self.bias is None else y + self.bias
        if scaling is None:
            return type(module).forward(module, x)
        known = self._held_scaling(scaling) if product is not None else None
        matrix = product.weight(self.matrix(), known) if product and known else scaling.weight(self.matrix())
        weight, *bias = self.split(matrix)
        return self.rule.apply(module, x, weight, bias[0] if bias else self.bias)

    def _from_inputs(self, vectors: Tensor, product: ProjectedProduct | None, scaling: Scaling | None) -> Tensor:
        weight_and_bias = self.parameter, self.bias if self.with_bias else None
        if product and scaling and self.outputs <= self.dimension and (known := self._held_scaling(scaling)):
            return product(vectors, *weight_and_bias, known)
        if scaling:
            vectors = scaling.input(vectors)
        multiply = product if product is not None and self._saves(product, vectors) else multiplied
        return multiply(vectors, *weight_and_bias)

    @property
    def scaling(self) -> Scaling | None:
        """What makes ``W~`` of W; None: it is W."""
        if self._scaling is not None:
            self._scaling.follow(self.parameter)
        return self._scaling

    @scaling.setter
    def scaling(self, scaling: Scaling | None) -> None:
        self._scaling, self._reading = scaling, None
        if scaling is not None:
            with full_precision(self.parameter.device):
                _ = scaling.left, scaling.root  # made now: torch.compile could not see through the making

    @property
    def held(self) -> Held | PartlyHeld | None:
        """Set while the weight is held where it was, but for some free columns."""
        return self._held

    @held.setter
    def held(self, held: Held | PartlyHeld | None) -> None:
        self._held, self._holding = held, self.parameter
        self._reading = self._moved = self.gradient_along = None

    def _held_scaling(self, scaling: Scaling) -> HeldScaling | None:
        """What is known of the scaling that is being learnt, while its weight is held; not of another task's."""
        weight = self.parameter
        if self._held is None or weight is not self._holding or not scaling.matrix.requires_grad:
            return None
        if self._reading is None or self._reading.anchored.dtype != weight.dtype:
            with torch.no_grad(), full_precision(weight.device):
                self._reading = Reading(self._held, scaling.left)
        return HeldScaling(scaling, self._reading, self.moved(self._held))

    # How far the weight has come along its free columns since the task began, out x f

    def moved(self, held: Held | PartlyHeld) -> Tensor:
        """What it is: what is carried along, if one look at the weight agrees with it, or a longer look."""
        if isinstance(held, Held):
            return held.still
        now = [(parameter.data_ptr(), parameter._version) for parameter in self.parameters]
        then, moved = self._moved or ([], held.free)
        if then != now:
            with torch.no_grad(), full_precision(self.parameter.device):
                if then is not None or not held.agrees(self.along(list(self.parameters), held.direction)[0], moved):
                    moved = held.moved(self.matrix())
            self._moved = now, moved
        return moved

    def carried(self) -> Tensor | None:
        """What was carried along by the last step, to be remembered."""
        return self._moved[1] if self._moved is not None and self._moved[0] is None else None

    def carry(self, times: float) -> None:
        """A step has added so many times the gradient to the weight: no need to look at all of it again."""
        if self._moved is not None and self.gradient_along is not None and self.parameter.element_size() >= 4:
            moved = self._moved[1]  # in half precision, weights do not go where they are told
            self._moved = None, torch.add(moved, self.gradient_along.to(moved), alpha=times)
        self.gradient_along = None

    def recall(self, moved: Tensor | None) -> None:
        """Somewhere else it was carried so far; None: look anew."""
        self._moved = None if moved is None else (None, moved)

    def _product_for(self, module: nn.Module, x: Tensor) -> ProjectedProduct | None:
        """While the layer is trained, its product with a projected gradient."""
        if self.product is None or not module.training or not torch.is_grad_enabled():
            return None
        weight = self.parameter
        if torch.compiler.is_compiling() or debug_unwrap(x) is not x or debug_unwrap(weight) is not weight:
            return None  # torch.compile and torch.func cannot look inside
        if unpack_dual(x).tangent is not None or unpack_dual(weight).tangent is not None:
            return None  # nor can forward-mode differentiation
        return self.product

    def _saves(self, product: ProjectedProduct | None, x: Tensor) -> bool:
        """Whether projecting these inputs instead of the gradient saves more work than it makes."""
        if product is None:
            return False
        return (self.outputs - x.shape[:-1].numel()) * self.dimension * product.projector.columns > WORTHWHILE

    def attach(self, *, fused: bool = False) -> None:
        """Take over the forward pass of the layer's modules; ``fused``: also where torch would pass it by."""
        for module in self.modules:
            strip(module)  # a copy of a model comes with what the learner of the original had put there
            attached = Attached(self, module)
            module.forward = attached
            if fused:  # torch's fused kernels are not used where there is a hook, whatever it does
                module.register_forward_pre_hook(attached.stand_by)

    def detach(self) -> None:
        """Give the modules back as they were."""
        for module in self.modules:
            strip(module)

    def _with_one(self, vectors: Tensor) -> Tensor:
        if not self.with_bias:
            return vectors
        return torch.cat([vectors, vectors.new_ones(*vectors.shape[:-1], 1)], dim=-1)

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the model keeps what it computes, not who was watching or holding it.
        left = ("observer", "product", "gradient_along", "_held", "_holding", "_reading", "_moved")
        return {**self.__dict__, **dict.fromkeys(left)}


def _gradient_of(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


class Attached:
    """The ``forward`` of one module while its layer is protected; copied and saved with the model."""

    def __init__(self, layer: ProtectedLayer, module: nn.Module) -> None:
        self.layer = layer
        self.module = module

    def __call__(self, input: Tensor) -> Tensor:
        if self.layer.observer is not None:
            self.layer.observer(self.layer, self.module, input.detach())
        return self.layer.forward(self.module, input)

    def stand_by(self, *_: Any) -> None:
        """A hook that does nothing but be there."""


def strip(module: nn.Module) -> None:
    """Remove what a learner has left on a module, for instance on a copy that it does not know of."""
    if isinstance(module.__dict__.get("forward"), Attached):
        del module.__dict__["forward"]
    for key, hook in list(module._forward_pre_hooks.items()):
        if isinstance(getattr(hook, "__self__", None), Attached):
            del module._forward_pre_hooks[key]


@contextmanager
def observed(layers: Iterable[ProtectedLayer], observer: Observer) -> Iterator[None]:
    """While open, ``observer(layer, module, x)`` is told of every input that reaches one of the layers."""
    layers = list(layers)
    for layer in layers:
        layer.observer = observer
    try:
        yield
    finally:
        for layer in layers:
            layer.observer = None
