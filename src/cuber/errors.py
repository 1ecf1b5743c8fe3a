"""One kind of error for everything a user can put right, and the words it is made of."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CuberError(ValueError):
    """Something the user can put right: one sentence that says what, where and what to do."""


class CuberWarning(UserWarning):
    """Something that works, but perhaps not as the user thinks."""


def unknown(kind: str, name: str, known: Iterable[str]) -> CuberError:
    """The error for a name nobody knows, with the nearest one that somebody does.

    >>> str(unknown("method", "cubr", ["cuber", "gpm"]))
    "there is no method 'cubr'; did you mean 'cuber'? (known: cuber, gpm)"
    """
    names = list(known)
    nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{nearest[0]}'?" if nearest else ""
    return CuberError(f"there is no {kind} '{name}'{hint} (known: {', '.join(names)})")
