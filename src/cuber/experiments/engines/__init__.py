"""Where the runs of a grid take place: other machines, by engines that exist. Local processes are in processes.py."""

from cuber.experiments.engines.remote import RemoteEngine, open_engine

__all__ = ["RemoteEngine", "open_engine"]
