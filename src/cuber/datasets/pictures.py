"""Pictures of any make as square arrays of bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from cuber.datasets.readers.layout import Images
from cuber.datasets.source import DamagedError


def decode(path: Path, side: int, grey: bool) -> Images:
    """An image file, ``side`` x ``side``."""
    try:
        with Image.open(path) as image:
            return picture(image, side, grey)
    except (PermissionError, DamagedError):
        raise
    except Exception as error:  # Pillow has no common ancestor for what a damaged file can do to it
        raise DamagedError("not an image, or cut off") from error


def picture(image: Any, side: int, grey: bool) -> Images:
    """A PIL image, an array (H, W, C) or a tensor (C, H, W): the shorter edge scaled to ``side``, the middle kept."""
    if not isinstance(image, Image.Image):
        image = _from_array(image)
    turned = ImageOps.exif_transpose(image) or image
    fitted = ImageOps.fit(turned.convert("L" if grey else "RGB"), (side, side), Image.Resampling.BILINEAR)
    return np.asarray(fitted)


def _from_array(values: Any) -> Image.Image:
    first = hasattr(values, "detach")  # torch's images have their channels first
    array = np.asarray(values.detach().cpu() if first else values)
    if first and array.ndim == 3:
        array = array.transpose(1, 2, 0)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (3, 4)):
        raise DamagedError(f"is of shape {array.shape}, not (height, width) or (height, width, channels)")
    if array.dtype.kind == "f":
        if not (array.min() >= 0 and array.max() <= 1):  # NaN is neither
            raise DamagedError("has numbers outside 0 to 1; give images before they are normalized")
        array = (array * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise DamagedError(f"is of {array.dtype}, not of bytes or numbers from 0 to 1")
    return Image.fromarray(array)
