"""The console of all commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from cuber.core.encoding import printable


class PlainConsole(Console):
    """A console for text from outside: reads no markup in it, and shows control characters instead of sending them."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render an object; lines have ended in it where rich broke them."""
        for segment in super().render(renderable, options):
            lines = segment.text.split("\n")
            yield segment if segment.control else segment._replace(text="\n".join(map(printable, lines)))
