"""Masks: which positions of a batch of sequences are real, so that padding stays out of what a method remembers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.layerwise import LayerwiseMethod
from cuber.errors import CuberError, CuberWarning
from cuber.layers import ProtectedLayer, UsedRows, evaluation_mode, observed

MaskFunction = Callable[[Batch], Tensor | None]

NAME = "attention_mask"


def attention_mask(batch: Batch) -> Tensor | None:
    """Return the ``attention_mask`` of a batch that is a mapping, or has one among its items; None without one.

    >>> attention_mask(({"attention_mask": torch.tensor([[1, 1, 0]])}, torch.tensor([2])))
    tensor([[1, 1, 0]])
    """
    if isinstance(batch, Mapping):
        return batch.get(NAME)
    found = map(attention_mask, batch) if isinstance(batch, list | tuple) else ()
    return next((mask for mask in found if mask is not None), None)


@dataclass(eq=False, repr=False)
class MaskedInputs(LayerwiseMethod):
    """A method that remembers inputs of layers, but for those at padded positions.

    Args:
        mask: a function of a batch that returns which positions are real, samples x positions, nonzero or True where
            one is; None: all are. By default it is the ``attention_mask`` of the batch, if there is one.
    """

    mask: MaskFunction | None = field(default=attention_mask, kw_only=True)

    def __post_init__(self) -> None:
        if self.mask is not None and not callable(self.mask):
            raise CuberError(
                f"mask must be a function of the batch, such as lambda batch: batch['mask'], not a "
                f"{type(self.mask).__name__}"
            )
        super().__post_init__()

    def try_sample(self) -> None:
        super().try_sample()
        found = [self.real_positions(batch) for batch in self.sample]
        if all(real is not None and not real.any() for real in found):
            raise CuberError(
                f"task {self.tasks}: mask calls every position padding; it must be nonzero or True where a position is "
                "real (torch's key_padding_mask is the opposite)"
            )

    def observe_task(self, loader: Iterable[Batch]) -> None:
        super().observe_task(loader)
        if self.mask is not attention_mask:  # a batch may have that for a part of the model which is not protected
            self._warn_unless_mask_fits()

    def _warn_unless_mask_fits(self) -> None:
        """Warn where a mask has the shape of no layer's input, so that it has no effect."""
        batch = self.sample[0]
        real = self.real_positions(batch)
        if real is None:
            return
        fits: list[bool] = []

        def observe(layer: ProtectedLayer, module: nn.Module, x: Tensor) -> None:
            fits.append(as_sequences(layer, x, real) is not None)

        layers, tables = self.layers.values(), self.row_memory.tables.values()
        with torch.no_grad(), evaluation_mode(self.model), observed(layers, observe), UsedRows(tables) as used:
            used.real = real
            self.try_loss(batch, "batches")
        if not any(fits) and not used.is_masked:
            warnings.warn(
                f"task {self.task}: mask has no effect: it returned the shape {tuple(real.shape)}, and no layer has an "
                "input of as many samples x positions; it must have an entry for each position",
                CuberWarning,
                stacklevel=4,
            )

    def real_positions(self, batch: Batch) -> Tensor | None:
        """Return which positions of a batch are real, samples x positions, bool; None: all."""
        with batches.explained(f"task {self.tasks}: mask cannot take the loader's batches"):
            return real_positions(self.model, batch, self.mask)


def real_positions(model: nn.Module, batch: Batch, mask: MaskFunction | None = attention_mask) -> Tensor | None:
    """Return which positions of a batch are real, samples x positions, bool; None: all."""
    found = None if mask is None or (mask is attention_mask and _has_decoder(model)) else mask(batch)
    if found is None:
        return None
    if not isinstance(found, Tensor):
        raise _wrong(f"is a {type(found).__name__}")
    if found.dim() != 2 or len(found) != batches.size(batch):
        raise _wrong(f"has shape {tuple(found.shape)} in a batch of {batches.size(batch)} samples")
    if found.is_complex() or not bool((found >= 0).all()):
        raise _wrong("has values other than 0 and 1")  # such as -10000 or -inf, to be added to attention scores
    return found.detach().bool()


def _has_decoder(model: nn.Module) -> bool:
    """Return whether a model has a second sequence, which ``attention_mask`` is not about."""
    return any(
        isinstance(module, nn.TransformerDecoder | nn.TransformerDecoderLayer)
        or getattr(getattr(module, "config", None), "is_encoder_decoder", False)
        for module in model.modules()
    )


def _wrong(what: str) -> CuberError:
    return CuberError(
        f"mask must be a tensor of samples x positions, nonzero or True where a position is real, but it {what}: pass "
        "another mask= to the learner, or mask=None to count all positions"
    )


def as_sequences(layer: ProtectedLayer, x: Tensor, real: Tensor | None) -> Tensor | None:
    """Return a layer's input as samples x positions x d, or of numbers of embeddings as samples x positions.

    Returns:
        None where the mask does not fit: for inputs of another shape (after pooling, say), and for convolutions.
    """
    if real is None or x.is_nested or layer.dimensions_after_units:
        return None
    own = 1 if x.is_floating_point() else 0  # dimensions of one position
    if x.dim() == own + 1 and len(x) == real.numel() > len(real):  # all positions of all samples, one after another
        x = x.unflatten(0, real.shape)
    return x if x.dim() == own + 2 and x.shape[:2] == real.shape else None


# Means over samples of different lengths: a last column counts the samples that have a position


def counted(values: Tensor, real: Tensor) -> Tensor:
    """Return the real positions of each sample, then 0; and a last column that is 1 where a position is real.

    Args:
        values: samples x positions x d.
        real: samples x positions.
    """
    real = real.to(values.device)
    order = real.long().argsort(dim=1, descending=True, stable=True)
    marked = torch.cat([values, torch.ones_like(values[:, :, :1])], dim=2).masked_fill(~real.unsqueeze(2), 0)
    return marked.gather(1, order.unsqueeze(2).expand_as(marked))


def concatenated(one: Tensor, other: Tensor) -> Tensor:
    """Concatenate samples that may have different numbers of positions."""
    longest = max(one.shape[1], other.shape[1])
    return torch.cat([functional.pad(part, (0, 0, 0, longest - part.shape[1])) for part in (one, other)])


def uncounted(means: Tensor) -> Tensor:
    """Return means over the samples that have a position, 0 where none has, for means over all samples."""
    return means[..., :-1] / means[..., -1:].clamp_min(torch.finfo(means.dtype).tiny)
