"""Decode image files, skipping and reporting damaged ones."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from cuber.datasets.readers.layout import Images, Notes
from cuber.datasets.source import DamagedError, Source
from cuber.errors import CuberError, CuberWarning

MAX_NAMED = 10
"""Number of damaged files that a note names."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"})


def image_files(folder: Path) -> list[Path]:
    """Return the images of a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != ".")


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder that are not hidden, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")


def class_folders(source: Source, folder: Path) -> dict[str, Path]:
    """Return the class folders by name; raise CuberError for a folder that is not one."""
    found = {path.name: path for path in subfolders(folder)}
    strange = [name for name in found if name not in source.classes]
    if strange:
        known = ", ".join(source.classes[:3])
        raise CuberError(
            f"{source.name}: {folder / strange[0]} is not one of its {len(source.classes)} class folders "
            f"({known}, ...); move it elsewhere, or correct its name"
        )
    return found


def report_damaged(name: str, damaged: Sequence[str], notes: Notes) -> None:
    """Add a note on the files of a dataset that were skipped, and warn."""
    if not damaged:
        return
    more = len(damaged) - MAX_NAMED
    names = ", ".join(damaged[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    notes.append(f"{len(damaged)} damaged file{'s' if len(damaged) > 1 else ''} skipped: {names}")
    warnings.warn(f"{name}: {notes[-1]}", CuberWarning, stacklevel=3)


class Decoder:
    """Decode the image files of a dataset, and record which were damaged and how many were resized."""

    def __init__(self, source: Source, resize: bool) -> None:
        self.source = source
        self.resize = resize
        self.damaged: list[str] = []
        self.resized = 0

    def images(self, paths: Sequence[Path]) -> Iterator[Images]:
        """Yield the images that can be decoded."""
        for path in paths:
            try:
                yield self._decode(path)
            except DamagedError as error:
                self.damaged.append(f"{path.parent.name}/{path.name} ({error})")

    def report(self, notes: Notes) -> None:
        """Add notes on skipped and resized images, and warn of skipped ones."""
        report_damaged(self.source.name, self.damaged, notes)
        if self.resized:
            notes.append(f"{self.resized} images resized to {self.source.shape[1]}x{self.source.shape[0]}")

    def _decode(self, path: Path) -> Images:
        if path.stat().st_size == 0:
            raise DamagedError("empty")
        height, width = self.source.shape[:2]
        with _open(path) as image:
            pixels = image.convert("RGB" if len(self.source.shape) == 3 else "L")
        if pixels.size != (width, height):
            if not self.resize:
                raise DamagedError(f"{pixels.size[0]}x{pixels.size[1]} instead of {width}x{height}")
            self.resized += 1
            # The resampling of the script that first made 84x84 images of ImageNet.
            pixels = pixels.resize((width, height), Image.Resampling.LANCZOS)
        return np.asarray(pixels)


def decode(path: Path, side: int, grey: bool) -> Images:
    """Decode an image file and crop it to ``side`` x ``side``."""
    with _open(path) as image:
        return crop_image(image, side, grey)


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    try:
        with Image.open(path) as image:
            yield image
    except PermissionError:
        raise
    except Exception as error:  # Pillow raises unrelated types for damaged files
        raise DamagedError("not an image, or cut off") from error


def crop_image(image: Any, side: int, grey: bool) -> Images:
    """Scale the shorter edge to ``side`` and keep the center.

    Args:
        image: A PIL image, an array (H, W) or (H, W, C), or a tensor (C, H, W); uint8, or floats in [0, 1].
        side: Width and height of the result.
        grey: Whether to convert to grayscale.
    """
    if not isinstance(image, Image.Image):
        image = _from_array(image)
    upright = ImageOps.exif_transpose(image) or image
    fitted = ImageOps.fit(upright.convert("L" if grey else "RGB"), (side, side), Image.Resampling.BILINEAR)
    return np.asarray(fitted)


def _from_array(values: Any) -> Image.Image:
    is_tensor = hasattr(values, "detach")
    array = np.asarray(values.detach().cpu() if is_tensor else values)
    if is_tensor and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise DamagedError(f"is of shape {array.shape}, not (height, width) or (height, width, channels)")
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):  # also True for NaN
            raise DamagedError("has numbers outside 0 to 1; give images before they are normalized")
        array = (array * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise DamagedError(f"is of {array.dtype}, not of uint8 or numbers from 0 to 1")
    return Image.fromarray(array)
