"""Image datasets: download, verification and reading."""

from cuber.datasets.custom import read_folder, read_items
from cuber.datasets.fetch import get
from cuber.datasets.loading import OFFICIAL_SIZE, ImageDataset, check, directory, is_intact, load, status, statuses
from cuber.datasets.registry import SOURCES, find

__all__ = [
    "OFFICIAL_SIZE",
    "SOURCES",
    "ImageDataset",
    "check",
    "directory",
    "find",
    "get",
    "is_intact",
    "load",
    "read_folder",
    "read_items",
    "status",
    "statuses",
]
