"""Modules with several weights: each part acts on the vectors that it is shown, and the module computes the same."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from cuber.layers import ProtectedLayer, observed, scan
from cuber.subspace import Scaling
from tests.layers.composites import ATTENTION, CompositeCase, composites, recurrent, tensors

Seen = dict[str, list[Tensor]]


def attached(module: nn.Module) -> dict[str, ProtectedLayer]:
    layers = scan(module).layers
    for layer in layers.values():
        layer.attach()
    return layers


def observe(module: nn.Module, layers: dict[str, ProtectedLayer], arguments: Any, named: Any) -> tuple[Any, Seen]:
    """Return the output, and the vectors that each layer was shown."""
    seen: Seen = {}

    def remember(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> None:
        seen.setdefault(layer.name, []).append(x)

    with observed(layers.values(), remember):
        return module(*arguments, **named), seen


def close(one: Any, other: Any) -> bool:
    pairs = list(zip(tensors(one), tensors(other), strict=True))
    return bool(pairs) and all(torch.allclose(a, b, atol=1e-5) for a, b in pairs)


def give_scalings(layers: dict[str, ProtectedLayer]) -> None:
    for layer in layers.values():
        basis = torch.linalg.qr(torch.randn(layer.dimension, 3)).Q
        layer.scaling = Scaling(basis, torch.ones(1, 3, dtype=torch.bool), [], like=layer.parameter)
        layer.scaling.matrix.data = torch.randn(3, 3)


@composites
def test_every_weight_is_a_layer_and_observing_does_not_change_the_output(case: CompositeCase) -> None:
    module = case.build()
    arguments, named = case.call()
    expected = module(*arguments, **named)
    found = scan(module)
    weights = {name for name, parameter in module.named_parameters() if parameter.dim() == 2}
    assert {name.removesuffix(".weight") for name in weights} == found.layers.keys()
    shared = {"in_proj_bias"} if "q_proj_weight" in weights else set()
    assert found.uncovered.keys() == shared | {name for name in ("bias_k", "bias_v") if "added keys" in case.name}
    layers = attached(module)
    assert close(module(*arguments, **named), expected)
    output, seen = observe(module, layers, arguments, named)
    assert type(output[0]) is type(expected[0])
    assert close(output, expected)
    assert seen.keys() == layers.keys()


@composites
@pytest.mark.parametrize("gradients", [True, False])
def test_scaled_parts_compute_with_their_effective_weights(case: CompositeCase, gradients: bool) -> None:
    module = case.build().eval()  # without gradients, torch has fused kernels for attention
    arguments, named = case.call()
    twin = copy.deepcopy(module)
    layers = attached(module)
    give_scalings(layers)
    for name, layer in scan(twin).layers.items():
        layer.set_matrix(layers[name].backend.effective_weight(module))
    with torch.set_grad_enabled(gradients):
        scaled, expected = module(*arguments, **named), twin(*arguments, **named)
    assert close(scaled, expected)
    assert close(observe(module, layers, arguments, named)[0], expected)
    for layer in layers.values():
        layer.scaling = None
    assert not close(module(*arguments, **named), expected)


@composites
def test_the_gradient_of_each_part_lies_in_what_it_was_shown(case: CompositeCase) -> None:
    """G = delta' X: a gradient that leaves the span of the vectors would belong to a vector that was not shown."""
    module = case.build().double()
    arguments, named = case.call()
    arguments = tuple(doubled(argument) for argument in arguments)
    layers = attached(module)
    output, seen = observe(module, layers, arguments, named)
    sum((tensor.square() * torch.randn_like(tensor)).sum() for tensor in tensors(output)).backward()  # type: ignore[union-attr]
    for name, layer in layers.items():
        vectors = torch.cat([layer.vectors(layer.modules[0], x) for x in seen[name]])
        gradient = layer.gradient()
        _, sizes, directions = torch.linalg.svd(vectors, full_matrices=True)
        outside = directions[int((sizes > 1e-9 * sizes[0]).sum()) :]
        assert gradient.norm() > 0
        assert (gradient @ outside.mT).norm() <= 1e-9 * gradient.norm()


def doubled(value: Any) -> Any:
    if isinstance(value, tuple) and not isinstance(value, PackedSequence):
        return tuple(map(doubled, value))
    return value.to(torch.float64) if isinstance(value, PackedSequence) or value.is_floating_point() else value


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in ATTENTION if "unbatched" not in case.name]
)
def test_attention_shows_samples_first(case: CompositeCase) -> None:
    module = case.build()
    arguments, named = case.call()
    batch_first = module.batch_first  # type: ignore[union-attr]
    _, seen = observe(module, attached(module), arguments, named)
    inputs = [x if batch_first else x.transpose(0, 1) for x in arguments]
    if "in_proj_weight" in seen:
        distinct = {id(x): x for x in arguments}
        assert len(seen["in_proj_weight"]) == len(distinct)
    shown = [x for name in seen if name != "out_proj" for x in seen[name]]
    assert all(any(torch.equal(x, other) for other in inputs) for x in shown)
    (attended,) = seen["out_proj"]
    assert attended.shape == inputs[0].shape


