"""Samples of old tasks, kept for replay: chosen fairly, stored in as few bytes as they can be had back from."""

from cuber.replay.memory import Drawn, EpisodicMemory, mixture
from cuber.replay.quantized import Column
from cuber.replay.reservoir import Reservoir, Sample, check_alike

__all__ = ["Column", "Drawn", "EpisodicMemory", "Reservoir", "Sample", "check_alike", "mixture"]
