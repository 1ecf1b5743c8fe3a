"""Decode image files, skipping and reporting damaged ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from cuber.datasets.readers.layout import Images, Notes
from cuber.datasets.source import DamagedError
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


class ImageReader:
    """Read the image files of a dataset with ``convert``, and record which are damaged."""

    def __init__(self, name: str, convert: Callable[[Image.Image], Images]) -> None:
        self.name = name
        self.convert = convert
        self.damaged: list[str] = []

    def read(self, path: Path) -> Images | None:
        """Return an image, or None if the file is damaged."""
        try:
            with Image.open(path) as image:
                return self.convert(image)
        except PermissionError as error:
            raise CuberError(f"{self.name}: {path} cannot be read ({error.strerror}): make it readable") from error
        except Exception as error:  # Pillow raises unrelated types for damaged files
            other = "not an image, or cut off" if path.stat().st_size else "empty"
            reason = str(error) if isinstance(error, DamagedError) else other
            self.damaged.append(f"{path.parent.name}/{path.name} ({reason})")
            return None

    def report(self, notes: Notes) -> None:
        """Add a note on the damaged files, and warn."""
        count = len(self.damaged)
        if count:
            more = f" and {count - MAX_NAMED} more" if count > MAX_NAMED else ""
            names = ", ".join(self.damaged[:MAX_NAMED]) + more
            notes.append(f"{count} damaged file{'s' if count > 1 else ''} skipped: {names}")
            warnings.warn(f"{self.name}: {notes[-1]}", CuberWarning, stacklevel=3)


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
