"""The pages of the documentation: links resolve, every public name is in the reference."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cuber

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]+))?\)")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    text = page.read_text()
    for included in re.findall(r"{include} (\S+)", text):
        text += (page.parent / included).read_text()
    headings = re.findall(r"^#+ (.+)$", without_code(text) if "{include}" not in text else text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_and_to_files_resolve(page: Path) -> None:
    for path, anchor in LINK.findall(without_code(page.read_text())):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name} links to {path}#{anchor}"


def test_every_page_is_in_the_table_of_contents() -> None:
    entries = set()
    for page in (DOCS / "index.md", DOCS / "reference" / "index.md"):
        for block in re.findall(r"```{toctree}\n(.*?)```", page.read_text(), re.DOTALL):
            names = [line for line in block.splitlines() if line and not line.startswith(":")]
            entries |= {(page.parent / name).relative_to(DOCS) for name in names}
    pages = {path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")}
    assert pages - {Path("index")} == entries


def test_every_public_name_is_in_the_reference() -> None:
    text = "".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    missing = [name for name in cuber.__all__ if not re.search(rf"\bcuber\.{name}\b", text)]
    assert missing == []
