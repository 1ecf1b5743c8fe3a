"""Sphinx configuration of the documentation site: ``make docs`` builds it into build/docs."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from typing import Any

import cuber
from cuber.core.settings import Setting

project = "cuber"
author = "cuber contributors"
project_copyright = author
version = release = cuber.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["images/make.py"]
source_suffix = {".md": "myst-nb"}
root_doc = "index"

html_theme = "furo"
html_title = f"cuber {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_in_temp = True  # notebooks write runs
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True  # the lines of a command in one box

autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_inherit_docstrings = False
autodoc_mock_imports = [name for name in ("avalanche",) if importlib.util.find_spec(name) is None]
maximum_signature_line_length = 80
napoleon_custom_sections = [("Settings", "params_style")]


def add_settings(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Add the settings of a method to its docstring: they are declared as fields, once."""
    if what == "class" and inspect.isclass(value) and issubclass(value, cuber.Method):
        lines += ["", "Settings:"]
        for field in dataclasses.fields(value):
            declared: Setting | None = field.metadata.get("setting")
            if declared is not None:
                choices = f" (one of {', '.join(declared.choices)})" if declared.choices else ""
                lines.append(f"    {field.name}: {declared.help}{choices}. Default: ``{field.default!r}``.")


def shorten_signature(
    app: Any, what: str, name: str, value: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None]:
    """Leave the settings out of a method's signature: they are listed below it."""
    if what == "class" and inspect.isclass(value) and issubclass(value, cuber.Method):
        return "(model, *, forward=None, **settings)", None
    return signature, returned


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", add_settings, priority=400)  # before napoleon reads it
    app.connect("autodoc-process-signature", shorten_signature)
