"""Where tasks come from: ``Task`` and ``Stream``, and one file per family of benchmarks."""

from cuber.streams.batching import FixedLoader, ShuffledLoader
from cuber.streams.digits import overlap_digits, permuted_digits, split_digits
from cuber.streams.parts import DatasetPart, Part, TensorPart
from cuber.streams.task import Stream, Task

__all__ = [
    "DatasetPart",
    "FixedLoader",
    "Part",
    "ShuffledLoader",
    "Stream",
    "Task",
    "TensorPart",
    "overlap_digits",
    "permuted_digits",
    "split_digits",
]
