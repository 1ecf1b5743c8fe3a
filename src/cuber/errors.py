"""Exceptions and warnings of cuber."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class CuberError(ValueError):
    """An error that the user can fix; the message says what is wrong, where, and what to do.

    >>> import cuber
    >>> cuber.CUBER(torch.nn.Linear(4, 2), eps1="high")
    Traceback (most recent call last):
    cuber.errors.CuberError: CUBER: eps1 must be a number of at least 0, not 'high'
    """


class UnknownKeyword(CuberError, TypeError):  # noqa: N818
    """A keyword that a method does not have: a TypeError too, as for any function."""


class CuberWarning(UserWarning):
    """Something that works but may not be what the user intended.

    >>> import warnings
    >>> warnings.simplefilter("error", CuberWarning)  # let warnings end the program  # doctest: +SKIP
    """


def unknown(kind: str, name: str, known: Iterable[str], error: type[CuberError] = CuberError) -> CuberError:
    """Return the error for an unknown name, with the closest known one.

    >>> str(unknown("method", "cubr", ["cuber", "gpm"]))
    "there is no method 'cubr'; did you mean 'cuber'? (known: cuber, gpm)"
    """
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
    return error(f"there is no {kind} '{name}'{hint} (known: {', '.join(names)})")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where it has none.

    >>> first_line(KeyError()), first_line(ValueError("too large\\nat line 3"))
    ('KeyError', 'too large')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def needs_extra(extra: str, feature: str) -> Iterator[None]:
    """Import packages that ``cuber-learn`` does not install by itself; a missing one is an error of one sentence.

    Args:
        extra: The extra of ``cuber-learn`` that installs them.
        feature: What needs them, as the subject of the sentence.

    Raises:
        CuberError: One of them cannot be imported.

    >>> with needs_extra("data", "the reader"):
    ...     import not_installed
    Traceback (most recent call last):
    cuber.errors.CuberError: the reader needs pip install 'cuber-learn[data]' (No module named 'not_installed')
    """
    try:
        yield
    except ImportError as error:
        raise CuberError(f"{feature} needs pip install 'cuber-learn[{extra}]' ({first_line(error)})") from error
