"""Datasets of your own images: class folders, or any sequence of images and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np

from cuber.datasets.cache import load_cached
from cuber.datasets.image_readers import LabeledFiles, files_by_class, read_images
from cuber.datasets.loading import ImageDataset, directory
from cuber.datasets.source import DamagedError, Images, Layout, Location
from cuber.errors import CuberError, needs_extra

TEST_FOLDERS = ("test", "val", "valid", "validation")
MAX_SAMPLES = 2000
"""Number of images from which mean and standard deviation are computed."""


def read_folder(folder: Location, *, side: int, grey: bool = False, test_share: float = 0.2) -> ImageDataset:
    """Read a folder of class folders, or of ``train`` and ``test`` with class folders in each.

    Images are decoded once and cached.

    Args:
        folder: The folder.
        side: Width and height: the shorter edge is scaled to it, and the center is kept.
        grey: Whether to convert to grayscale.
        test_share: Fraction of each class to test with if there is no test folder; always the same images.

    Returns:
        The dataset, for :func:`cuber.streams.stream_by_classes` or :func:`cuber.streams.stream_by_domains`.

    Raises:
        CuberError: There are no images, or a class has images to test with but none to train with.

    >>> read_folder("flowers", side=64)  # doctest: +SKIP
    <flowers: 2,936 train, 734 test, 5 classes, (64, 64, 3)>
    """
    root = Path(folder).expanduser()
    _check_side(side, root.name)
    tests = [root / name for name in TEST_FOLDERS if (root / name).is_dir()]
    if (root / "train").is_dir() and tests:
        train, test = _list_folder(root / "train"), _list_folder(tests[0])
    else:
        listed = _list_folder(root)
        train, test = _partition(listed, _choose([label for _, label in listed], test_share, str(root)))
    classes = sorted({label for _, label in train}, key=_natural)
    strange = sorted({label for _, label in test} - set(classes))
    if strange:
        raise CuberError(f"{root.name}: class '{strange[0]}' has images to test with but none to train with")
    files = tuple(path for path, _ in (*train, *test))
    convert = partial(_crop, side=side, grey=grey)
    read = partial(read_images, root.name, {"train": train, "test": test}, classes, convert)
    layout = Layout(f"own {root.resolve()} {test_share} {side} {grey}", files, (), read)
    arrays, notes = load_cached(f"own-{root.name}", layout, directory())
    return _dataset(root.name, arrays, classes, notes)


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
) -> ImageDataset:
    """Read sequences of ``(image, label)`` pairs or dictionaries, such as torchvision's or Hugging Face's datasets.

    The images are held in memory as uint8.

    Args:
        train: The training items. An image is a PIL image, an array (H, W, C) or a tensor (C, H, W), of uint8 or of
            floats in [0, 1]; a label is a number or a string.
        test: The test items; if None, ``test_share`` of each class is held out.
        side: Width and height of the images; see :func:`read_folder`.
        grey: Whether to convert to grayscale.
        image: Key of the image in a dictionary.
        label: Key of the label in a dictionary.
        name: Name of the dataset.
        test_share: Fraction of each class to test with.

    Returns:
        The dataset, as :func:`read_folder` returns it.

    >>> rows = [{"image": np.full((9, 12), 25 * k, np.uint8), "label": k % 2} for k in range(10)]
    >>> read_items(rows, side=8, grey=True)
    <own: 8 train, 2 test, 2 classes, (8, 8)>
    """
    images, labels = _decode_items(train, side, grey, image, label, f"{name}, training split")
    if test is None:
        held_out = _choose(labels, test_share, name)
        images, test_images = images[~held_out], images[held_out]
        labels, test_labels = _partition(labels, held_out)
    else:
        test_images, test_labels = _decode_items(test, side, grey, image, label, f"{name}, test split")
    classes = sorted({*labels, *test_labels}, key=_natural)
    names = _class_names(train, label)
    if names and all(isinstance(value, int) and 0 <= value < len(names) for value in classes):
        classes = list(range(len(names)))
    else:
        names = [str(value) for value in classes]
    numbers = {value: position for position, value in enumerate(classes)}
    arrays = {
        "train_images": images,
        "train_labels": np.array([numbers[value] for value in labels]),
        "test_images": test_images,
        "test_labels": np.array([numbers[value] for value in test_labels]),
    }
    return _dataset(name, arrays, names)


def _list_folder(folder: Path) -> LabeledFiles:
    if not folder.is_dir():
        raise CuberError(f"there is no folder {folder}: name one that holds a folder of images for each class")
    files = files_by_class(folder)
    empty = [folder / name for name, images in files.items() if not images] if files else [folder]
    if empty:
        raise CuberError(f"{empty[0]} holds no images (.png, .jpg, ...): a folder of images for each class is expected")
    return [(path, name) for name, images in files.items() for path in images]


def _choose(labels: Sequence[Any], share: float, where: str) -> np.ndarray:
    """Return a mask of the test samples: a share of each class, the same at every call."""
    if not 0 < share < 1:
        raise CuberError(f"{where}: the share to test with must be between 0 and 1, not {share}")
    names = np.array([str(label) for label in labels])
    held_out = np.zeros(len(names), bool)
    random = np.random.default_rng(0)
    for name in np.unique(names):
        rows = random.permutation(np.flatnonzero(names == name))
        if len(rows) < 2:
            raise CuberError(f"{where}: class '{name}' has one image only, none is left to test with")
        held_out[rows[: min(max(1, round(share * len(rows))), len(rows) - 1)]] = True
    return held_out


def _partition(items: Sequence[Any], held_out: np.ndarray) -> tuple[list[Any], list[Any]]:
    """Split items into those that are not held out and those that are."""
    pairs = list(zip(items, held_out, strict=True))
    return [item for item, held in pairs if not held], [item for item, held in pairs if held]


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
            images[position] = _crop(item[0], side, grey)
        except DamagedError as error:
            raise CuberError(f"{where}: the image of item {position} {error}") from error
        labels.append(item[1] if isinstance(item[1], str) else int(item[1]))
    if not labels:
        raise CuberError(f"{where}: there are no images in it")
    return images, labels


def _crop(image: Any, side: int, grey: bool) -> Images:
    """Scale the shorter edge of a PIL image, an array or a tensor to ``side`` and keep the center."""
    with needs_extra("data", "reading images"):
        from PIL import Image, ImageOps
    if not isinstance(image, Image.Image):
        image = Image.fromarray(_pixels(image))
    upright = ImageOps.exif_transpose(image) or image
    fitted = ImageOps.fit(upright.convert("L" if grey else "RGB"), (side, side), Image.Resampling.BILINEAR)
    return np.asarray(fitted)


def _pixels(values: Any) -> Images:
    """Return an array or a tensor as 8-bit pixels, (height, width) or (height, width, channels)."""
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
    return array


def _class_names(items: Any, label: str) -> Sequence[str] | None:
    """Return the class names of an ImageFolder or a Hugging Face dataset."""
    features = getattr(items, "features", None)
    column = features.get(label) if isinstance(features, Mapping) else None
    return getattr(column, "names", None) or getattr(items, "classes", None)


def _dataset(
    name: str, arrays: Mapping[str, np.ndarray], classes: Sequence[str], notes: tuple[str, ...] = ()
) -> ImageDataset:
    images = arrays["train_images"]
    some = images[:: len(images) // MAX_SAMPLES + 1] / np.float32(255)
    mean, std = (np.atleast_1d(function(some, (0, 1, 2), dtype=float)) for function in (np.mean, np.std))
    std = np.where(std > 0, std, 1.0)  # 0 if all images are the same
    return ImageDataset(
        name, **arrays, classes=tuple(classes), mean=tuple(mean.tolist()), std=tuple(std.tolist()), notes=notes
    )


def _natural(label: Any) -> tuple[int, int, str]:
    """Sort key: numbers by value, before words in alphabetical order."""
    text = str(label)
    return (0, int(text), "") if text.isdecimal() else (1, 0, text)
