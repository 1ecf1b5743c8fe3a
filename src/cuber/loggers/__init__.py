"""Who is told how a run goes: files always, TensorBoard, Weights & Biases and MLflow where they are installed.

A logger of your own is a subclass of :class:`Logger` that overrides what it cares about.
"""

from cuber.loggers.files import CsvFile, JsonLines
from cuber.loggers.logger import Logger
from cuber.loggers.services import LEFTOVERS, LOGGERS, MLflow, TensorBoard, WeightsAndBiases, make_logger

__all__ = [
    "LEFTOVERS",
    "LOGGERS",
    "CsvFile",
    "JsonLines",
    "Logger",
    "MLflow",
    "TensorBoard",
    "WeightsAndBiases",
    "make_logger",
]
