"""Devices to train on: which there are, which one is meant, and how grids share them."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from cuber.core import distributed
from cuber.errors import CuberError
from cuber.subspace import has_float64

AUTO = "auto"
KNOWN = re.compile(r"cpu|mps|auto|cuda(:\d+)?")


def check_name(name: object) -> None:
    """Raise unless ``name`` can be the name of a device; whether it is there, the machine that trains must know."""
    if not isinstance(name, str) or not KNOWN.fullmatch(name):
        raise CuberError(f"device must be cpu, cuda, cuda:1 (or another number), mps or auto, not '{name}'")


def find_device(name: str) -> torch.device:
    """Return the device of that name, for ``auto`` the first of cuda, mps and cpu; raise if it is not there.

    Of several processes that ``torchrun`` has started on a machine, each gets a GPU of its own for ``cuda``.
    """
    check_name(name)
    there = available_devices()
    cuda = [one for one in there if one.startswith("cuda")]
    if cuda and name in (AUTO, "cuda"):
        return torch.device(cuda[distributed.local_rank() % len(cuda)])
    if name == AUTO:
        return torch.device(there[0])
    if name not in there:
        raise CuberError(
            f"there is no device '{name}' on this machine, only {', '.join(there)}: choose one of these, or auto"
        )
    return torch.device(name)


def find_devices(names: str) -> list[torch.device]:
    """Return the devices that a grid may use, for ``cuda`` all of that kind.

    >>> find_devices("cpu")
    [device(type='cpu')]
    """
    found: list[torch.device] = []
    for name in names.split(","):
        device = find_device(name.strip())
        several = [n for n in available_devices() if n.startswith("cuda")] if name.strip() == "cuda" else [str(device)]
        found += [torch.device(one) for one in several]
    for device in found:
        if found.count(device) > 1:
            raise CuberError(f"device '{device}' is named twice in '{names}': name it once")
    return found


def available_devices() -> list[str]:
    """Return the names of this machine's devices, the one that ``auto`` means first."""
    cuda = [f"cuda:{number}" for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)]
    return [*cuda, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def float64_zero(device: torch.device) -> Tensor:
    """Return a zero to add numbers of a device to, in float64; on the CPU where the device has none."""
    return torch.zeros((), dtype=torch.float64, device=device if has_float64(device) else "cpu")


class DeviceShare:
    """Lends devices to runs that go on at the same time, always the one that the fewest have.

    >>> share = DeviceShare([torch.device("cuda:0"), torch.device("cuda:1")])
    >>> with share.lend() as first, share.lend() as second:
    ...     print(first, second)
    cuda:0 cuda:1
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self._users = dict.fromkeys(devices, 0)
        self._lock = threading.Lock()

    @contextmanager
    def lend(self) -> Iterator[torch.device]:
        """While open, a device is in use."""
        with self._lock:
            device = min(self._users, key=lambda one: self._users[one])
            self._users[device] += 1
        try:
            yield device
        finally:
            with self._lock:
                self._users[device] -= 1
