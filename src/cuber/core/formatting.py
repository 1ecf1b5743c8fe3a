"""Number and noun formatting shared by all tables and messages."""

from __future__ import annotations


def format_number(value: float, form: str = ".2f") -> str:
    """Format a number with a format specification; zero, including a number rounded to zero, has no sign.

    >>> format_number(-0.001), format_number(0.0, "+.2f"), format_number(-0.01), format_number(0.5, "+.1f")
    ('0.00', '0.00', '-0.01', '+0.5')
    """
    text = format(value, form)
    return text if text.strip("+-0.") else text.lstrip("+-")


def pluralize(count: int, noun: str) -> str:
    """Return a count and its noun.

    >>> pluralize(1, "run"), pluralize(0, "run"), pluralize(2, "test sample")
    ('1 run', '0 runs', '2 test samples')
    """
    return f"{count} {noun}{'s' if count != 1 else ''}"
