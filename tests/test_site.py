"""The pages of the documentation: links resolve, every public name is in the reference, notebooks run."""

from __future__ import annotations

import importlib
import inspect
import re
import shlex
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cuber
from cuber.cli.main import main
from cuber.experiments import Experiment
from cuber.training.config import training_options

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.md"))
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_show_titles_and_not_files(page: Path) -> None:
    assert re.findall(r"\[`?[\w./-]+\.md`?\]\(", without_code(page.read_text())) == []


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


def listed() -> Iterator[tuple[str, list[str] | None, str]]:
    """Yield every name of the reference, its members (None: all; none listed: no members), and its page's code."""
    for page in sorted((DOCS / "reference").glob("*.md")):
        text = page.read_text()
        code = "".join(re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
        for name, option, members in re.findall(r"^\.\. auto\w+:: (\S+)\n(   :members:(.*))?", text, re.MULTILINE):
            chosen = [member.strip() for member in members.split(",")] if members.strip() else None if option else []
            yield name, chosen, code


def documented(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(importlib.import_module(module), attribute)
    except cuber.CuberError as error:
        pytest.skip(str(error))  # a framework that is not installed


def examples(docstring: str) -> str:
    return "\n".join(re.findall(r"^\s*(?:>>>|\.\.\.) (.*)$", docstring, re.MULTILINE))


def undocumented(function: Any) -> list[str]:
    """Return the parameters that are not in the docstring's Args, and "Returns" if it does not say what it returns."""
    docstring = inspect.getdoc(function) or ""
    missing = []
    for parameter in inspect.signature(function).parameters:
        declared = parameter in getattr(function, "__dataclass_fields__", {}) and (
            "setting" in function.__dataclass_fields__[parameter].metadata
        )  # docs/conf.py lists the settings of a method
        if parameter != "self" and not declared and not re.search(rf"^    {parameter}: ", docstring, re.MULTILINE):
            missing.append(parameter)
    returned = inspect.get_annotations(function).get("return", "None")
    if returned != "None" and not re.search(r"^Returns:|\A(Return|Iterate)\b", docstring, re.MULTILINE):
        missing.append("Returns")
    return missing


@pytest.mark.parametrize(("name", "members", "code"), [pytest.param(*entry, id=entry[0]) for entry in listed()])
def test_every_name_in_the_reference_has_an_example(name: str, members: list[str] | None, code: str) -> None:
    """Methods that a class lists one by one are called in its example, in their own, or in the code of the page."""
    value = documented(name)
    shown = examples(value.__doc__)
    assert shown
    for member in members or []:
        own = examples(inspect.getattr_static(value, member).__doc__ or "")
        assert re.search(rf"\b{member}\b", shown + own + code), f"{name}.{member}"


@pytest.mark.parametrize(("name", "members"), [pytest.param(*entry[:2], id=entry[0]) for entry in listed()])
def test_every_name_in_the_reference_documents_arguments_and_returns(name: str, members: list[str] | None) -> None:
    value = documented(name)
    described_elsewhere = {Experiment: set(training_options()), cuber.Result: set(cuber.Result.__dataclass_fields__)}
    if not (inspect.isclass(value) and issubclass(value, Exception)):
        assert set(undocumented(value)) <= described_elsewhere.get(value, set())
    for member in members or []:
        static = inspect.getattr_static(value, member)
        if not isinstance(static, property):
            assert undocumented(getattr(value, member)) == [], f"{name}.{member}"


def test_the_program_with_all_calls_of_a_learner_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", (DOCS / "reference/learner.md").read_text(), re.DOTALL | re.M)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(program, {})
    assert "torch.Size([24, 3])" in capsys.readouterr().out


SHORTER = {"range(8)": "range(1)", "num_train_epochs=8": "num_train_epochs=1", "--seeds 0-1": "--seeds 0-1 --epochs 1"}


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(
    notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its cells are one program, here with fewer epochs; lines that begin with ! are commands of a shell."""
    if notebook.stem == "transformer":
        pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    scope = {
        "__name__": "notebook",
        "command": lambda line: command_line(shlex.split(line.partition("cuber ")[2].partition(" 2>&1")[0])),
    }
    cells = re.findall(r"^```{code-cell}\n((?::.*\n)*)(.*?)^```", notebook.read_text(), re.DOTALL | re.MULTILINE)
    for options, code in cells:
        if "hide-input" not in options:  # which shows something in the page
            for whole, shorter in SHORTER.items():
                code = code.replace(whole, shorter)
            exec(re.sub(r"^!(.*)$", lambda line: f"command({line.group(1)!r})", code, flags=re.MULTILINE), scope)
    assert capfd.readouterr().out.strip()


def command_line(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code
