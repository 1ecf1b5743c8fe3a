"""Numbers, units and names as printed in tables and figures."""

from __future__ import annotations

from collections.abc import Sequence

from cuber.core.formatting import format_number
from cuber.report.model import MISSING, Estimate

NO_BREAK = "\N{NO-BREAK SPACE}"
VISIBLE = 0.05
"""Smaller changes of an accuracy in percent do not show with one decimal."""


def number(value: float | None, form: str = ".2f") -> str:
    """A number in a Python format, with a minus sign; a dash for None.

    >>> number(-1.234), number(0.5, "+.1f"), number(-0.001, "+.2f"), number(None)
    ('−1.23', '+0.5', '0.00', '–')
    """
    return MISSING if value is None else typeset(format_number(value, form))


def typeset(text: str) -> str:
    """A number from a plain-text table as printed on the page.

    >>> typeset("-1.5"), typeset("1.50±0.25").split()
    ('−1.5', ['1.50', '±', '0.25'])
    """
    return text.replace("-", "−").replace("±", f" ±{NO_BREAK}")


def estimate_text(estimate: Estimate, form: str = ".2f") -> str:
    """The mean, and the deviation if known.

    >>> estimate_text(Estimate(99.5, 0.25)), estimate_text(Estimate(0.5), "+.1f")
    ('99.50±0.25', '+0.5')
    """
    deviation = "" if estimate.deviation is None else f"±{estimate.deviation:{form.lstrip('+')}}"
    return estimate.printed or format_number(estimate.mean, form) + deviation


def seeds_text(seeds: Sequence[int]) -> str:
    """Seeds in ascending order, as a range if none is left out.

    >>> seeds_text([0, 1, 2, 3]), seeds_text([0, 1, 7])
    ('0–3', '0, 1, 7')
    """
    whole = len(seeds) == seeds[-1] - seeds[0] + 1 > 2
    return f"{seeds[0]}–{seeds[-1]}" if whole else ", ".join(map(str, seeds))


def time_unit(longest: float) -> tuple[float, str]:
    """Length in seconds and name of the unit for times up to ``longest``."""
    return (3600.0, "h") if longest >= 3 * 3600 else (60.0, "min") if longest >= 3 * 60 else (1.0, "s")


def time_text(seconds: Estimate) -> str:
    """A time in a fitting unit.

    >>> [time_text(Estimate(time)).split() for time in (7.51, 90.0, 5400.0, 14400.0)]
    [['7.5', 's'], ['90.0', 's'], ['90.0', 'min'], ['4.0', 'h']]
    """
    size, unit = time_unit(seconds.mean)
    deviation = None if seconds.deviation is None else seconds.deviation / size
    return typeset(estimate_text(Estimate(seconds.mean / size, deviation), ".1f")) + NO_BREAK + unit


def memory_unit(largest: float) -> tuple[float, str]:
    """Number of bytes and name of the unit for sizes up to ``largest``."""
    return (1e9, "GB") if largest >= 1e9 else (1e6, "MB") if largest >= 1e6 else (1e3, "kB")


def memory_text(size: float) -> str:
    """A number of bytes in a fitting unit.

    >>> memory_text(2048).split(), memory_text(3.2e6).split(), memory_text(0)
    (['2.0', 'kB'], ['3.2', 'MB'], '0')
    """
    unit, name = memory_unit(size)
    return f"{size / unit:.1f}{NO_BREAK}{name}" if size else "0"


def shorten(text: str, longest: int = 44) -> str:
    """A name without its middle if it is too long: names often differ only at the end.

    >>> shorten("backbone.layer4.1.conv2", 12)
    'backb….conv2'
    """
    end = longest // 2
    return text if len(text) <= longest else f"{text[: longest - 1 - end]}…{text[-end:]}"
