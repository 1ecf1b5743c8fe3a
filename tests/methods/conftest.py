"""No learner warns of drift unless a test says that it must."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest

from cuber import CuberWarning


@pytest.fixture(autouse=True)
def _no_drift_unnoticed() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", CuberWarning)
        yield
