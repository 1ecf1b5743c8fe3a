"""notMNIST: a folder of PNG files per letter, with duplicates and two empty files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from cuber.datasets.readers.image_files import ImageReader, image_files
from cuber.datasets.readers.layout import Block, Images, Layout, Notes, block
from cuber.datasets.source import DamagedError, Source

TEST_FRACTION = 10
"""One image in ten is for testing: the dataset has no split of its own."""


def layouts(source: Source, root: Path) -> list[Layout]:
    """Return a layout for each folder that has some of the folders A to J."""
    found = []
    for folder in (root / name for name in source.folders):
        files = {letter: image_files(folder / letter) for letter in source.classes if (folder / letter).is_dir()}
        if files:
            missing = tuple(folder / letter for letter in source.classes if not files.get(letter))
            every = tuple(path for paths in files.values() for path in paths)
            found.append(Layout("PNG files", every, missing, partial(_read, source, files)))
    return found


def _read(source: Source, files: dict[str, list[Path]], notes: Notes) -> Iterator[Block]:
    reader = ImageReader(source.name, partial(_convert, source.shape))
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


def _convert(shape: tuple[int, ...], image: Image.Image) -> Images:
    pixels = np.asarray(image.convert("L"))
    if pixels.shape != shape:
        raise DamagedError(f"{pixels.shape[1]}x{pixels.shape[0]} instead of {shape[1]}x{shape[0]}")
    return pixels
