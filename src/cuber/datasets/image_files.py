"""List and decode image files, skipping and reporting damaged ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from cuber.datasets.source import Block, DamagedError, Images, Notes, cannot_read
from cuber.errors import CuberError, CuberWarning

MAX_NAMED = 10
"""Number of damaged files that a note names."""
CHUNK = 256
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"})
LabeledFiles = Sequence[tuple[Path, str]]
"""Image files and the names of their classes."""
Convert = Callable[[Image.Image], Images]


def image_files(folder: Path) -> list[Path]:
    """Return the images of a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != ".")


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder that are not hidden, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")


def read_images(
    name: str, listed: Mapping[str, LabeledFiles], classes: Sequence[str], convert: Convert, notes: Notes
) -> Iterator[Block]:
    """Yield the images of each split; raise CuberError if none of a class can be decoded."""
    damaged: list[str] = []
    for split, files in listed.items():
        unread = {label: path.parent for path, label in files}
        for start in range(0, len(files), CHUNK):
            decoded = list(decode_files(name, files[start : start + CHUNK], convert, damaged))
            if decoded:
                labels = np.array([classes.index(label) for _, label in decoded], np.int64)
                yield Block(split, np.stack([image for image, _ in decoded]), labels)
            for _, label in decoded:
                unread.pop(label, None)
        for label, folder in unread.items():
            raise CuberError(f"{name}: {folder} has no {split} image of {label} that can be read")
    report_damaged(name, damaged, notes)


def decode_files(name: str, files: LabeledFiles, convert: Convert, damaged: list[str]) -> Iterator[tuple[Images, str]]:
    """Yield image and label of each file that can be decoded; append the others to ``damaged``."""
    for path, label in files:
        try:
            if path.stat().st_size == 0:
                raise DamagedError("empty")
            with Image.open(path) as image:
                decoded = convert(image)
        except PermissionError as error:
            raise cannot_read(name, path, error) from error
        except Exception as error:  # Pillow raises unrelated types for damaged files
            what = error if isinstance(error, DamagedError) else "not an image, or cut off"
            damaged.append(f"{path.parent.name}/{path.name} ({what})")
        else:
            yield decoded, label


def report_damaged(name: str, damaged: Sequence[str], notes: Notes) -> None:
    """Add a note on the files of a dataset that were skipped, and warn."""
    if not damaged:
        return
    more = len(damaged) - MAX_NAMED
    names = ", ".join(damaged[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    notes.append(f"{len(damaged)} damaged file{'s' if len(damaged) > 1 else ''} skipped: {names}")
    warnings.warn(f"{name}: {notes[-1]}", CuberWarning, stacklevel=3)


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
