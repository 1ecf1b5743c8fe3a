"""A data directory with a few images of every dataset, in the official formats."""

from __future__ import annotations

from pathlib import Path

from cuber import datasets
from tests.datasets import files


def write_every_set(root: Path) -> Path:
    """Write four images of each class of CIFAR-100, five of miniImageNet, and a few of the other datasets."""
    files.write_idx(root / "MNIST/raw", train=60, test=30)
    files.write_idx(root / "FashionMNIST/raw", train=50, test=20)
    for name, per_file in (("cifar-10", 10), ("cifar-100", 400)):
        folder = files.CIFAR_FOLDERS[name, "python"]
        for file, (content, _, _) in files.cifar_files(name, "python", per_file).items():
            files.write(root / folder / file, content)
    files.write_svhn(root / "SVHN")
    files.write_notmnist(root / "notMNIST_small")
    files.write_mini_pickles(root / "miniImageNet", datasets.find("miniimagenet").classes)
    return root
