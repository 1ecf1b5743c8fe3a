"""miniImageNet as csv files with an image folder, or as cached pickles."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image

from cuber.datasets.readers.image_files import ImageReader
from cuber.datasets.readers.layout import Block, Images, Layout, Notes, block, find_layouts, reading
from cuber.datasets.source import DamagedError, Source
from cuber.datasets.unpickle import load_plain, text

SUBSETS = ("train", "val", "test")
PICKLES = [f"mini-imagenet-cache-{name}.pkl" for name in SUBSETS]
Item = TypeVar("Item")


def layouts(source: Source, root: Path) -> list[Layout]:
    """Return all layouts in all folders that are searched."""
    found = find_layouts(source, root, "cached pickles", PICKLES, _read_pickles)
    return found + [layout for folder in source.folders for layout in _csv_files(source, root / folder)]


def _split_class(items: Sequence[Item]) -> dict[str, list[Item]]:
    """Split a class, which has no official split: 5 of 6 images (500 of 600) are for training."""
    count = len(items) * 5 // 6
    return {"train": list(items[:count]), "test": list(items[count:])}


def _csv_files(source: Source, place: Path) -> list[Layout]:
    """Find the split of Ravi and Larochelle: ``train.csv``, ``val.csv``, ``test.csv`` and a folder ``images``."""
    tables = [place / f"{name}.csv" for name in SUBSETS]
    present = [table for table in tables if table.exists()]
    if not present:
        return []
    listed: dict[str, list[Path]] = defaultdict(list)
    for table in present:
        with reading(source, table):
            for filename, name in _rows(source, table):
                listed[name].append(place / "images" / filename)
    images = [path for paths in listed.values() for path in paths]
    folder = place / "images"
    existing = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    missing = [table for table in tables if table not in present]
    missing += [path for path in images if path.name not in existing]
    files = [*present, *(path for path in images if path.name in existing)]
    return [Layout("csv files and images", tuple(files), tuple(missing), partial(_read_images, source, listed))]


def _rows(source: Source, table: Path) -> Iterator[tuple[str, str]]:
    with table.open(newline="", encoding="utf-8") as file:
        try:
            for row in csv.DictReader(file):
                filename, name = row.get("filename"), row.get("label")
                if not filename or name not in source.classes or Path(filename).name != filename:
                    raise DamagedError(
                        f"has {row} where a filename and one of its {len(source.classes)} classes are expected"
                    )
                yield filename, name
        except (csv.Error, UnicodeDecodeError) as error:
            raise DamagedError(f"is not a csv file ({error})") from error


def _read_images(source: Source, listed: dict[str, list[Path]], notes: Notes) -> Iterator[Block]:
    resized = 0

    def convert(image: Image.Image) -> Images:
        nonlocal resized
        size = source.shape[1], source.shape[0]
        resized += image.size != size
        # The resampling of the script that first made 84x84 images of ImageNet.
        return np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS))

    reader = ImageReader(source.name, convert)
    for label, name in enumerate(source.classes):
        for split, paths in _split_class(listed[name]).items():
            images = [image for image in map(reader.read, paths) if image is not None]
            if not images:
                raise source.error(paths[0].parent if paths else Path(name), f"has no {split} image of {name}")
            yield block(source, split, np.stack(images), np.full(len(images), label))
    reader.report(notes)
    if resized:
        notes.append(f"{resized} images resized to {source.shape[1]}x{source.shape[0]}")


def _read_pickles(source: Source, paths: Sequence[Path], notes: Notes) -> Iterator[Block]:
    for path in paths:
        with reading(source, path):
            with path.open("rb") as file:
                content = load_plain(file)
            named = {text(key): value for key, value in content.items()} if isinstance(content, dict) else {}
            images, indices = named.get("image_data"), named.get("class_dict")
            if not isinstance(images, np.ndarray) or not isinstance(indices, dict):
                raise DamagedError(f"is a pickle, but without image_data and class_dict (it has {sorted(named)})")
        for name, which in indices.items():
            with reading(source, path):
                blocks = list(_class_blocks(source, images, text(name), np.asarray(which)))
            yield from blocks


def _class_blocks(source: Source, images: np.ndarray, name: str, which: np.ndarray) -> Iterator[Block]:
    if name not in source.classes:
        raise DamagedError(f"names the class {name}, which is not one of its {len(source.classes)} classes")
    if which.ndim != 1 or which.dtype.kind not in "iu" or not set(which.tolist()) <= set(range(len(images))):
        raise DamagedError(f"has indices for {name} that do not belong to its {len(images)} images")
    for split, some in _split_class(which.tolist()).items():
        yield block(source, split, images[some], np.full(len(some), source.classes.index(name)))
