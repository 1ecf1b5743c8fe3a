"""Readers of notMNIST, and of miniImageNet as class folders or as pickles."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from cuber.datasets.image_files import LabeledFiles, decode_files, image_files, read_images, report_damaged, subfolders
from cuber.datasets.source import SPLITS, Block, DamagedError, Images, Layout, Notes, Source
from cuber.datasets.unpickle import load_plain, text, whole_numbers
from cuber.errors import CuberError

TEST_FRACTION = 10
"""One image of notMNIST in ten is for testing: it has no split of its own."""
SUBSETS = ("train", "val", "test")
Item = TypeVar("Item")


def files_by_class(source: Source, folder: Path) -> dict[str, list[Path]]:
    """Return the images of each class folder; raise CuberError for a folder that is not one."""
    found = {path.name: path for path in subfolders(folder)}
    strange = [name for name in found if name not in source.classes]
    if strange:
        raise CuberError(
            f"{source.name}: {folder / strange[0]} is not one of its {len(source.classes)} class folders "
            f"({', '.join(source.classes[:3])}, ...); move it elsewhere, or correct its name"
        )
    return {name: image_files(path) for name, path in found.items()}


def notmnist_layouts(source: Source, folder: Path) -> Iterator[Layout]:
    """Yield the layout of a folder of PNG files per letter, with duplicates and two empty files."""
    if any((folder / letter).is_dir() for letter in source.classes):
        found = files_by_class(source, folder)
        files = [(path, letter) for letter, paths in found.items() for path in paths]
        missing = tuple(folder / letter for letter in source.classes if not found.get(letter))
        yield Layout("PNG files", tuple(path for path, _ in files), missing, partial(_read_letters, source, files))


def _read_letters(source: Source, files: LabeledFiles, notes: Notes) -> Iterator[Block]:
    def convert(image: Image.Image) -> Images:
        height, width = source.shape
        if image.size != (width, height):
            raise DamagedError(f"{image.size[0]}x{image.size[1]} instead of {width}x{height}")
        return np.asarray(image.convert("L"))

    damaged: list[str] = []
    by_digest: dict[bytes, tuple[Images, str]] = {}
    duplicates = 0
    for image, letter in decode_files(source.name, files, convert, damaged):
        digest = hashlib.sha256(image.tobytes()).digest()
        duplicates += digest in by_digest
        by_digest.setdefault(digest, (image, letter))
    by_letter = defaultdict(list)
    for digest in sorted(by_digest):  # this shuffles the images, in the same order on every machine
        image, letter = by_digest[digest]
        by_letter[letter].append(image)
    for label, letter in enumerate(source.classes):
        if not by_letter[letter]:
            raise source.error(
                next(path.parent for path, own in files if own == letter), "has no image that can be read"
            )
        images = np.stack(by_letter[letter])
        held_out = len(images) // TEST_FRACTION
        for split, some in (("train", images[held_out:]), ("test", images[:held_out])):
            yield source.block(split, some, np.full(len(some), label))
    report_damaged(source.name, damaged, notes)
    if duplicates:
        notes.append(f"{duplicates} exact duplicates removed before the split into train and test")


def miniimagenet_layouts(source: Source, folder: Path) -> Iterator[Layout]:
    """Yield the layouts of three pickles, and of class folders: in ``train``, ``val`` and ``test``, or alone."""
    pickles = [folder / f"mini-imagenet-cache-{name}.pkl" for name in SUBSETS]
    validation = folder / "mini-imagenet-cache-validation.pkl"
    if validation.exists():
        pickles[1] = validation
    yield Layout.of_files("cached pickles", pickles, partial(_read_pickles, source, pickles))
    subsets = [folder / name for name in SUBSETS if (folder / name).is_dir()]
    if subsets or any((folder / name).is_dir() for name in source.classes):
        yield _folder_layout(source, subsets or [folder])


def _split_class(items: list[Item]) -> dict[str, list[Item]]:
    """Split a class without an official split: 5 of 6 images (500 of 600) are for training."""
    count = len(items) * 5 // 6
    return {"train": items[:count], "test": items[count:]}


def _read_pickles(source: Source, paths: Sequence[Path], notes: Notes) -> Iterator[Block]:
    for path in paths:
        with source.reading(path):
            with path.open("rb") as file:
                content = load_plain(file)
            named = {text(key): value for key, value in content.items()} if isinstance(content, dict) else {}
            images, indices = named.get("image_data"), named.get("class_dict")
            if not isinstance(images, np.ndarray) or not isinstance(indices, dict):
                raise DamagedError(f"is a pickle, but without image_data and class_dict (it has {sorted(named)})")
            for key, values in indices.items():
                name, rows = text(key), whole_numbers(values).tolist()
                if name not in source.classes:
                    raise DamagedError(f"names the class {name}, which is not one of its {len(source.classes)} classes")
                if not set(rows) <= set(range(len(images))):
                    raise DamagedError(f"has indices for {name} that do not belong to its {len(images)} images")
                for split, some in _split_class(rows).items():
                    yield source.block(split, images[some], np.full(len(some), source.classes.index(name)))


def _folder_layout(source: Source, subsets: Sequence[Path]) -> Layout:
    found = {subset.name: files_by_class(source, subset) for subset in subsets}
    if found.get("train", {}).keys() & found.get("test", {}).keys():
        official = [subset for subset in subsets if subset.name in SPLITS]
        missing = [path / name for path in official for name in source.classes if not found[path.name].get(name)]
    else:  # the subsets of few-shot learning have different classes, so every class is split
        every = {name: [path for files in found.values() for path in files.get(name, [])] for name in source.classes}
        missing = [subsets[0] / name for name, paths in every.items() if not paths]
        found = {split: {name: _split_class(paths)[split] for name, paths in every.items()} for split in SPLITS}
    listed = {
        split: [(path, name) for name in source.classes for path in found[split].get(name, [])] for split in SPLITS
    }
    files = tuple(path for labeled in listed.values() for path, _ in labeled)
    return Layout("class folders", files, tuple(missing), partial(_read_resized, source, listed))


def _read_resized(source: Source, listed: Mapping[str, LabeledFiles], notes: Notes) -> Iterator[Block]:
    height, width = source.shape[:2]
    resized = 0

    def convert(image: Image.Image) -> Images:
        nonlocal resized
        pixels = image.convert("RGB")
        if pixels.size != (width, height):
            resized += 1
            # The resampling of the script that first made 84x84 images of ImageNet.
            pixels = pixels.resize((width, height), Image.Resampling.LANCZOS)
        return np.asarray(pixels)

    yield from read_images(source.name, listed, source.classes, convert, notes)
    if resized:
        notes.append(f"{resized} images resized to {width}x{height}")
