"""A layer that is protected: its weight as a matrix, its inputs, and the forward pass that a learner gives it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from cuber.errors import CuberError
from cuber.layers.attached import Attached, AttachedParts, strip
from cuber.layers.backends import FastBackend, PlainBackend
from cuber.layers.computed import is_computed
from cuber.layers.rule import Rule
from cuber.layers.tied import untie
from cuber.subspace import Constraint, Scaling, in_float64

BACKENDS: dict[str, type[PlainBackend]] = {"fast": FastBackend, "plain": PlainBackend}


Observer = Callable[["ProtectedLayer", nn.Module, Tensor], None]


class ProtectedLayer:
    """One weight (and bias) with every module that uses it; tied modules are one layer.

    ``matrix()`` is ``[W | b]``, out x (d + 1), or W alone where no bias is trained: the bias is the weight of an input
    that is always 1. A weight that is computed from other parameters is a ``ParametrizedLayer``.

    Args:
        name: of the first module.
        modules: all modules with this weight.
        rule: how their type computes.
        weight: the name of the weight in the modules.
        bias: the name of its bias there; None: it has none of its own.
        hosts: for each module, the one whose forward pass computes the layer (default: the module itself).
    """

    is_parametrized = False
    """Whether the weight is computed from other parameters."""

    def __init__(
        self,
        name: str,
        modules: list[nn.Module],
        rule: type[Rule],
        weight: str = "weight",
        bias: str | None = "bias",
        hosts: list[nn.Module] | None = None,
    ) -> None:
        self.name = name
        self.modules = modules
        self.rule = rule
        self.hosts = modules if hosts is None else hosts
        self._weight_name, self._bias_name = weight, bias
        self.with_bias = self.bias is not None and self.bias.requires_grad
        self.outputs, dimension = rule.matrix(modules[0], self.parameter).shape
        self.dimension = dimension + self.with_bias
        """d, one more with a bias."""
        self._scaling: Scaling | None = None
        self._constraint: Constraint | None = None
        self._constrained: nn.Parameter | None = None
        self.observer: Observer | None = None
        self.use_backend("fast")

    def use_backend(self, name: str) -> None:
        """Compute with shortcuts ("fast"), or by the formulas as printed ("plain")."""
        self.backend = BACKENDS[name](self)

    # What a task sets

    @property
    def scaling(self) -> Scaling | None:
        """Makes the effective weight ``W~`` of W; None: it is W."""
        return self._scaling

    @scaling.setter
    def scaling(self, scaling: Scaling | None) -> None:
        self._scaling = scaling
        self.backend.on_scaling_changed()

    @property
    def constraint(self) -> Constraint | None:
        """Where the weight may move in the present task; None between tasks."""
        return self._constraint

    @constraint.setter
    def constraint(self, constraint: Constraint | None) -> None:
        self._constraint = constraint
        self._constrained = None if constraint is None else self.parameters[0]
        self.backend.on_constraint_changed()

    @property
    def is_constrained(self) -> bool:
        """Whether there is a constraint and it is on the present weight, not on one that ``functional_call`` swaps."""
        return self._constraint is not None and self.parameters[0] is self._constrained

    def require_constraint(self) -> Constraint:
        """Return the constraint; only in a task."""
        assert self._constraint is not None, f"layer '{self.name}' has no constraint outside a task"
        return self._constraint

    # Its parameters

    @property
    def parameter(self) -> nn.Parameter:
        return self._own(self._weight_name)  # type: ignore[return-value]

    @property
    def bias(self) -> nn.Parameter | None:
        return None if self._bias_name is None else self._own(self._bias_name)

    def _own(self, name: str) -> nn.Parameter | None:
        # Read many times in a step; attributes of a module take ten times as long to look up as its parameters.
        parameters = self.modules[0]._parameters
        if name in parameters:
            return parameters[name]
        if is_computed(self.modules[0], name):
            raise CuberError(
                f"the {name} of layer '{self.name}' was parametrized after the learner was made: parametrize the model "
                "first, then make the learner"
            )
        return getattr(self.modules[0], name, None)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The weight, and the bias if it is trained."""
        return [self.parameter, self.bias] if self.with_bias else [self.parameter]  # type: ignore[list-item]

    @property
    def tensors(self) -> list[Tensor]:
        """What the forward pass computes with: the weight, and the bias if it is trained."""
        return list(self.parameters)

    @property
    def requires_grad(self) -> bool:
        """Whether no part of it is frozen."""
        return all(parameter.requires_grad for parameter in self.parameters)

    @property
    def may_change(self) -> bool:
        """Whether an optimizer may change any of it: also frozen parameters that still have a gradient."""
        return any(parameter.requires_grad or parameter.grad is not None for parameter in self.parameters)

    def require_whole(self) -> None:
        """Raise if a part of it was frozen since the task began: [W | b] can only be protected as one."""
        if self.with_bias and self.parameters[0].requires_grad != self.bias.requires_grad:  # type: ignore[union-attr]
            frozen = "weight" if self.bias.requires_grad else "bias"  # type: ignore[union-attr]
            raise CuberError(
                f"the {frozen} of layer '{self.name}' was frozen in the middle of a task: its weight and bias are "
                "protected as one; freeze both, or set requires_grad back"
            )

    @property
    def dimensions_after_units(self) -> int:
        """Number of dimensions of the layer's output after the one that counts its units."""
        return self.rule.dimensions_after_units(self.modules[0])

    # Weight and gradient as matrices

    def matrix(self) -> Tensor:
        """Return ``[W | b]``, differentiable."""
        return self.join(list(self.parameters))

    @torch.no_grad()
    def set_matrix(self, matrix: Tensor) -> None:
        """Copy ``[W | b]`` into the parameters."""
        for parameter, value in zip(self.parameters, self.split(matrix), strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def effective_matrix(self) -> Tensor:
        """Return ``W~ = W + (W B) S B'`` in float64, where the weight is now; ``[W | b]`` itself without a scaling."""
        if self._scaling is None:
            return self.matrix()
        self._move_scaling()
        scaling, weight = self._scaling, in_float64(self.matrix())
        basis, applied = in_float64(scaling.basis), in_float64(scaling.applied)
        read = weight @ basis if scaling.left is None else weight @ basis @ in_float64(scaling.left)
        return weight + read @ applied @ basis.mT

    def untie(self, model: nn.Module) -> None:
        """Give the layer a copy of its weight if other modules have the same one, such as embeddings."""
        untie(model, self.modules, self._weight_name)

    @torch.no_grad()
    def scale_outputs(self, factors: Tensor) -> None:
        """Multiply each output unit by a factor: the rows of the weight, and the bias, trained or not."""
        self.set_matrix(in_float64(self.matrix()) * in_float64(factors).unsqueeze(1))
        if self.bias is not None and not self.with_bias:  # layers that are not scaled may have the same one
            scaled = (in_float64(self.bias) * in_float64(factors)).to(self.bias)
            bias = nn.Parameter(scaled, requires_grad=self.bias.requires_grad)
            for module in self.modules:
                setattr(module, str(self._bias_name), bias)

    def gradients(self) -> list[Tensor]:
        """Return the ``.grad`` of each parameter, which is 0 where there was none."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self.parameters]  # type: ignore[misc]

    def gradient(self) -> Tensor:
        """Return the present ``.grad`` as a matrix."""
        return self.join(self.gradients())

    @torch.no_grad()
    def set_gradient(self, matrix: Tensor) -> None:
        """Copy a matrix into the ``.grad`` of the parameters."""
        for gradient, value in zip(self.gradients(), self.split(matrix), strict=True):
            gradient.copy_(value)

    @torch.no_grad()
    def add_to_gradient(self, matrix: Tensor) -> None:
        """Add a matrix to the ``.grad`` of the parameters."""
        for gradient, value in zip(self.gradients(), self.split(matrix), strict=True):
            gradient.add_(value.to(gradient))

    def join(self, tensors: list[Tensor]) -> Tensor:
        """Return a tensor for each of ``parameters`` (gradients, say) as one out x d matrix."""
        matrix = self.rule.matrix(self.modules[0], tensors[0])
        return torch.cat([matrix, tensors[1].unsqueeze(1)], dim=1) if self.with_bias else matrix

    def split(self, matrix: Tensor) -> list[Tensor]:
        """Invert ``join``."""
        if not self.with_bias:
            return [self.rule.weight(self.modules[0], matrix, self.parameter)]
        return [self.rule.weight(self.modules[0], matrix[:, :-1], self.parameter), matrix[:, -1]]

    # Its inputs

    def vectors(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return the input vectors in ``x``, m x d, ending in 1 where the layer has a bias."""
        vectors = self.rule.vectors(module, x)
        return torch.cat([vectors, vectors.new_ones(len(vectors), 1)], dim=1) if self.with_bias else vectors

    # Attaching

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        """Return the output of a module with the effective weight."""
        self._move_scaling()
        return self.backend.forward(module, x)

    def effective(self, module: nn.Module) -> tuple[Tensor, Tensor | None]:
        """Return the effective weight and bias, differentiable."""
        if self._scaling is None:
            return self.tensors[0], self.bias
        self._move_scaling()
        weight, *bias = self.split(self.backend.effective_weight(module))
        return weight, bias[0] if bias else self.bias

    def _move_scaling(self) -> None:
        if self._scaling is not None and not self._scaling.fits(self.parameter):
            self._scaling.move(self.parameter)  # the model was moved
            self.backend.on_scaling_changed()

    def attach(self, *, fused: bool = False) -> None:
        """Replace the forward pass of the layer's modules, or of those that they are parts of.

        Args:
            fused: whether the model has modules whose fused kernels would skip the forward pass of their layers.
        """
        for module, host in zip(self.modules, self.hosts, strict=True):
            attached: Attached | AttachedParts
            if self.rule.whole:
                strip(module)  # a copy of a model comes with the forward pass of the original's learner
                module.forward = attached = Attached(self, module)
            else:
                attached = AttachedParts.on(host)
                attached.add(self, module, self._weight_name)
            if fused:
                attached.block_fused(host)

    def detach(self) -> None:
        """Restore the modules' own forward pass."""
        for host in self.hosts:
            attached = host.__dict__.get("forward")
            if not isinstance(attached, AttachedParts) or attached.remove(self):
                strip(host)

    def __getstate__(self) -> dict[str, Any]:
        # A copy of the model computes the same, but is not constrained or observed.
        return {
            **self.__dict__,
            "observer": None,
            "_constraint": None,
            "_constrained": None,
            "backend": type(self.backend),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.backend = state["backend"](self)


@contextmanager
def attached(layers: Iterable[ProtectedLayer]) -> Iterator[None]:
    """While open, the layers of a model that has no learner for them are attached."""
    layers = list(layers)
    before = {host: host.__dict__.get("forward") for layer in layers for host in layer.hosts}
    for layer in layers:
        layer.attach()
    try:
        yield
    finally:
        for layer in layers:
            layer.detach()
        for host, forward in before.items():
            if forward is not None:  # a copy of a model computes as the original's learner did
                host.forward = forward


@contextmanager
def observed(layers: Iterable[ProtectedLayer], observer: Observer) -> Iterator[None]:
    """While open, call ``observer(layer, module, x)`` for every input of one of the layers."""
    before = {layer: layer.observer for layer in layers}
    for layer in before:
        layer.observer = observer
    try:
        yield
    finally:
        for layer, other in before.items():
            layer.observer = other
