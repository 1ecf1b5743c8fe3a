"""Metrics of continual learning, computed from the accuracy matrix.

``matrix[i][j]`` is the test accuracy in percent on task j after learning task i, None for j > i. Tasks that are learned
at once share one row. Means over old tasks are None where there is no old task. The values may be those of another
measure than accuracy: where lower is better, ``Measure.oriented`` comes first, so that transfer above 0 is improvement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Matrix = Sequence[Sequence[float | None]]


@dataclass(frozen=True)
class Measure:
    """What the values of a matrix are.

    >>> Measure().title, Measure("RMSE", higher_is_better=False, unit="").title
    ('accuracy in %', 'RMSE (lower is better)')
    """

    name: str = "accuracy"
    higher_is_better: bool = True
    unit: str = "%"
    """Only accuracy is in percent."""

    @property
    def title(self) -> str:
        """Name, and unit or direction."""
        return f"{self.name} in {self.unit}" if self.unit else f"{self.name} ({self.direction} is better)"

    @property
    def direction(self) -> str:
        return "higher" if self.higher_is_better else "lower"

    @property
    def short(self) -> str:
        """ACC, or the name of another measure than accuracy."""
        return "ACC" if self.unit else self.name

    def gain(self, before: float, after: float) -> float:
        """Return by how much a value has improved."""
        return after - before if self.higher_is_better else before - after

    @property
    def form(self) -> str:
        """Format of its values in tables: two decimals for percentages, four digits for others."""
        return ".2f" if self.unit else ".4g"

    def oriented(self, matrix: Matrix) -> Matrix:
        """Return a matrix in which higher is better: negated where lower is.

        >>> Measure("RMSE", higher_is_better=False).oriented([[2.0, None], [3.0, 4.0]])
        [[-2.0, None], [-3.0, -4.0]]
        """
        if self.higher_is_better:
            return matrix
        return [[None if value is None else -value for value in row] for row in matrix]


def average_accuracy(matrix: Matrix) -> float:
    """Return ACC: the mean accuracy over all tasks after the last task.

    Args:
        matrix: ``matrix[i][j]`` is the accuracy on task j after learning task i, None for j > i.

    >>> average_accuracy([[90.0, None], [80.0, 100.0]])
    90.0
    """
    accuracies = _known(matrix, -1)
    return sum(accuracies) / len(accuracies)


def backward_transfer(matrix: Matrix) -> float | None:
    """Return BWT: the mean change of old tasks since they were learned; negative values are forgetting.

    Args:
        matrix: ``matrix[i][j]`` is the accuracy on task j after learning task i, None for j > i.

    Returns:
        The mean, in percentage points; None where there is no old task.

    >>> backward_transfer([[90.0, None], [80.0, 100.0]])
    -10.0
    """
    last, own = _known(matrix, -1), diagonal(matrix)
    return _mean([last[j] - own[j] for j in range(old_tasks(matrix))])


def forgetting(matrix: Matrix) -> float | None:
    """Return the mean loss of old tasks since their best accuracy; never negative.

    Args:
        matrix: ``matrix[i][j]`` is the accuracy on task j after learning task i, None for j > i.

    Returns:
        The mean, in percentage points; None where there is no old task.

    >>> forgetting([[90.0, None, None], [95.0, 80.0, None], [94.0, 85.0, 70.0]])
    0.5
    """
    rows = [_known(matrix, i) for i in range(len(matrix))]
    return _mean([max(row[j] for row in rows if j < len(row)) - rows[-1][j] for j in range(old_tasks(matrix))])


def backward_transfer_of_selected(matrix: Matrix, task: int, old: int) -> float:
    """Return BWT-S: the change of the accuracy on one old task while another was learned.

    Args:
        matrix: ``matrix[i][j]`` is the accuracy on task j after learning task i, None for j > i.
        task: The task that was learned.
        old: The old task, usually that of ``most_selected``.

    >>> backward_transfer_of_selected([[90.0, None], [91.0, 100.0]], task=1, old=0)
    1.0
    """
    return _known(matrix, task)[old] - _known(matrix, task - 1)[old]


def change_of_old_tasks(matrix: Matrix, task: int) -> float | None:
    """Mean change of the accuracy on all old tasks while ``task`` was learned.

    >>> change_of_old_tasks([[90.0, None], [91.0, 100.0]], task=1)
    1.0
    """
    return _mean([backward_transfer_of_selected(matrix, task, old) for old in range(task)])


def most_selected(regimes: dict[str, dict[int, dict[str, float | None]]]) -> int | None:
    """The old task that was in regime 3 in the most layers, including those where it was demoted later.

    >>> most_selected({"a": {0: {"regime": 3, "demoted_at": None}}, "b": {1: {"regime": 1, "demoted_at": None}}})
    0
    """
    votes = [
        old
        for by_task in regimes.values()
        for old, regime in by_task.items()
        if regime["regime"] == 3 or regime["demoted_at"] is not None
    ]
    return max(sorted(votes), key=votes.count, default=None)


def diagonal(matrix: Matrix) -> list[float]:
    """Accuracy of each task right after it was learned.

    >>> diagonal([[90.0, None], [80.0, 100.0]])
    [90.0, 100.0]
    """
    own: list[float] = []
    for row in range(len(matrix)):
        own += _known(matrix, row)[len(own) :]
    return own


def old_tasks(matrix: Matrix) -> int:
    """Number of tasks learned before the last row."""
    return len(_known(matrix, -2)) if len(matrix) > 1 else 0


def _known(matrix: Matrix, row: int) -> list[float]:
    """The accuracies of a row without None."""
    return [value for value in matrix[row] if value is not None]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
