"""Docstrings, also where Python has dropped them."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any


def docstring(documented: type | Callable[..., Any]) -> str:
    """Return the docstring of a class or function; with ``python -OO``, the one in its source file.

    >>> docstring(docstring)[:28]
    'Return the docstring of a cl'
    """
    if sys.flags.optimize < 2:
        return inspect.getdoc(documented) or ""
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(documented))).body[0]
    except (OSError, TypeError):  # there is no source file
        return ""
    return ast.get_docstring(definition) or ""  # type: ignore[arg-type]
