"""Run experiments on the nodes of a Ray cluster."""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future
from typing import Any

from cuber.errors import CuberError
from cuber.experiments.engines.remote import RemoteEngine

RETRIES = 3


class RayEngine(RemoteEngine):
    """A run takes as many CPUs as it has threads; Ray gives up a run after it has lost its node or worker four times.

    Without an address it uses the cluster to which this process is connected, the one that ``RAY_ADDRESS`` names, or
    one on this machine, and starts one if there is none.
    """

    name = "ray"

    def connect(self) -> None:
        import ray

        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self._ray = ray
        self._calls: list[Any] = []
        self._connected = False
        if self.address and ray.is_initialized():
            raise CuberError("this process is connected to a Ray cluster: use --on ray, or call ray.shutdown()")
        if not ray.is_initialized():
            address = f"ray://{self.address}" if self.address else None
            try:
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
            except (ConnectionError, RuntimeError, ValueError) as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
                raise CuberError(f"cannot connect to Ray at {self.address or 'this machine'}: {reason}") from error
            self._connected = True

    def start(self, function: Any, args: Any, threads: int) -> Future[Any]:
        call = self._ray.remote(function).options(num_cpus=threads, max_retries=RETRIES)
        reference = call.remote(*args)
        self._calls.append(reference)
        future: Future[Any] = reference.future()
        return future

    def cancel(self) -> None:
        for reference in self._calls:
            self._ray.cancel(reference)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        if self._connected:
            self._ray.shutdown()
