"""Methods of other packages: found by their entry point, told apart from ours, and harmless when broken."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from torch import nn

import cuber
from cuber import CuberError, CuberWarning, FineTune, Method
from cuber.core import plugins
from cuber.experiments import Experiment, listing, run
from cuber.methods import METHODS, all_methods, find_method, setting
from tests.packages import install

NOTHING = '''
from cuber import Method

class Nothing(Method):
    """Plain training."""
'''

BAD = {
    "missing": ("missing", "x = 1", "missing:Missing", "cannot be imported from missing:Missing: AttributeError"),
    "unwritten": ("other", "x = 1", "unwritten:Mine", "ModuleNotFoundError: No module named 'unwritten'"),
    "wrong": ("wrong", "def", "wrong:Wrong", "cannot be imported from wrong:Wrong: SyntaxError"),
    "failing": ("failing", "raise KeyError('a\\nb')", "failing:Mine", "KeyError: 'a"),
    "a function": (
        "function",
        "def mine(model): ...",
        "function:mine",
        "function:mine, is not a subclass of cuber.Method",
    ),
    "no method": ("plain", "class Mine: ...", "plain:Mine", "plain:Mine, is not a subclass of cuber.Method"),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for packages, in which this process looks for modules."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_method_of_another_package_is_found_and_listed(site: Path) -> None:
    install(site, "their-package", {"their_module": NOTHING}, {"nothing": "their_module:Nothing"})
    method = find_method("nothing")
    assert issubclass(method, Method)
    assert Experiment(method="nothing").method_class is method
    assert list(all_methods()) == [*METHODS, "nothing"]
    assert listing.methods()[-1].name == "nothing"
    assert listing.methods()[-1].help == "Plain training"


def test_a_result_has_the_name_that_the_method_was_asked_for_by(site: Path) -> None:
    install(site, "their-package", {"other_module": NOTHING}, {"theirs": "other_module:Nothing"})
    assert run(Experiment(method="theirs", tasks=1, epochs=1)).method == "theirs"


def test_one_that_is_nowhere_is_answered_with_the_names_there_are(site: Path) -> None:
    install(site, "their-package", {"their_module": NOTHING}, {"nothing": "their_module:Nothing"})
    known = re.escape(f"(known: {', '.join(METHODS)}, nothing)")
    with pytest.raises(CuberError, match=rf"there is no method 'nothin'; did you mean 'nothing'\? {known}"):
        find_method("nothin")


@pytest.mark.parametrize("kind", BAD)
def test_one_that_cannot_be_had_names_its_package_and_disturbs_no_other(site: Path, kind: str) -> None:
    module, text, value, sentence = BAD[kind]
    install(site, "their-package", {f"{module}": text}, {"mine": value})
    install(site, "good-package", {"good": NOTHING}, {"nothing": "good:Nothing"})
    with pytest.raises(
        CuberError, match=f"method 'mine' of the package 'their-package'.*{re.escape(sentence)}"
    ) as error:
        find_method("mine")
    assert "\n" not in str(error.value)
    assert find_method("finetune") is FineTune
    assert find_method("nothing").__name__ == "Nothing"
    with pytest.warns(CuberWarning, match=re.escape(sentence)):
        assert list(all_methods()) == [*METHODS, "nothing"]


def test_a_built_in_name_cannot_be_taken(site: Path) -> None:
    install(site, "their-package", {"thief": NOTHING}, {"gpm": "thief:Nothing"})
    assert find_method("gpm") is METHODS["gpm"]
    with pytest.warns(CuberWarning, match="the package 'their-package' offers a method 'gpm', but cuber has its own"):
        assert all_methods() == METHODS
    assert "thief" not in sys.modules


def test_two_packages_with_one_name_are_both_named(site: Path) -> None:
    for package in ("one-package", "two-package"):
        install(site, package, {"good": NOTHING}, {"nothing": "good:Nothing"})
    with pytest.raises(CuberError, match="'nothing' is offered by the package") as error:
        find_method("nothing")
    assert "'one-package'" in str(error.value)
    assert "'two-package'" in str(error.value)


def test_entry_points_are_read_only_for_names_that_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither importing cuber.methods nor a method of ours reads them: going through all packages takes its time."""

    class ReadError(Exception):
        pass

    def entry_points(**options: object) -> None:
        raise ReadError

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    monkeypatch.setattr(plugins, "entry_points", entry_points)
    for module in (cuber.methods, plugins):
        runpy.run_path(str(module.__file__))
    assert Experiment(method="trgp").method_class is cuber.TRGP
    with pytest.raises(ReadError):
        Experiment(method="nobody")


def test_a_setting_of_a_class_that_is_no_dataclass_is_told() -> None:
    class Mine(Method):
        strength: float = setting(0.1, "how hard", low=0)

    with pytest.raises(CuberError, match=r"Mine\.strength is not a setting: put @dataclass"):
        Mine(nn.Linear(2, 2))
