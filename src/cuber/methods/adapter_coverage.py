"""What becomes of the parameters of a model that adapters are trained in."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from cuber.core.coverage import Coverage
from cuber.layers.model import Freezer
from cuber.networks.heads import head_parameters


def adapter_coverage(
    model: nn.Module,
    freezer: Freezer,
    shared: Iterable[nn.Parameter],
    private: Iterable[nn.Parameter],
    adapters: Iterable[nn.Parameter],
) -> Coverage:
    """Return the coverage of a model whose own weights no task trains.

    Args:
        model: the model with its adapters.
        freezer: knows what the learner has frozen.
        shared: what tasks train and all later tasks compute with.
        private: what tasks train for themselves.
        adapters: all parameters of adapters, trained or not.
    """
    heads = set(head_parameters(model))
    added, frozen = heads.union(adapters), set(freezer.names())
    base = {name: parameter for name, parameter in model.named_parameters() if parameter not in added}
    by_user = [name for name, parameter in base.items() if not parameter.requires_grad and name not in frozen]
    layers = (name.replace(".base_layer.", ".").rpartition(".")[0] or name for name in by_user)
    return Coverage(
        protected=_entries(shared),
        per_task=_entries(private),
        unprotected={},
        heads=_entries(heads),
        frozen_by_user=tuple(dict.fromkeys(layers)),
        frozen=_entries(base[name] for name in base.keys() & frozen),
    )


def _entries(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters)
