"""TrainingConfig images that are test images too: the official CIFAR-100 has some."""

from __future__ import annotations

import numpy as np
import torch

from cuber.errors import CuberError
from cuber.streams.images import ImageSplit

CHUNK = 1024


def without_copies(train: ImageSplit, test: ImageSplit, where: str) -> tuple[ImageSplit, int]:
    """The training part without what is in the test part too, to the byte; and how many images that were."""
    prints, tested = _fingerprints(train), _fingerprints(test)
    suspects = np.flatnonzero(np.isin(prints, tested))
    rows = test.rows[torch.from_numpy(np.isin(tested, prints[suspects]))]
    known = {test.images[row].tobytes() for row in rows.tolist()}
    copies = [number for number in suspects.tolist() if train.images[train.rows[number]].tobytes() in known]
    if len(copies) == len(train):
        raise CuberError(f"{where}: every training image is also a test image; give it others to test with")
    kept = torch.ones(len(train), dtype=torch.bool)
    kept[copies] = False
    return (train.subset(kept.nonzero().flatten()) if copies else train), len(copies)


def _fingerprints(part: ImageSplit) -> np.ndarray:
    """A number for each image, the same for the same images; quick, since it is done at every start."""
    size = part.images[0].size
    word = np.uint64 if size % 8 == 0 else np.uint8
    weights = np.random.default_rng(0).integers(0, 2**63, size // np.dtype(word).itemsize, dtype=np.uint64) * 2 + 1
    rows, prints = part.rows.numpy(), np.empty(len(part), np.uint64)
    for start in range(0, len(part), CHUNK):
        some = part.images[rows[start : start + CHUNK]].reshape(-1, size).view(word)
        prints[start : start + CHUNK] = (some * weights).sum(1, dtype=np.uint64)
    return prints
