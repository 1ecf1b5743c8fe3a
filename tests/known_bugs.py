"""Marks for tests that say what ought to hold and does not yet; strict, so that a fix must remove the mark."""

from __future__ import annotations

from typing import Any

import pytest


def bug(reason: str, raises: type[BaseException] = AssertionError) -> Any:
    return pytest.mark.xfail(strict=True, reason=reason, raises=raises)
