"""Datasets of single image files: your own images, notMNIST, and miniImageNet with csv files."""

from __future__ import annotations

import csv
import hashlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from cuber.datasets.readers.layout import Block, Images, Layout, Notes, block, split_class
from cuber.datasets.registry import DamagedError, Source
from cuber.errors import CuberError, CuberWarning

MAX_NAMED = 10
"""Number of damaged files that a note names."""
TEST_FRACTION = 10
"""One image of notMNIST in ten is for testing: the dataset has no split of its own."""
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

    The image is a PIL image, an array (H, W) or (H, W, C), or a tensor (C, H, W); uint8, or floats in [0, 1].
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


def letter_layouts(source: Source, root: Path) -> list[Layout]:
    """Find the folders A to J of notMNIST, which has duplicates and two empty files."""
    found = []
    for folder in (root / name for name in source.folders):
        files = {letter: image_files(folder / letter) for letter in source.classes if (folder / letter).is_dir()}
        if files:
            missing = tuple(folder / letter for letter in source.classes if not files.get(letter))
            every = tuple(path for paths in files.values() for path in paths)
            found.append(Layout("PNG files", every, missing, partial(_read_letters, source, files)))
    return found


def _read_letters(source: Source, files: dict[str, list[Path]], notes: Notes) -> Iterator[Block]:
    reader = ImageReader(source.name, partial(_check_size, source.shape))
    seen: set[bytes] = set()
    duplicates = 0
    for label, letter in enumerate(source.classes):
        by_digest: dict[bytes, Images] = {}
        for path in files[letter]:
            image = reader.read(path)
            if image is not None:
                digest = hashlib.sha256(image.tobytes()).digest()
                duplicates += digest in seen
                if digest not in seen:
                    seen.add(digest)
                    by_digest[digest] = image
        if not by_digest:
            raise source.error(files[letter][0].parent, "has no image that can be read")
        # Sorting by digest shuffles the images, in the same order on every machine.
        images = np.stack([by_digest[digest] for digest in sorted(by_digest)])
        held_out = len(images) // TEST_FRACTION
        for split, some in (("train", images[held_out:]), ("test", images[:held_out])):
            yield block(source, split, some, np.full(len(some), label))
    reader.report(notes)
    if duplicates:
        notes.append(f"{duplicates} exact duplicates removed before the split into train and test")


def _check_size(shape: tuple[int, ...], image: Image.Image) -> Images:
    pixels = np.asarray(image.convert("L"))
    if pixels.shape != shape:
        raise DamagedError(f"{pixels.shape[1]}x{pixels.shape[0]} instead of {shape[1]}x{shape[0]}")
    return pixels


def csv_layouts(source: Source, root: Path) -> list[Layout]:
    """Find miniImageNet in the split of Ravi and Larochelle: ``{train,val,test}.csv`` and a folder ``images``."""
    found = []
    for place in (root / folder for folder in source.folders):
        tables = [place / f"{name}.csv" for name in ("train", "val", "test")]
        listed: dict[str, list[Path]] = defaultdict(list)
        for table in filter(Path.exists, tables):
            for path, name in read_list(table, place / "images"):
                if name not in source.classes:
                    raise source.error(table, f"names {name}, which is not one of its {len(source.classes)} classes")
                listed[name].append(path)
        every = [*tables, *(path for paths in listed.values() for path in paths)]
        missing = tuple(path for path in every if not path.exists())
        files = tuple(path for path in every if path.exists())
        if listed:
            found.append(Layout("csv files and images", files, missing, partial(_read_listed, source, listed)))
    return found


def read_list(path: Path, folder: Path) -> list[tuple[Path, str]]:
    """Read a csv file with the columns ``filename``, below ``folder``, and ``label``."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise CuberError(f"{path} cannot be read as a csv file: {getattr(error, 'strerror', None) or error}") from error
    if not rows or not {"filename", "label"} <= rows[0].keys():
        raise CuberError(f"{path} needs a first line 'filename,label' and a line for each image")
    return [(folder / str(row["filename"]), str(row["label"])) for row in rows]


def _read_listed(source: Source, listed: dict[str, list[Path]], notes: Notes) -> Iterator[Block]:
    resized = 0

    def convert(image: Image.Image) -> Images:
        nonlocal resized
        size = source.shape[1], source.shape[0]
        resized += image.size != size
        # The resampling of the script that first made 84x84 images of ImageNet.
        return np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS))

    reader = ImageReader(source.name, convert)
    for label, name in enumerate(source.classes):
        for split, paths in split_class(listed[name]).items():
            images = [image for image in map(reader.read, paths) if image is not None]
            if not images:
                raise source.error(paths[0].parent if paths else Path(name), f"has no {split} image of {name}")
            yield block(source, split, np.stack(images), np.full(len(images), label))
    reader.report(notes)
    if resized:
        notes.append(f"{resized} images resized to {source.shape[1]}x{source.shape[0]}")
