"""notMNIST: a folder of PNG files per letter, with duplicates and two empty files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from cuber.datasets.readers.image_files import Decoder, class_folders, image_files
from cuber.datasets.readers.layout import Block, Images, Layout, Notes, block, reading
from cuber.datasets.source import Source

TEST_FRACTION = 10
"""One image in ten is for testing: the dataset has no split of its own."""


def layouts(source: Source, root: Path) -> list[Layout]:
    """Return a layout for each folder that has some of the folders A to J."""
    found = []
    for folder in (root / name for name in source.folders):
        if any((folder / letter).is_dir() for letter in source.classes):
            files = {letter: image_files(path) for letter, path in class_folders(source, folder).items()}
            missing = tuple(folder / letter for letter in source.classes if not files.get(letter))
            every = tuple(path for paths in files.values() for path in paths)
            found.append(Layout("PNG files", every, missing, partial(_read, source, files)))
    return found


def _read(source: Source, files: dict[str, list[Path]], notes: Notes) -> Iterator[Block]:
    decoder = Decoder(source, resize=False)
    seen: set[bytes] = set()
    duplicates = 0
    for label, letter in enumerate(source.classes):
        by_digest: dict[bytes, Images] = {}
        for path in files[letter]:
            with reading(source, path):
                for image in decoder.images([path]):
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
    decoder.report(notes)
    if duplicates:
        notes.append(f"{duplicates} exact duplicates removed before the split into train and test")
