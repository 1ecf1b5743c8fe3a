"""Replay memory: samples of earlier tasks, chosen by reservoir sampling and stored without loss in few bytes."""

from cuber.replay.memory import Drawn, EpisodicMemory, Reservoir, Sample, check_alike, mixture
from cuber.replay.quantized import QuantizedTensor

__all__ = ["Drawn", "EpisodicMemory", "QuantizedTensor", "Reservoir", "Sample", "check_alike", "mixture"]
