"""miniImageNet as class folders, as csv files with an image folder, or as cached pickles."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from cuber.datasets.readers.image_files import Decoder, class_folders, image_files
from cuber.datasets.readers.layout import SPLITS, Block, Layout, Notes, block, reading
from cuber.datasets.source import DamagedError, Source
from cuber.datasets.unpickle import load_plain, text
from cuber.errors import CuberError

SUBSETS = ("train", "val", "test")
Files = dict[str, dict[str, list[Path]]]
"""Image files by class and split."""
Item = TypeVar("Item")


def layouts(source: Source, root: Path) -> list[Layout]:
    """Return all layouts in all folders that are searched."""
    places = [place for place in (root / name for name in source.folders) if place.is_dir()]
    return [layout for place in places for find in (_pickles, _csv_files, _folders) for layout in find(source, place)]


def split_class(items: Sequence[Item]) -> dict[str, list[Item]]:
    """Split a class without an official split: 5 of 6 images (500 of 600) are for training."""
    count = len(items) * 5 // 6
    return {"train": list(items[:count]), "test": list(items[count:])}


def _folders(source: Source, place: Path) -> list[Layout]:
    """Find ``train/<class>/``, ``val/<class>/`` and ``test/<class>/``, or ``<class>/`` alone."""
    subsets = [place / name for name in SUBSETS if (place / name).is_dir()] or [place]
    if subsets == [place] and not any((place / name).is_dir() for name in source.classes):
        return []
    listed: dict[str, dict[str, list[Path]]] = defaultdict(dict)
    for subset in subsets:
        for name, folder in class_folders(source, subset).items():
            listed[name][subset.name] = image_files(folder)
    # The subsets of few-shot learning have different classes; then every class is split.
    shared = any({"train", "test"} <= set(by_subset) for by_subset in listed.values())
    files: Files = {}
    missing = [subsets[0] / name for name in source.classes if name not in listed]
    for name, by_subset in listed.items():
        if shared:
            files[name] = {split: by_subset.get(split, []) for split in SPLITS}
            missing += [place / split / name for split, paths in files[name].items() if not paths]
        else:
            files[name] = split_class([path for paths in by_subset.values() for path in paths])
    return [_of_files(source, "class folders", files, missing)]


def _csv_files(source: Source, place: Path) -> list[Layout]:
    """Find the split of Ravi and Larochelle: ``train.csv``, ``val.csv``, ``test.csv`` and a folder ``images``."""
    tables = [place / f"{name}.csv" for name in SUBSETS]
    present = [table for table in tables if table.exists()]
    if not present:
        return []
    folder = place / "images"
    existing = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    listed: dict[str, list[Path]] = defaultdict(list)
    for table in present:
        with reading(source, table):
            for filename, name in _rows(source, table):
                listed[name].append(folder / filename)
    missing = [table for table in tables if not table.exists()]
    missing += [path for paths in listed.values() for path in paths if path.name not in existing]
    files = {name: split_class(paths) for name, paths in listed.items()}
    return [_of_files(source, "csv files and images", files, missing, present)]


def _rows(source: Source, table: Path) -> Iterator[tuple[str, str]]:
    with table.open(newline="", encoding="utf-8") as file:
        try:
            for row in csv.DictReader(file):
                filename, name = row.get("filename"), row.get("label")
                if not filename or not name or Path(filename).name != filename:
                    raise DamagedError(f"has no filename and label in {row}")
                if name not in source.classes:
                    raise CuberError(
                        f"{source.name}: {table} names the class {name}, which is not one of its "
                        f"{len(source.classes)} classes; {source.advice(table)}"
                    )
                yield filename, name
        except (csv.Error, UnicodeDecodeError) as error:
            raise DamagedError(f"is not a csv file ({error})") from error


def _of_files(source: Source, title: str, files: Files, missing: Sequence[Path], tables: Sequence[Path] = ()) -> Layout:
    absent = set(missing)
    images = (path for splits in files.values() for paths in splits.values() for path in paths if path not in absent)
    return Layout(title, (*tables, *images), tuple(missing), partial(_read_files, source, files))


def _read_files(source: Source, files: Files, notes: Notes) -> Iterator[Block]:
    decoder = Decoder(source, resize=True)
    for label, name in enumerate(source.classes):
        for split, paths in files[name].items():
            with reading(source, paths[0].parent if paths else Path(name)):
                images = list(decoder.images(paths))
                if not images:
                    raise DamagedError(f"has no {split} image of {name} that can be read")
                some = block(source, split, np.stack(images), np.full(len(images), label))
            yield some
    decoder.report(notes)


def _pickles(source: Source, place: Path) -> list[Layout]:
    """Find ``mini-imagenet-cache-{train,val,test}.pkl``."""
    paths = [place / f"mini-imagenet-cache-{name}.pkl" for name in SUBSETS]
    validation = place / "mini-imagenet-cache-validation.pkl"
    if validation.exists():
        paths[1] = validation
    return Layout.find("cached pickles", paths, partial(_read_pickles, source, paths))


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
    for split, some in split_class(which.tolist()).items():
        yield block(source, split, images[some], np.full(len(some), source.classes.index(name)))
