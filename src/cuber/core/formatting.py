"""Numbers as people read them, the same in every table."""

from __future__ import annotations


def numeral(value: float, form: str = ".2f") -> str:
    """A number in Python's notation for formats, zero without a sign: what was rounded away has no direction.

    >>> numeral(-0.001), numeral(0.0, "+.2f"), numeral(-0.01), numeral(0.5, "+.1f")
    ('0.00', '0.00', '-0.01', '+0.5')
    """
    text = format(value, form)
    return text if text.strip("+-0.") else text.lstrip("+-")


def counted(count: int, what: str) -> str:
    """So many of something.

    >>> counted(1, "run"), counted(0, "run"), counted(2, "test sample")
    ('1 run', '0 runs', '2 test samples')
    """
    return f"{count} {what}{'s' if count != 1 else ''}"
