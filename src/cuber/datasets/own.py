"""Images of your own: folders of class folders, lists of files, and whatever yields an image and a label."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from cuber.datasets import cache
from cuber.datasets.catalogue import Dataset, directory
from cuber.datasets.pictures import decode, picture
from cuber.datasets.readers.images import image_files, report_damaged
from cuber.datasets.readers.layout import Block, Images, Labels, Layout, Notes
from cuber.datasets.source import DamagedError
from cuber.errors import CuberError

Location = str | os.PathLike[str]
Listed = list[tuple[Path, str]]
"""Files, and the class of each."""

TEST_FOLDERS = ("test", "val", "valid", "validation")
LOOKED_AT = 2000
"""Images that mean and standard deviation are computed from, where there are more."""
CHUNK = 256


def read_folder(folder: Location, *, side: int, grey: bool = False, test_share: float = 0.2) -> Dataset:
    """A folder of class folders, or of ``train`` and ``test`` with class folders in each; decoded once, then cached.

    Images become ``side`` x ``side``: the shorter edge is scaled, the middle kept. Where there is no test folder,
    ``test_share`` of each class is set aside, always the same.

    >>> read_folder("flowers", side=64)  # doctest: +SKIP
    <flowers: 2,936 train, 734 test, 5 classes, (64, 64, 3)>
    """
    root = Path(folder).expanduser()
    tests = [root / name for name in TEST_FOLDERS if (root / name).is_dir()]
    if (root / "train").is_dir() and tests:
        train, test = _list_folder(root / "train"), _list_folder(tests[0])
    else:
        train, test = _set_aside(_list_folder(root), test_share, str(root))
    return _of_files(root.name, {"train": train, "test": test}, side, grey, f"{root.resolve()} {test_share}")


def read_lists(
    train: Location, test: Location, *, side: int, grey: bool = False, folder: Location | None = None
) -> Dataset:
    """Two csv files whose columns ``filename`` and ``label`` name images, relative to ``folder`` or to the lists."""
    paths = {"train": Path(train).expanduser(), "test": Path(test).expanduser()}
    listed = {part: _read_list(path, Path(folder or path.parent).expanduser()) for part, path in paths.items()}
    where = " ".join(str(path.resolve()) for path in paths.values())
    return _of_files(paths["train"].stem, listed, side, grey, where, tuple(paths.values()))


def read_items(
    train: Any,
    test: Any = None,
    *,
    side: int,
    grey: bool = False,
    image: str = "image",
    label: str = "label",
    name: str = "own",
    test_share: float = 0.2,
) -> Dataset:
    """Anything with a length whose items are ``(image, label)`` or dictionaries of them, held in memory as bytes.

    An image is a PIL image, an array (H, W, C) or a tensor (C, H, W), of bytes or of numbers from 0 to 1. That fits
    torchvision's ImageFolder and Hugging Face's datasets, whose columns ``image`` and ``label`` name.

    >>> rows = [{"image": np.full((9, 9), 200, np.uint8), "label": k % 2} for k in range(10)]
    >>> read_items(rows, side=8, grey=True)
    <own: 8 train, 2 test, 2 classes, (8, 8)>
    """
    images, labels = _decode_items(train, side, grey, image, label, f"{name}, training part")
    if test is None:
        held = _choose([str(value) for value in labels], test_share, name)
        test_images, test_labels = images[held], [value for value, one in zip(labels, held, strict=True) if one]
        images, labels = images[~held], [value for value, one in zip(labels, held, strict=True) if not one]
    else:
        test_images, test_labels = _decode_items(test, side, grey, image, label, f"{name}, test part")
    known = _class_names(train, label)
    classes = sorted({*labels, *test_labels}, key=_natural)
    if known is not None and all(isinstance(value, int) and 0 <= value < len(known) for value in classes):
        numbers = {value: value for value in range(len(known))}
        names = tuple(known)
    else:
        numbers = {value: position for position, value in enumerate(classes)}
        names = tuple(map(str, classes))
    numbered, test_numbered = (np.array([numbers[value] for value in part]) for part in (labels, test_labels))
    return _dataset(name, images, numbered, test_images, test_numbered, names)


def _list_folder(folder: Path) -> Listed:
    if not folder.is_dir():
        raise CuberError(f"there is no folder {folder}: name one that holds a folder of images for each class")
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")
    listed = [(path, inner.name) for inner in folders for path in image_files(inner)]
    empty = [inner for inner in folders if not image_files(inner)]
    if not listed or empty:
        which = empty[0] if empty else folder
        raise CuberError(f"{which} holds no images (.png, .jpg, ...): a folder of images for each class is expected")
    return listed


def _read_list(path: Path, folder: Path) -> Listed:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, ValueError, csv.Error) as error:
        raise CuberError(f"{path} cannot be read as a csv file: {getattr(error, 'strerror', None) or error}") from error
    if not rows or not {"filename", "label"} <= rows[0].keys():
        raise CuberError(f"{path} needs a first line 'filename,label' and a line for each image")
    listed = [(folder / str(row["filename"]), str(row["label"])) for row in rows]
    missing = [file for file, _ in listed if not file.is_file()]
    if missing:
        raise CuberError(f"{path} names {missing[0]}, which is not there ({len(missing)} of {len(listed)} are not)")
    return listed


def _set_aside(listed: Listed, share: float, where: str) -> tuple[Listed, Listed]:
    held = _choose([label for _, label in listed], share, where)
    train, test = ([pair for pair, one in zip(listed, held, strict=True) if one == kind] for kind in (False, True))
    return train, test


def _choose(labels: Sequence[str], share: float, where: str) -> np.ndarray:
    """Which samples to test with: a share of each class, the same at every call."""
    if not 0 < share < 1:
        raise CuberError(f"{where}: the share to test with must be between 0 and 1, not {share}")
    held, names = np.zeros(len(labels), bool), np.array(labels)
    random = np.random.default_rng(0)
    for name in sorted(set(labels)):
        rows = random.permutation(np.flatnonzero(names == name))
        if len(rows) < 2:
            raise CuberError(f"{where}: class '{name}' has one image only, none is left to test with")
        held[rows[: min(max(1, round(share * len(rows))), len(rows) - 1)]] = True
    return held


def _of_files(
    name: str, listed: Mapping[str, Listed], side: int, grey: bool, where: str, lists: tuple[Path, ...] = ()
) -> Dataset:
    _check_side(side, name)
    labels = {part: {label for _, label in files} for part, files in listed.items()}
    strange = sorted(labels["test"] - labels["train"])
    if strange:
        raise CuberError(f"{name}: class '{strange[0]}' has images to test with but none to train with")
    classes = tuple(sorted(labels["train"], key=_natural))
    files = tuple(path for part in listed.values() for path, _ in part)
    read = partial(_read, name, listed, classes, side, grey)
    layout = Layout(f"own {where} {side} {grey}", (*lists, *files), (), read)
    made = cache.decoded(f"own-{name}", layout, directory())
    parts = (made.train_images, made.train_labels, made.test_images, made.test_labels)
    return _dataset(name, *parts, classes, made.notes)


def _read(
    name: str, listed: Mapping[str, Listed], classes: Sequence[str], side: int, grey: bool, notes: Notes
) -> Iterator[Block]:
    damaged: list[str] = []
    numbers = {label: number for number, label in enumerate(classes)}
    for part, files in listed.items():
        left = 0
        for start in range(0, len(files), CHUNK):
            images, labels = [], []
            for path, label in files[start : start + CHUNK]:
                try:
                    images.append(decode(path, side, grey))
                    labels.append(numbers[label])
                except DamagedError as error:
                    damaged.append(f"{path.parent.name}/{path.name} ({error})")
            if images:
                left += len(images)
                yield Block(part, np.stack(images), np.array(labels))
        if not left:
            raise CuberError(f"{name}: none of its {part} images can be read, first {files[0][0]}")
    report_damaged(name, damaged, notes)


def _check_side(side: Any, name: str) -> None:
    if not isinstance(side, Integral) or isinstance(side, bool) or side < 1:
        raise CuberError(f"{name}: side, in pixels, must be a whole number of at least 1, not {side!r}")


def _decode_items(items: Any, side: int, grey: bool, image: str, label: str, where: str) -> tuple[Images, list[Any]]:
    _check_side(side, where)
    if not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
        raise CuberError(f"{where}: give something with a length that can be indexed, not a {type(items).__name__}")
    images = np.empty((len(items), side, side) if grey else (len(items), side, side, 3), np.uint8)
    labels = []
    for position in range(len(items)):
        item = items[position]
        if isinstance(item, Mapping):
            missing = [key for key in (image, label) if key not in item]
            if missing:
                raise CuberError(f"{where}: items have no '{missing[0]}' (they have {', '.join(map(str, item))})")
            item = (item[image], item[label])
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise CuberError(f"{where}: item {position} is a {type(item).__name__} where (image, label) is expected")
        try:
            images[position] = picture(item[0], side, grey)
        except DamagedError as error:
            raise CuberError(f"{where}: the image of item {position} {error}") from error
        labels.append(item[1] if isinstance(item[1], str) else int(item[1]))
    if not labels:
        raise CuberError(f"{where}: there are no images in it")
    return images, labels


def _class_names(items: Any, label: str) -> Sequence[str] | None:
    """As an ImageFolder or a Hugging Face dataset knows them."""
    features = getattr(items, "features", None)
    column = features.get(label) if isinstance(features, Mapping) else None
    return getattr(column, "names", None) or getattr(items, "classes", None)


def _dataset(
    name: str,
    images: Images,
    labels: Labels,
    test_images: Images,
    test_labels: Labels,
    classes: tuple[str, ...],
    notes: tuple[str, ...] = (),
) -> Dataset:
    some = images[:: len(images) // LOOKED_AT + 1] / np.float32(255)
    mean, std = some.mean((0, 1, 2), dtype=float), some.std((0, 1, 2), dtype=float)
    spread = np.where(std > 0, std, 1.0)  # of pictures that are all the same
    return Dataset(
        name,
        images,
        labels,
        test_images,
        test_labels,
        classes,
        tuple(np.atleast_1d(mean).tolist()),
        tuple(np.atleast_1d(spread).tolist()),
        notes,
    )


def _natural(label: Any) -> tuple[int, int, str]:
    """Numbers by their size, before words by the alphabet: class 10 comes after class 9."""
    text = str(label)
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)
