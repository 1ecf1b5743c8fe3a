"""Freed memory is reused, and malloc settings of the environment are respected."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys

import pytest

from cuber.core.allocation import keep_freed_memory

PROGRAM = """
import json, os, sys
from cuber.core.allocation import keep_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

if sys.argv[1] == "torch":
    import torch
    allocate = lambda: torch.ones(24 * 2**18)
else:
    allocate = lambda: b"x" * (24 * 2**20)
kept = keep_freed_memory()
before = resident()
blocks = [allocate() for _ in range(10)]
full = resident()
del blocks
print(json.dumps([kept, full - before, resident() - before]))
"""

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere it does nothing")


def freed(kind: str, **environment: str) -> tuple[bool, float]:
    """Return whether memory is kept, and how many of 240 MB are after they were freed: tensors, or bytes objects."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    command = [sys.executable, "-c", PROGRAM, kind]
    done = subprocess.run(command, env=clean | environment, capture_output=True, text=True, check=True)
    kept, full, left = json.loads(done.stdout)
    assert full > 230
    return kept, left


@linux
def test_freed_tensors_stay_allocated() -> None:
    kept, megabytes = freed("torch")
    assert kept == (platform.libc_ver()[0] == "glibc")
    assert megabytes > 200 if kept else megabytes < 100  # without glibc nothing is promised, nor done


@linux
@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TRIM_THRESHOLD_", "1000000"), ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0")]
)
def test_settings_of_the_environment_stay(name: str, value: str) -> None:
    kept, megabytes = freed("bytes", **{name: value})
    assert not kept
    assert megabytes < 100


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_other_systems_are_left_alone(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert not keep_freed_memory()
