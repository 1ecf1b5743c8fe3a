"""Replace characters that the encoding of a terminal or pipe lacks."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

REPLACEMENTS = {"±": "+-", "°": "deg", "−": "-", "…": "~"}
"""Rich ends truncated cells with the last one, so its replacement must be one character wide."""
ERROR_HANDLER = "cuber.replace"


def is_unicode(encoding: str | None) -> bool:
    """Return whether an encoding has all characters; None (text in memory) has.

    >>> is_unicode("UTF8"), is_unicode("ascii"), is_unicode(None)
    (True, False, True)
    """
    return encoding is None or codecs.lookup(encoding).name.startswith("utf")


def replace_unencodable(stream: TextIO | None) -> None:
    """Configure a stream to replace characters that it cannot encode instead of raising an error."""
    if isinstance(stream, io.TextIOWrapper) and not is_unicode(stream.encoding):
        stream.reconfigure(errors=ERROR_HANDLER)


def encodable(text: str, encoding: str) -> str:
    """Return the text that such a stream writes, to compute its width.

    >>> encodable("90.1±0.5", "ascii"), encodable("90.1±0.5", "utf-8")
    ('90.1+-0.5', '90.1±0.5')
    """
    return text if is_unicode(encoding) else text.encode(encoding, ERROR_HANDLER).decode(encoding)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(REPLACEMENTS.get(character) or ascii(character)[1:-1] for character in missing), error.end


codecs.register_error(ERROR_HANDLER, _replace)
