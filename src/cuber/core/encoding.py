"""Output for terminals and pipes that do not take every character: it is spelled with what they have."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

SPELLINGS = {"±": "+-", "°": "deg", "−": "-", "…": "~"}
"""The last is rich's, where a cell is cut: another spelling would have to be as wide."""
SPELLED = "cuber.spelled"
"""The name that encoders know it by."""


def takes_everything(encoding: str | None) -> bool:
    """Whether there is no character that an encoding lacks; text that stays in memory has none.

    >>> takes_everything("UTF8"), takes_everything("ascii"), takes_everything(None)
    (True, False, True)
    """
    return encoding is None or codecs.lookup(encoding).name.startswith("utf")


def spell_what_is_missing(stream: TextIO | None) -> None:
    """Have a stream spell what its encoding lacks, where it would raise an error."""
    if isinstance(stream, io.TextIOWrapper) and not takes_everything(stream.encoding):
        stream.reconfigure(errors=SPELLED)


def spelled(text: str, encoding: str) -> str:
    """What such a stream makes of a text, for those who must know how wide it will be.

    >>> spelled("90.1±0.5", "ascii"), spelled("90.1±0.5", "utf-8")
    ('90.1+-0.5', '90.1±0.5')
    """
    return text if takes_everything(encoding) else text.encode(encoding, SPELLED).decode(encoding)


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(SPELLINGS.get(each) or ascii(each)[1:-1] for each in lacking), error.end


codecs.register_error(SPELLED, _spell)
