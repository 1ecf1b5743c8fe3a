"""One thread and one seed for every test: same seed, same bits."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import torch

from tests.datasets.every_set import write_every_set

torch.set_num_threads(1)

hypothesis.settings.register_profile("same-bits", deadline=None, derandomize=True, database=None, max_examples=60)
# For an evening of looking for trouble: pytest --hypothesis-profile search
hypothesis.settings.register_profile("search", deadline=None, database=None, max_examples=3000)
hypothesis.settings.load_profile("same-bits")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little of every dataset: what the benchmarks of images need to be tried without any."""
    return write_every_set(tmp_path_factory.mktemp("data"))
