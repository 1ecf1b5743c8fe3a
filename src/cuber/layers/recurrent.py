"""Recurrent networks: the weights that read the input of a step, and those that read the state before it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from cuber.layers.composite import CompositeRule, Part, Weights
from cuber.layers.rule import register, variant


@register(nn.RNN, nn.LSTM, nn.GRU)
class RecurrentRule(CompositeRule):
    """Each direction of each layer has two parts. The layers are run one by one, so that their inputs are known."""

    @staticmethod
    def obstacle(module: nn.Module) -> str:
        return "LSTM with proj_size" if cast(nn.RNNBase, module).proj_size else ""

    @staticmethod
    def parts(module: nn.Module) -> dict[str, Part]:
        names = [name for name in cast(nn.RNNBase, module)._flat_weights_names if name.startswith("weight")]
        with_bias = cast(nn.RNNBase, module).bias
        return {name: Part(module, name, name.replace("weight", "bias") if with_bias else None) for name in names}

    @staticmethod
    def forward(module: nn.Module, weights: Weights, input: Any, hx: Any = None) -> tuple[Any, Any]:
        network = cast(nn.RNNBase, module)
        directions = 2 if network.bidirectional else 1
        ends = []
        for number in range(network.num_layers):
            suffixes = [f"l{number}", f"l{number}_reverse"][:directions]
            of_layer = slice(number * directions, (number + 1) * directions)
            start = (
                tuple(state[of_layer] for state in hx) if isinstance(hx, tuple) else hx if hx is None else hx[of_layer]
            )
            output, end = _run_layer(network, weights, suffixes, input, start)
            for direction, suffix in enumerate(suffixes):
                _observe(network, weights, suffix, direction, input, output, start)
            ends.append(end)
            if network.dropout and network.training and number < network.num_layers - 1:
                output = _dropped(output, network.dropout)
            input = output
        if isinstance(ends[0], tuple):
            return output, tuple(map(torch.cat, zip(*ends, strict=True)))
        return output, torch.cat(ends)


def _run_layer(network: nn.RNNBase, weights: Weights, suffixes: list[str], input: Any, start: Any) -> tuple[Any, Any]:
    """Run one layer of a network, by torch's own function for networks of any number of layers."""
    flat: list[Tensor | None] = []
    for suffix in suffixes:
        pairs = [weights.weight(f"weight_{kind}_{suffix}") for kind in ("ih", "hh")]
        flat += [weight for weight, _ in pairs] + [bias for _, bias in pairs if network.bias]
    width = (input.data if isinstance(input, PackedSequence) else input).shape[-1]
    layer = variant(
        network,
        num_layers=1,
        input_size=width,
        dropout=0.0,
        _flat_weights=flat,
        _flat_weights_names=[],  # nothing to be read from the module
        _flat_weight_refs=[],
    )
    return cast(tuple[Any, Any], type(network).forward(layer, input, start))


def _observe(
    network: nn.RNNBase, weights: Weights, suffix: str, direction: int, input: Any, output: Any, start: Any
) -> None:
    """Show what the two weights of a direction have read: inputs, and the state before each step."""
    inputs, states = f"weight_ih_{suffix}", f"weight_hh_{suffix}"
    if weights.is_observed(inputs):
        x, lengths = _samples_first(network, input)
        weights.observe(inputs, _without_padding(x, lengths))
    if weights.is_observed(states):
        y, lengths = _samples_first(network, output)
        y = y.unflatten(2, (-1, network.hidden_size))[:, :, direction]
        first = start[0] if isinstance(start, tuple) else start
        first = y.new_zeros(len(y), y.shape[2]) if first is None else first[direction].reshape(len(y), -1)
        if direction:
            before = torch.cat([y[:, 1:], first.unsqueeze(1)], dim=1)
            if lengths is not None:
                before[torch.arange(len(y)), lengths - 1] = first
        else:
            before = torch.cat([first.unsqueeze(1), y[:, :-1]], dim=1)
        weights.observe(states, _without_padding(before, lengths))


def _samples_first(network: nn.RNNBase, x: Any) -> tuple[Tensor, Tensor | None]:
    """Return samples x steps x features, and the number of steps of each sample, where they differ."""
    if isinstance(x, PackedSequence):
        return pad_packed_sequence(x, batch_first=True)
    if x.dim() == 2:
        return x.unsqueeze(0), None
    return x if network.batch_first else x.transpose(0, 1), None


def _without_padding(x: Tensor, lengths: Tensor | None) -> Tensor:
    return x if lengths is None else x[torch.arange(x.shape[1]) < lengths.unsqueeze(1)]


def _dropped(x: Any, share: float) -> Any:
    if isinstance(x, PackedSequence):
        return x._replace(data=functional.dropout(x.data, share))
    return functional.dropout(x, share)
