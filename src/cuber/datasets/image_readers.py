"""Readers of notMNIST, and of miniImageNet as class folders, as csv files with an image folder, or as pickles."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from cuber.datasets.image_files import (
    LabeledFiles,
    decode_files,
    image_files,
    read_csv,
    read_images,
    report_damaged,
    subfolders,
)
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
    """Yield the layouts that are in a folder, where classes without an official split are split."""
    if not folder.is_dir():
        return
    pickles = [folder / f"mini-imagenet-cache-{name}.pkl" for name in SUBSETS]
    validation = folder / "mini-imagenet-cache-validation.pkl"
    if validation.exists():
        pickles[1] = validation
    yield Layout.of_files("cached pickles", pickles, partial(_read_pickles, source, pickles))
    tables = [folder / f"{name}.csv" for name in SUBSETS]
    if any(table.exists() for table in tables):
        yield _csv_layout(source, tables, folder / "images")
    subsets = [folder / name for name in SUBSETS if (folder / name).is_dir()]
    if subsets or any((folder / name).is_dir() for name in source.classes):
        yield _folder_layout(source, folder, subsets or [folder])


def split_class(items: list[Item]) -> dict[str, list[Item]]:
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
            for name, rows in ((text(key), whole_numbers(values)) for key, values in indices.items()):
                _check_class(source, name)
                if not set(rows.tolist()) <= set(range(len(images))):
                    raise DamagedError(f"has indices for {name} that do not belong to its {len(images)} images")
                for split, some in split_class(rows.tolist()).items():
                    yield source.block(split, images[some], np.full(len(some), source.classes.index(name)))


def _csv_layout(source: Source, tables: Sequence[Path], folder: Path) -> Layout:
    """Return the layout of the csv files of Ravi and Larochelle and a folder of images."""
    present = [table for table in tables if table.exists()]
    by_class: dict[str, list[Path]] = defaultdict(list)
    for table in present:
        with source.reading(table):
            for filename, name in read_csv(table):
                if Path(filename).name != filename:
                    raise DamagedError(f"has no filename and label in {filename}, {name}")
                _check_class(source, name)
                by_class[name].append(folder / filename)
    existing = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    missing = [table for table in tables if table not in present]
    missing += [path for paths in by_class.values() for path in paths if path.name not in existing]
    return _image_layout(source, "csv files and images", _split_classes(by_class), missing, present)


def _folder_layout(source: Source, place: Path, subsets: Sequence[Path]) -> Layout:
    """Return the layout of class folders in ``subsets``: folders ``train``, ``val`` and ``test``, or one of all."""
    found = {subset.name: files_by_class(source, subset) for subset in subsets}
    if found.get("train", {}).keys() & found.get("test", {}).keys():
        missing = [place / split / name for name in source.classes for split in SPLITS if not found[split].get(name)]
        return _image_layout(source, "class folders", found, missing)
    # The subsets of few-shot learning have different classes, so every class is split.
    every = {name: [path for files in found.values() for path in files.get(name, [])] for name in source.classes}
    missing = [subsets[0] / name for name, paths in every.items() if not paths]
    return _image_layout(source, "class folders", _split_classes(every), missing)


def _split_classes(by_class: Mapping[str, list[Path]]) -> dict[str, dict[str, list[Path]]]:
    return {split: {name: split_class(paths)[split] for name, paths in by_class.items()} for split in SPLITS}


def _image_layout(
    source: Source,
    title: str,
    files: Mapping[str, Mapping[str, Sequence[Path]]],
    missing: Sequence[Path],
    tables: Sequence[Path] = (),
) -> Layout:
    """Return the layout of image files, given by split and class."""
    listed = {
        split: [(path, name) for name in source.classes for path in files[split].get(name, [])] for split in SPLITS
    }
    absent = set(missing)
    present = [path for labeled in listed.values() for path, _ in labeled if path not in absent]
    return Layout(title, (*tables, *present), tuple(missing), partial(_read_resized, source, listed))


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


def _check_class(source: Source, name: str) -> None:
    if name not in source.classes:
        raise DamagedError(f"names the class {name}, which is not one of its {len(source.classes)} classes")
