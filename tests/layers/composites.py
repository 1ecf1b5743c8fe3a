"""Modules with several weights, with every option, and calls that they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

Call = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class CompositeCase:
    name: str
    build: Callable[[], nn.Module]
    call: Callable[[], Call]
    """Arguments of the module's forward pass."""


def _attention(name: str, *shapes: tuple[int, ...], call: dict[str, Any] | None = None, **options: Any) -> Any:
    def arguments() -> Call:
        inputs = [torch.randn(shape) for shape in shapes]
        query, key, value = inputs * 3 if len(inputs) == 1 else [*inputs, inputs[-1]][:3]
        return (query, key, value), call or {}

    return CompositeCase(f"attention {name}", lambda: nn.MultiheadAttention(8, 2, **options), arguments)


LAST = torch.zeros(3, 5, dtype=torch.bool)
LAST[1, 3:] = True
CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
BATCH_FIRST = {"batch_first": True}

ATTENTION = [
    _attention("on itself", (5, 3, 8)),
    _attention("batch first", (3, 5, 8), **BATCH_FIRST),
    _attention("without bias", (3, 5, 8), bias=False, **BATCH_FIRST),
    _attention("unbatched", (5, 8)),
    _attention("on others", (4, 3, 8), (5, 3, 8)),
    _attention("of three", (3, 4, 8), (3, 5, 8), (3, 5, 8), **BATCH_FIRST),
    _attention("of other dimensions", (3, 4, 8), (3, 5, 6), (3, 5, 7), kdim=6, vdim=7, **BATCH_FIRST),
    _attention("with padding", (3, 5, 8), call={"key_padding_mask": LAST}, **BATCH_FIRST),
    _attention(
        "causal", (3, 5, 8), call={"attn_mask": CAUSAL, "is_causal": True, "need_weights": False}, **BATCH_FIRST
    ),
    _attention("with the weights of each head", (3, 5, 8), call={"average_attn_weights": False}, **BATCH_FIRST),
    _attention("without its weights", (3, 5, 8), call={"need_weights": False}, **BATCH_FIRST),
    _attention("with added keys", (5, 3, 8), add_bias_kv=True, add_zero_attn=True),
]


def _packed(sorted_: bool) -> PackedSequence:
    lengths = [5, 4, 2] if sorted_ else [2, 5, 4]
    return pack_padded_sequence(torch.randn(3, 5, 4), torch.tensor(lengths), batch_first=True, enforce_sorted=sorted_)


def _recurrent() -> list[CompositeCase]:
    made = []

    def case(name: str, kind: Any, make: Callable[[], Any], state: tuple[int, ...] = (), **options: Any) -> None:
        def arguments() -> Call:
            start = torch.randn(state) if state else None
            if start is not None and kind is nn.LSTM:
                return (make(), (start, torch.randn(state))), {}
            return (make(),) if start is None else (make(), start), {}

        made.append(CompositeCase(f"{kind.__name__} {name}", lambda: kind(4, 6, **options), arguments))

    for kind in (nn.RNN, nn.LSTM, nn.GRU):
        case("plain", kind, lambda: torch.randn(5, 3, 4))
        case("deep in two directions", kind, lambda: torch.randn(5, 3, 4), (6, 3, 6), num_layers=3, bidirectional=True)
        case("packed", kind, lambda: _packed(False), (4, 3, 6), num_layers=2, bidirectional=True)
        case("unbatched", kind, lambda: torch.randn(5, 4), (2, 6), bidirectional=True)
        case("without bias", kind, lambda: torch.randn(3, 5, 4), bias=False, num_layers=2, batch_first=True)
    case("packed and sorted", nn.GRU, lambda: _packed(True), bidirectional=True)
    case("of rectifiers", nn.RNN, lambda: torch.randn(3, 5, 4), (1, 3, 6), nonlinearity="relu", batch_first=True)
    return made


RECURRENT = _recurrent()
composites = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in [*ATTENTION, *RECURRENT]])
recurrent = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in RECURRENT])
attention = pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in ATTENTION])


def tensors(output: Any) -> list[Tensor]:
    """All tensors of an output, in order."""
    if isinstance(output, Tensor):
        return [output]
    if isinstance(output, PackedSequence):
        return [output.data]
    return [] if output is None else [tensor for part in output for tensor in tensors(part)]
