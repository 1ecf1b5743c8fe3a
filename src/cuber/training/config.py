"""Options of the training loop, declared once.

``cuber.learn``, ``cuber run``, ``cuber grid``, grid files and ``config.toml`` take names, defaults, limits and help
texts from :class:`TrainingConfig`. This module must not import torch, because ``cuber --help`` imports it.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from typing import Any, get_args, get_type_hints

from cuber.core.settings import Setting, setting
from cuber.errors import unknown


@dataclass(frozen=True)
class TrainingConfig:
    """Options of the training loop; raises a CuberError for invalid values.

    >>> TrainingConfig(epochs=5, lr=0.1).batch_size
    64
    """

    epochs: int = setting(MISSING, "Epochs per task, at most.", low=1)
    lr: float = setting(MISSING, "Learning rate.", low=0, high=1e38, above=True)
    batch_size: int = setting(64, "Samples per training step.", low=1)
    patience: int | None = setting(None, "Epochs without gain before lr falls.", low=0)
    factor: float = setting(2.0, "Divisor of lr when patience runs out.", low=1, above=True)
    floor: float = setting(1e-5, "A task ends when lr falls below it.", low=0, above=True)
    evaluation_batch_size: int = setting(256, "Samples per batch in evaluation.", low=1)
    precision: str = setting(
        "float32",
        "float32, bf16, or (NVIDIA) tf32.",
        choices=("float32", "bf16", "tf32"),
    )
    compile: bool = setting(False, "Train with torch.compile.")

    def __post_init__(self) -> None:
        for name, (kind, _, limits) in training_options().items():
            value = getattr(self, name)
            if limits.choices and value not in limits.choices:
                raise unknown(name, str(value), limits.choices)
            if value is not None or name != "patience":
                limits.check(name, value, kind())
        if self.patience == 0:
            object.__setattr__(self, "patience", None)


def training_options() -> dict[str, tuple[type, Any, Setting]]:
    """Return name -> (type, default, help and limits) of each option; the default of required ones is MISSING."""
    types = get_type_hints(TrainingConfig)
    return {
        field.name: ((get_args(types[field.name]) or (types[field.name],))[0], field.default, field.metadata["setting"])
        for field in fields(TrainingConfig)
    }
