"""Run experiments on the workers of a Dask scheduler."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

from cuber.errors import CuberError
from cuber.experiments.engines.remote import CONNECT_SECONDS, RemoteEngine


class DaskEngine(RemoteEngine):
    """One run per thread of the workers; Dask gives up a run that three workers died of."""

    name = "dask"

    def connect(self) -> None:
        from distributed import Client

        try:
            self.client = Client(f"tcp://{self.address}", timeout=CONNECT_SECONDS, set_as_default=False)
        except (OSError, asyncio.TimeoutError) as error:
            raise CuberError(f"no Dask scheduler answers at {self.address} ({error})") from error
        self._executor = self.client.get_executor(pure=False)

    def start(self, function: Any, args: Any, threads: int) -> Future[Any]:
        future: Future[Any] = self._executor.submit(function, *args)
        return future

    def cancel(self) -> None:
        self._executor.shutdown(wait=False)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        super().shutdown(wait, cancel_futures=cancel_futures)
        self.client.close()