def step(module: Any, suffix: str, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One step of a recurrent network, by the formulas of torch's documentation."""
    bias = module.bias
    a = x @ getattr(module, f"weight_ih_{suffix}").T + (getattr(module, f"bias_ih_{suffix}") if bias else 0)
    b = h @ getattr(module, f"weight_hh_{suffix}").T + (getattr(module, f"bias_hh_{suffix}") if bias else 0)
    if module.mode == "GRU":
        (ar, az, an), (br, bz, bn) = a.chunk(3, -1), b.chunk(3, -1)
        r, z = (ar + br).sigmoid(), (az + bz).sigmoid()
        return (1 - z) * (an + r * bn).tanh() + z * h, c
    if module.mode == "LSTM":
        i, f, g, o = (a + b).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c
    return ((a + b).relu() if module.mode == "RNN_RELU" else (a + b).tanh()), c


@recurrent
def test_a_recurrent_network_shows_the_input_and_the_state_before_every_step(case: CompositeCase) -> None:
    module: Any = case.build()
    arguments, named = case.call()
    output, seen = observe(module, attached(module), arguments, named)
    x, start = arguments[0], arguments[1] if len(arguments) > 1 else None
    packed = isinstance(x, PackedSequence)
    if packed:
        padded, lengths = pad_packed_sequence(x, batch_first=True)
        samples = [row[:length] for row, length in zip(padded, lengths.tolist(), strict=True)]
    else:
        samples = [x] if x.dim() == 2 else list(x if module.batch_first else x.transpose(0, 1))
    if start is None:
        start = torch.zeros(module.num_layers * (1 + module.bidirectional), len(samples), 6)
    h0, c0 = (s.reshape(-1, len(samples), 6) for s in (start if isinstance(start, tuple) else (start, start)))
    for number in range(module.num_layers):
        suffixes = [f"l{number}", f"l{number}_reverse"][: 1 + module.bidirectional]
        results: list[list[Tensor]] = []
        for direction, suffix in enumerate(suffixes):
            read, states, results_of = [], [], []
            for i, sample in enumerate(samples):
                h, c = h0[number * len(suffixes) + direction, i], c0[number * len(suffixes) + direction, i]
                before, after = {}, {}
                for t in range(len(sample))[:: -1 if direction else 1]:
                    before[t] = h
                    h, c = step(module, suffix, sample[t], h, c)
                    after[t] = h
                order = range(len(sample))
                read.append(sample)
                states.append(torch.stack([before[t] for t in order]))
                results_of.append(torch.stack([after[t] for t in order]))
            for kind, expected in (("ih", read), ("hh", states)):
                (shown,) = seen[f"weight_{kind}_{suffix}"]
                rows = torch.cat(expected) if packed else torch.stack(expected)
                assert torch.allclose(shown, rows, atol=1e-5)
            results.append(results_of)
        samples = [torch.cat(both, dim=-1) for both in zip(*results, strict=True)]
    assert torch.isfinite(tensors(output)[0]).all()


def test_dropout_between_recurrent_layers_acts_in_training_only() -> None:
    module = nn.LSTM(4, 6, num_layers=2, dropout=0.5)
    x, layers = torch.randn(5, 3, 4), attached(module)
    one, _ = observe(module, layers, (x,), {})
    other, seen = observe(module, layers, (x,), {})
    assert not close(one, other)
    assert 0.2 < float((seen["weight_ih_l1"][0] == 0).float().mean()) < 0.8
    module.eval()
    assert close(observe(module, layers, (x,), {})[0], observe(module, layers, (x,), {})[0])


def test_an_lstm_with_projections_has_no_rule() -> None:
    found = scan(nn.LSTM(4, 6, proj_size=3))
    assert not found.layers
    assert set(found.uncovered.values()) == {"no rule for LSTM with proj_size"}


def test_detaching_one_part_leaves_the_others() -> None:
    module = nn.MultiheadAttention(8, 2)
    layers = attached(module)
    layers["out_proj"].detach()
    _, seen = observe(module, layers, (torch.randn(5, 3, 8),) * 3, {})
    assert seen.keys() == {"in_proj_weight"}
    layers["in_proj_weight"].detach()
    assert "forward" not in module.__dict__


def test_frozen_weights_of_a_module_are_no_layers_and_keep_their_values() -> None:
    module = nn.GRU(4, 6)
    module.weight_hh_l0.requires_grad_(False)
    module.bias_hh_l0.requires_grad_(False)
    x = torch.randn(5, 3, 4)
    expected, layers = module(x), attached(module)
    assert list(layers) == ["weight_ih_l0"]
    output, _ = observe(module, layers, (x,), {})
    assert close(output, expected)
