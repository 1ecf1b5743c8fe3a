"""Readers of image files, which skip and report damaged ones: notMNIST, miniImageNet and folders of your own."""

from __future__ import annotations

import hashlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from cuber.datasets.source import SPLITS, Block, DamagedError, Images, Layout, Notes, Source, cannot_read
from cuber.datasets.unpickle import load_plain, text, whole_numbers
from cuber.errors import CuberError, CuberWarning, needs_extra

if TYPE_CHECKING:
    from PIL import Image

MAX_NAMED = 10
"""Number of damaged files that a note names."""
CHUNK = 256
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".tif", ".tiff", ".webp"})
TEST_FRACTION = 10
"""One image of notMNIST in ten is for testing: it has no split of its own."""
SUBSETS = ("train", "val", "test")
LabeledFiles = Sequence[tuple[Path, str]]
"""Image files and the names of their classes."""
Convert: TypeAlias = "Callable[[Image.Image], Images]"
Item = TypeVar("Item")


def files_by_class(folder: Path) -> dict[str, list[Path]]:
    """Return the images of each folder in a folder, sorted by name and without hidden ones."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] not in "._")
    return {
        inner.name: sorted(path for path in inner.iterdir() if path.suffix.lower() in SUFFIXES and path.name[0] != ".")
        for inner in folders
    }


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
    with needs_extra("data", "reading images"):
        from PIL import Image
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


def _known_files(source: Source, folder: Path) -> dict[str, list[Path]]:
    """Return the images of each class; raise CuberError for a folder that is not of a class."""
    found = files_by_class(folder)
    strange = [name for name in found if name not in source.classes]
    if strange:
        raise CuberError(
            f"{source.name}: {folder / strange[0]} is not one of its {len(source.classes)} class folders "
            f"({', '.join(source.classes[:3])}, ...); move it elsewhere, or correct its name"
        )
    return found


def notmnist_layouts(source: Source, folder: Path) -> Iterator[Layout]:
    """Yield the layout of a folder of PNG files per letter, with duplicates and two empty files."""
    if any((folder / letter).is_dir() for letter in source.classes):
        found = _known_files(source, folder)
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
    found = {subset.name: _known_files(source, subset) for subset in subsets}
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
    with needs_extra("data", "reading images"):
        from PIL.Image import Resampling
    height, width = source.shape[:2]
    resized = 0

    def convert(image: Image.Image) -> Images:
        nonlocal resized
        pixels = image.convert("RGB")
        if pixels.size != (width, height):
            resized += 1
            # The resampling of the script that first made 84x84 images of ImageNet.
            pixels = pixels.resize((width, height), Resampling.LANCZOS)
        return np.asarray(pixels)

    yield from read_images(source.name, listed, source.classes, convert, notes)
    if resized:
        notes.append(f"{resized} images resized to {width}x{height}")
