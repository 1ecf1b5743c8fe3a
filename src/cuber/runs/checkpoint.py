"""Checkpoints on disk: whole or not there, the one before kept until the next is safe, and no pickle."""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from cuber.errors import CuberError, CuberWarning
from cuber.runs.files import write_atomically
from cuber.runs.serialize import put_together, take_apart

KEPT = 2
"""The newest, and one before it in case that the newest is damaged."""


class Checkpoints:
    """The checkpoints of one run: pairs of files, ``000007.safetensors`` and then ``000007.json``, which seals it.

    The second names the checksum of the first and its own: a pair is whole only if both are right.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._whole: list[int] = []
        """Those that are whole as far as we know, since we have read or written them; no more than are kept."""

    def any(self) -> bool:
        """Whether there are any, whole or not."""
        return bool(self._numbers())

    def save(self, state: Any) -> None:
        """Write a checkpoint, and remove those that are no longer needed; raises OSError, and leaves the old ones."""
        plain, tensors = take_apart(state)
        number = max(self._numbers(), default=0) + 1
        blob = save(tensors)
        text = json.dumps(plain, allow_nan=False)
        seal = {"tensors": _digest(blob), "state": _digest(text.encode())}
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            write_atomically(self._tensors(number), blob)
            write_atomically(self._seal(number), json.dumps({"seal": seal}) + "\n" + text)
        except BaseException:
            self._remove(number)
            raise
        self._whole = [*self._whole, number][-KEPT:]
        for old in set(self._numbers()) - set(self._whole):
            self._remove(old)
        for left in self.directory.glob(".[0-9]*.*.*"):  # by a process that was killed while it wrote
            if left.is_file():
                left.unlink()

    def load(self) -> Any | None:
        """The newest state that is whole, with a warning for each that is not; None where there is none at all."""
        if self.directory.exists() and not self.directory.is_dir():
            raise CuberError(f"{self.directory} is a file where a folder should be: start over with --fresh")
        numbers = self._numbers()
        for number in reversed(numbers):
            try:
                state = self._read(number)
                self._whole = [number]
                return state
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                warnings.warn(
                    f"checkpoint {self._seal(number)} is damaged ({error}): the one before it is used",
                    CuberWarning,
                    stacklevel=2,
                )
        if numbers:
            raise CuberError(f"no checkpoint in {self.directory} is whole: start over with --fresh")
        return None

    def _read(self, number: int) -> Any:
        head, _, text = self._seal(number).read_text(encoding="utf-8").partition("\n")
        seal = json.loads(head)["seal"]
        blob = self._tensors(number).read_bytes()
        if _digest(text.encode()) != seal["state"] or _digest(blob) != seal["tensors"]:
            raise ValueError("its checksum is wrong")
        return put_together(json.loads(text), load(blob))

    def _numbers(self) -> list[int]:
        """Of the sealed ones; a first file without its second is no checkpoint."""
        found = (re.fullmatch(r"(\d{6,})\.json", path.name) for path in self.directory.glob("*.json"))
        return sorted(int(match[1]) for match in found if match)

    def _remove(self, number: int) -> None:
        for path in (self._seal(number), self._tensors(number)):  # the seal first: half a checkpoint is none
            path.unlink(missing_ok=True)

    def _seal(self, number: int) -> Path:
        return self.directory / f"{number:06d}.json"

    def _tensors(self, number: int) -> Path:
        return self.directory / f"{number:06d}.safetensors"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()
