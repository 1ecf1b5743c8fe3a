"""One thread and one seed for every test: same seed, same bits."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import torch

from cuber.training.forward import PROBE, probe_failure
from tests.datasets.every_set import write_every_set

torch.set_num_threads(1)

hypothesis.settings.register_profile("same-bits", deadline=None, derandomize=True, database=None, max_examples=60)
# For an evening of looking for trouble: pytest --hypothesis-profile search
hypothesis.settings.register_profile("search", deadline=None, database=None, max_examples=3000)
hypothesis.settings.load_profile("same-bits")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


HALF = (torch.bfloat16, torch.float16)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that compute in a dtype with which this machine crashes: those marked, or parametrized with it."""
    wanted = [dtype for marker in item.iter_markers("needs_dtype") for dtype in marker.args]
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    for dtype in [*wanted, *(value for value in values if isinstance(value, torch.dtype) and value in HALF)]:
        failure = probe_failure(dtype, PROBE)
        if failure is not None:
            pytest.skip(f"{dtype} does not work on this machine: {failure}")


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little of every dataset: what the benchmarks of images need to be tried without any."""
    return write_every_set(tmp_path_factory.mktemp("data"))
