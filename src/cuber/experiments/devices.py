"""Run experiments in separate processes that share the devices of a machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from cuber.core.device import DeviceShare
from cuber.experiments.experiment import Experiment
from cuber.experiments.processes import LocalProcesses


class OnDevices(LocalProcesses):
    """Each experiment that begins runs on the device that the fewest others run on."""

    def __init__(self, jobs: int, devices: Sequence[torch.device]) -> None:
        super().__init__(jobs)
        self._share = DeviceShare(devices)

    def _run(self, function: Any, args: Any, kwargs: Any) -> None:
        experiment, *others = args
        assert isinstance(experiment, Experiment)
        with self._share.lend() as device:
            super()._run(function, (dataclasses.replace(experiment, device=str(device)), *others), kwargs)
