"""Raw images: where they come from, whether they are right, and reading them."""

from cuber.datasets.catalogue import (
    OFFICIAL_SIZE,
    Dataset,
    Status,
    Verdict,
    check,
    directory,
    is_whole,
    load,
    status,
    statuses,
)
from cuber.datasets.fetch import get
from cuber.datasets.own import read_folder, read_items, read_lists
from cuber.datasets.source import Source
from cuber.datasets.sources import SOURCES, find

__all__ = [
    "OFFICIAL_SIZE",
    "SOURCES",
    "Dataset",
    "Source",
    "Status",
    "Verdict",
    "check",
    "directory",
    "find",
    "get",
    "is_whole",
    "load",
    "read_folder",
    "read_items",
    "read_lists",
    "status",
    "statuses",
]
