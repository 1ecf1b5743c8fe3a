"""Image files, some of which are damaged: read what can be read, and say what could not."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from cuber.datasets.readers.layout import Images, Notes
from cuber.datasets.source import DamagedError, Source
from cuber.errors import CuberError, CuberWarning

NAMED = 10
"""How many of the damaged files a note names; the rest are counted."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"})


def image_files(folder: Path) -> list[Path]:
    """The images of a folder, in the order of their names."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != ".")


def class_folders(source: Source, folder: Path) -> dict[str, Path]:
    """The folders that are named like classes; one that is named otherwise is an error."""
    found = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and path.name[0] not in "._"}
    strange = [name for name in found if name not in source.classes]
    if strange:
        known = ", ".join(source.classes[:3])
        raise CuberError(
            f"{source.name}: {folder / strange[0]} is not one of its {len(source.classes)} class folders "
            f"({known}, ...); move it elsewhere, or correct its name"
        )
    return found


def report_damaged(name: str, damaged: Sequence[str], notes: Notes) -> None:
    """Note which files of a set were skipped, and warn of them."""
    if not damaged:
        return
    more = len(damaged) - NAMED
    names = ", ".join(damaged[:NAMED]) + (f" and {more} more" if more > 0 else "")
    notes.append(f"{len(damaged)} damaged file{'s' if len(damaged) > 1 else ''} skipped: {names}")
    warnings.warn(f"{name}: {notes[-1]}", CuberWarning, stacklevel=3)


class Decoder:
    """Decodes image files of one set, and remembers which were damaged and which were resized."""

    def __init__(self, source: Source, resize: bool) -> None:
        self.source = source
        self.resize = resize
        self.damaged: list[str] = []
        self.resized = 0

    def images(self, paths: Sequence[Path]) -> Iterator[tuple[Path, Images]]:
        """The images that can be read, with their paths."""
        for path in paths:
            try:
                yield path, self._decode(path)
            except DamagedError as error:
                self.damaged.append(f"{path.parent.name}/{path.name} ({error})")

    def report(self, notes: Notes) -> None:
        """Note what was skipped and what was resized, and warn of the former: it is read only once, then cached."""
        report_damaged(self.source.name, self.damaged, notes)
        if self.resized:
            notes.append(f"{self.resized} images resized to {self.source.shape[1]}x{self.source.shape[0]}")

    def _decode(self, path: Path) -> Images:
        if path.stat().st_size == 0:
            raise DamagedError("empty")
        height, width = self.source.shape[:2]
        try:
            with Image.open(path) as image:
                pixels = image.convert("RGB" if len(self.source.shape) == 3 else "L")
        except PermissionError:
            raise
        except Exception as error:  # Pillow has no common ancestor for what a damaged file can do to it
            raise DamagedError("not an image, or cut off") from error
        if pixels.size != (width, height):
            if not self.resize:
                raise DamagedError(f"{pixels.size[0]}x{pixels.size[1]} instead of {width}x{height}")
            self.resized += 1
            # As in the script that first made 84x84 files of the ImageNet ones.
            pixels = pixels.resize((width, height), Image.Resampling.LANCZOS)
        return np.asarray(pixels)
