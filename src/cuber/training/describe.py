"""What a run is, said in plain values."""

from __future__ import annotations

import dataclasses
import platform
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from cuber.core.learner import Method
from cuber.core.pooled import PooledMethod
from cuber.core.settings import settings_of
from cuber.errors import CuberError
from cuber.networks.heads import heads_of
from cuber.runs.config_file import Config
from cuber.runs.result import AccuracyMatrix, Result
from cuber.streams import Stream
from cuber.training.fingerprint import architecture, called, contents, optimizer_made
from cuber.training.trainer import Recipe
from cuber.version import __version__


def blank(learner: Method, stream: Stream, recipe: Recipe) -> Result:
    """All that is known of a result before the first task."""
    bare: AccuracyMatrix | None = [] if stream.shared_head and not heads_of(learner.model) else None
    return Result(
        benchmark=stream.name,
        method=type(learner).__name__.lower(),
        seed=recipe.seed,
        tasks=[
            {
                "name": task.name,
                "classes": task.classes,
                "train": len(task.train),
                "validation": 0 if task.validation is None else len(task.validation),
                "test": len(task.test),
            }
            for task in stream
        ],
        settings={name: getattr(learner, name) for name in settings_of(learner)},
        training={
            **dataclasses.asdict(recipe.training),
            "optimizer": optimizer_made(recipe.make_optimizer, learner.parameters(), recipe.training.lr),
            "loss": called(recipe.loss_fn),
        },
        accuracy_bare=bare,
        machine={
            "cuber": __version__,
            "commit": _commit(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.system(),
            "processor": platform.machine(),
            "device": str(learner.device),
            "threads": torch.get_num_threads(),
            "parameters": sum(parameter.numel() for parameter in learner.model.parameters()),
            "architecture": architecture(learner.model),
        },
        notes=list(stream.notes),
    )


def regimes_of(learner: Method) -> list[dict[str, dict[int, dict[str, Any]]]]:
    """What the learner says of regimes, as plain values; nothing for methods that know of none."""
    return [
        {
            layer: {
                old: {
                    "regime": regime.number,
                    "ratio": regime.ratio,
                    "cosine": regime.cosine,
                    "fell": regime.demoted_at,
                }
                for old, regime in by_task.items()
            }
            for layer, by_task in by_layer.items()
        }
        for by_layer in getattr(learner, "regimes", [])
    ]


def pool_of(learner: Method) -> dict[str, dict[str, int]]:
    """How full each layer's pool is; nothing for methods that have none."""
    pools = learner.memory if isinstance(learner, PooledMethod) else {}
    return {layer: {"size": pool.size, "dimension": pool.dimension} for layer, pool in pools.items()}


def configuration(result: Result, stream: Stream, about: Mapping[str, Any]) -> Config:
    """Everything that decides a result (``about`` is what only the caller knows), and where it was made."""
    machine = dict(result.machine)
    decisive = {name: machine.pop(name) for name in ("device", "threads", "parameters", "architecture")}
    decisive["contents"] = contents(stream)
    if taken := sorted(about.keys() & decisive.keys()):
        raise CuberError(f"about: '{taken[0]}' is a name that runs use themselves: choose another")
    return {
        "experiment": {
            "benchmark": result.benchmark,
            "method": result.method,
            "seed": result.seed,
            **about,
            **decisive,
        },
        "training": result.training,
        "settings": result.settings,
        "stream": {"tasks": result.tasks, "notes": result.notes},
        "machine": machine,
    }


@cache
def _commit() -> str | None:
    """The commit of the checkout that this is, "-dirty" where it has been changed; None where it is none."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        inside = any((folder / ".git").exists() for folder in Path(__file__).parents[2:4])
        return (
            subprocess.check_output(command, stderr=subprocess.DEVNULL, text=True, timeout=10).strip()
            if inside
            else None
        )
    except (OSError, subprocess.SubprocessError):
        return None
