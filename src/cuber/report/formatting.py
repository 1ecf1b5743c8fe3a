"""Numbers as a report writes them."""

from __future__ import annotations

from collections.abc import Sequence

from cuber.core.formatting import format_number
from cuber.report.content import Spread

NONE = "–"
LONGEST = 44


def number(value: float | None, decimals: int = 2, *, sign: bool = False) -> str:
    """A number with a real minus sign; a dash for none.

    >>> number(-1.234), number(0.5, 1, sign=True), number(-0.001, sign=True), number(None)
    ('−1.23', '+0.5', '0.00', '–')
    """
    if value is None:
        return NONE
    return format_number(value, f"{'+' if sign else ''}.{decimals}f").replace("-", "−")


def spread_words(spread: Spread | None, decimals: int = 2, *, sign: bool = False) -> str:
    """A mean, and its deviation where there is one.

    >>> spread_words(Spread(99.5, 0.25)).split(), spread_words(Spread(99.5)), spread_words(None)
    (['99.50', '±', '0.25'], '99.50', '–')
    """
    if spread is None:
        return NONE
    deviation = "" if spread.deviation is None else f" ±\N{NO-BREAK SPACE}{spread.deviation:.{decimals}f}"
    return number(spread.mean, decimals, sign=sign) + deviation


def seeds(numbers: Sequence[int]) -> str:
    """Seeds in few words.

    >>> seeds([0, 1, 2, 3, 7]), seeds([1, 2])
    ('0–3, 7', '1, 2')
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def seconds(spread: Spread | None) -> str:
    """A time in the unit one would say it in.

    >>> [seconds(Spread(time)).split() for time in (7.51, 90.0, 5400.0, 14400.0)]
    [['7.5', 's'], ['90.0', 's'], ['90.0', 'min'], ['4.0', 'h']]
    """
    if spread is None:
        return NONE
    size, unit = time_unit(spread.mean)
    deviation = None if spread.deviation is None else spread.deviation / size
    return f"{spread_words(Spread(spread.mean / size, deviation), 1)}\N{NO-BREAK SPACE}{unit}"


def time_unit(longest: float) -> tuple[float, str]:
    """The unit for times up to this, and its seconds: one decimal of it should say something."""
    return (3600.0, "h") if longest >= 3 * 3600 else (60.0, "min") if longest >= 3 * 60 else (1.0, "s")


def memory_unit(largest: float) -> tuple[float, str]:
    """The unit for sizes up to this, and its bytes."""
    return (1e9, "GB") if largest >= 1e9 else (1e6, "MB") if largest >= 1e6 else (1e3, "kB")


def memory(size: float) -> str:
    """Bytes in the unit one would say them in.

    >>> memory(2048).split(), memory(3.2e6).split(), memory(0)
    (['2.0', 'kB'], ['3.2', 'MB'], '0')
    """
    bytes_of, unit = memory_unit(size)
    return f"{size / bytes_of:.1f}\N{NO-BREAK SPACE}{unit}" if size else "0"


def shorten(text: str, longest: int = LONGEST) -> str:
    """A name for a figure: printable, and if too long without its middle, as names differ where they begin and end.

    >>> shorten("backbone.layer4.1.conv2", 12)
    'backb….conv2'
    """
    text = "".join(character if character.isprintable() else "�" for character in text)
    if len(text) <= longest:
        return text
    end = longest // 2
    return f"{text[: longest - 1 - end]}…{text[-end:]}"
