"""A copy of a learner's model without its learner: what was added to the forward pass goes into the parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from cuber.layers.attached import attached_layers, strip
from cuber.layers.computed import bake_parametrizations
from cuber.layers.gates import gates_of, strip_gates
from cuber.layers.model import forget_frozen
from cuber.layers.normalization import BatchStatistics
from cuber.subspace import in_float64


def make_plain(model: nn.Module) -> None:
    """Change a copy of a model so that it computes, in evaluation mode, what it computes now, with torch alone."""
    for layer in attached_layers(model):
        if layer.scaling is not None:  # all other weights keep their bits
            layer.untie(model)
            layer.set_matrix(layer.effective_matrix())
            layer.scaling = None
    _bake_gates(model)
    for module in model.modules():
        strip(module)
        if isinstance(module, _BatchNorm) and isinstance(module.__dict__.get("forward"), BatchStatistics):
            _normalize_by_batch(module)
    bake_parametrizations(model)
    forget_frozen(model)


def _bake_gates(model: nn.Module) -> None:
    """Multiply the weights that make the gated outputs: those of the layer, or of the normalization after it."""
    for gate, modules in gates_of(model).items():
        if gate.embedding is None:
            continue
        attention = gate.attention().detach()
        norms = [module for module in modules if isinstance(module, _NormBase)]
        if norms:
            _scale_norms(norms, attention.to(gate.layer.parameter))
        else:
            gate.layer.untie(model)
            gate.layer.scale_outputs(attention)
    strip_gates(model)


def _scale_norms(norms: list[_NormBase], factors: Tensor) -> None:
    """Multiply each output channel of normalization layers by a factor; others may have the same parameters."""
    scaled: dict[int, nn.Parameter] = {}
    for module in norms:
        if not module.affine:
            module.affine = True
            module.weight = nn.Parameter(factors.clone(), requires_grad=False)
            module.bias = nn.Parameter(torch.zeros_like(factors), requires_grad=False)
            continue
        for name, parameter in list(module.named_parameters(recurse=False)):
            if id(parameter) not in scaled:
                value = (in_float64(parameter) * in_float64(factors)).to(parameter)
                scaled[id(parameter)] = nn.Parameter(value, requires_grad=parameter.requires_grad)
            setattr(module, name, scaled[id(parameter)])


def _normalize_by_batch(module: _BatchNorm) -> None:
    """Let torch's own batch norm normalize every batch by itself: it does so without running statistics."""
    del module.__dict__["forward"]
    module.track_running_stats = False
    module.running_mean = module.running_var = module.num_batches_tracked = None
    of_torch: type[nn.Module] = next(kind for kind in type(module).__mro__ if kind.__module__.startswith("torch."))
    if type(module).forward is not of_torch.forward:  # the learner has replaced this forward pass as well
        module.__class__ = of_torch  # type: ignore[assignment]
