"""Replace characters that a terminal would obey, and those that the encoding of a terminal or pipe lacks."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Mapping
from typing import Any, TextIO

REPLACEMENTS = {"±": "+-", "°": "deg", "−": "-", "…": "~"}
"""Rich ends truncated cells with the last one, so its replacement must be one character wide."""
ERROR_HANDLER = "cuber.replace"
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, ends of lines, changes of the direction of writing, and halves of characters, as in file names
that are not UTF-8."""


def printable(text: str) -> str:
    r"""Return text from outside, such as the name of a directory or a task, on one line that can be shown anywhere.

    >>> printable("a\x1b[31m\n"), printable("3° \udcff")
    ('a\\x1b[31m\\n', '3° \\xff')
    """
    return UNPRINTABLE.sub(lambda found: _escaped(found[0]), text)


def printable_values(value: Any) -> Any:
    """Return nested lists and dictionaries in which all text, keys included, is printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable_values(key): printable_values(part) for key, part in value.items()}
    return [printable_values(part) for part in value] if isinstance(value, list | tuple) else value


def _escaped(character: str) -> str:
    code = ord(character)
    # Python reads the bytes 80 to ff of file names that are not UTF-8 as these halves of characters.
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else ascii(character)[1:-1]


def is_unicode(encoding: str | None) -> bool:
    """Return whether an encoding has all characters; None (text in memory) has.

    >>> is_unicode("UTF8"), is_unicode("ascii"), is_unicode(None)
    (True, False, True)
    """
    return encoding is None or codecs.lookup(encoding).name.startswith("utf")


def replace_unencodable(stream: TextIO | None) -> None:
    """Configure a stream to replace characters that it cannot encode instead of raising an error."""
    if isinstance(stream, io.TextIOWrapper):
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
    return "".join(REPLACEMENTS.get(character) or _escaped(character) for character in missing), error.end


codecs.register_error(ERROR_HANDLER, _replace)
