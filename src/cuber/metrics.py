"""The figures of continual learning, from the accuracy matrix.

``matrix[i][j]`` is the test accuracy on task j after learning task i, in percent; None where j > i. Tasks learnt at
once have one row between them. A figure that is a mean over old tasks is None while there is no old task.
"""

from __future__ import annotations

from collections.abc import Sequence

Matrix = Sequence[Sequence[float | None]]


def average_accuracy(matrix: Matrix) -> float:
    """ACC: the mean accuracy over all tasks in the end.

    >>> average_accuracy([[90.0, None], [80.0, 100.0]])
    90.0
    """
    return _mean(_learnt(matrix, -1))


def backward_transfer(matrix: Matrix) -> float | None:
    """BWT: what old tasks have gained (or lost, below 0) since they were learnt, on average.

    >>> backward_transfer([[90.0, None], [80.0, 100.0]])
    -10.0
    """
    last, own = _learnt(matrix, -1), diagonal(matrix)
    changes = [last[j] - own[j] for j in range(old_tasks(matrix))]
    return _mean(changes) if changes else None


def forgetting(matrix: Matrix) -> float | None:
    """What old tasks have lost since they were at their best, on average; never below 0.

    >>> forgetting([[90.0, None, None], [95.0, 80.0, None], [94.0, 85.0, 70.0]])
    0.5
    """
    rows = [_learnt(matrix, i) for i in range(len(matrix))]
    losses = [max(row[j] for row in rows if j < len(row)) - rows[-1][j] for j in range(old_tasks(matrix))]
    return _mean(losses) if losses else None


def forward_transfer(matrix: Matrix, alone: Sequence[float]) -> float:
    """FWT: how much better each task was learnt than by the same network on that task alone, on average.

    >>> forward_transfer([[90.0, None], [80.0, 100.0]], alone=[90.0, 97.0])
    1.5
    """
    own = diagonal(matrix)
    return _mean([own[i] - alone[i] for i in range(len(own))])


def backward_transfer_of_selected(matrix: Matrix, task: int, old: int) -> float:
    """BWT-S: what learning ``task`` did to one old task, by rights the one of ``most_selected``.

    >>> backward_transfer_of_selected([[90.0, None], [91.0, 100.0]], task=1, old=0)
    1.0
    """
    return _learnt(matrix, task)[old] - _learnt(matrix, task - 1)[old]


def most_selected(regimes: dict[str, dict[int, dict[str, float | None]]]) -> int | None:
    """The old task that was in regime 3 in the most layers when a task was learnt, also where it fell later.

    >>> most_selected({"first": {0: {"regime": 3, "fell": None}}, "second": {0: {"regime": 1, "fell": None}}})
    0
    """
    votes: dict[int, int] = {}
    for by_task in regimes.values():
        for old, regime in by_task.items():
            if regime["regime"] == 3 or regime["fell"] is not None:
                votes[old] = votes.get(old, 0) + 1
    return max(sorted(votes), key=lambda old: votes[old]) if votes else None


def diagonal(matrix: Matrix) -> list[float]:
    """The accuracy of each task right after it was learnt.

    >>> diagonal([[90.0, None], [80.0, 100.0]])
    [90.0, 100.0]
    """
    own: list[float] = []
    for row in range(len(matrix)):
        own += _learnt(matrix, row)[len(own) :]
    return own


def old_tasks(matrix: Matrix) -> int:
    """How many tasks were there already when the last was learnt."""
    return len(_learnt(matrix, -2)) if len(matrix) > 1 else 0


def _learnt(matrix: Matrix, row: int) -> list[float]:
    """A row as far as its tasks have been learnt."""
    return [value for value in matrix[row] if value is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
