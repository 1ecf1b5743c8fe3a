"""Checkpoints on disk: written atomically, verified by checksums, and without pickle."""

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
from cuber.runs.files import read_bytes, read_text, write_atomically
from cuber.runs.lock import RefusedError
from cuber.runs.serialize import flatten, unflatten

FORMAT = 3
"""Raise it when the state of learners or trainers changes; other formats are refused, not converted."""
KEPT = 2
"""The newest, and one more in case that the newest is damaged."""


class Checkpoints:
    """The checkpoints of one run: pairs of files such as ``000007.safetensors`` and ``000007.json``.

    The first line of the JSON file has the format number and the checksums of both files. It is written last, so a
    tensor file without it is not a checkpoint.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        self._valid: list[int] = []
        """The last ones that this object has read or written, at most KEPT."""

    def any(self) -> bool:
        """Return whether there are any, valid or not."""
        return bool(self._numbers())

    def save(self, state: Any) -> None:
        """Write a checkpoint and remove old ones; if that raises an OSError, the old ones are still there."""
        plain, tensors = flatten(state)
        number = max(self._numbers(), default=0) + 1
        blob, text = save(tensors), json.dumps(plain, allow_nan=False)
        head = {"format": FORMAT, "seal": {"tensors": _digest(blob), "state": _digest(text.encode())}}
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            write_atomically(self._path(number, "safetensors"), blob)
            write_atomically(self._path(number, "json"), json.dumps(head) + "\n" + text)
        except BaseException:
            self._remove(number)
            raise
        self._valid = [*self._valid, number][-KEPT:]
        for old in set(self._numbers()) - set(self._valid):
            self._remove(old)
        for temporary in self.directory.glob(".[0-9]*.*.*"):  # of a process that was killed while it wrote
            if temporary.is_file():
                temporary.unlink()

    def load(self) -> Any | None:
        """Return the newest valid state, or None if there are no checkpoints; warn of each that is damaged.

        Raises:
            CuberError: If all are damaged, or one was written in another format.
        """
        if self.directory.exists() and not self.directory.is_dir():
            raise CuberError(f"{self.directory} is a file where a folder should be: start over with --fresh")
        numbers = self._numbers()
        for number in reversed(numbers):
            try:
                state = self._read(number)
                self._valid = [number]
                return state
            except RefusedError:
                raise
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                message = f"checkpoint {self._path(number, 'json')} is damaged ({error})"
                warnings.warn(f"{message}: the one before it is used", CuberWarning, stacklevel=2)
        if numbers:
            raise CuberError(f"no checkpoint in {self.directory} is valid: start over with --fresh")
        return None

    def _read(self, number: int) -> Any:
        path = self._path(number, "json")
        head, _, text = read_text(path).partition("\n")
        values = json.loads(head)
        seal, written = values["seal"], values.get("format", 1)
        if written != FORMAT:
            raise RefusedError(
                f"checkpoint {path} was written by another version of cuber (format {written}, this version has "
                f"{FORMAT}): start over with --fresh, or finish the run with that version"
            )
        blob = read_bytes(self._path(number, "safetensors"))
        if _digest(text.encode()) != seal["state"] or _digest(blob) != seal["tensors"]:
            raise ValueError("its checksum is wrong")
        return unflatten(json.loads(text), load(blob))

    def _numbers(self) -> list[int]:
        found = (re.fullmatch(r"(\d{6,})\.json", path.name) for path in self.directory.glob("*.json"))
        return sorted(int(match[1]) for match in found if match)

    def _remove(self, number: int) -> None:
        for kind in ("json", "safetensors"):
            self._path(number, kind).unlink(missing_ok=True)

    def _path(self, number: int, kind: str) -> Path:
        return self.directory / f"{number:06d}.{kind}"


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=32).hexdigest()
