"""Loggers: files for every run; TensorBoard, Weights & Biases and MLflow if they are installed.

To write your own, subclass :class:`Logger` and override the methods that you need.
"""

from cuber.loggers.files import CsvFile, JsonLines, Logger
from cuber.loggers.services import LOGGERS, SERVICE_FILES, MLflow, TensorBoard, WeightsAndBiases, make_logger

__all__ = [
    "LOGGERS",
    "SERVICE_FILES",
    "CsvFile",
    "JsonLines",
    "Logger",
    "MLflow",
    "TensorBoard",
    "WeightsAndBiases",
    "make_logger",
]
