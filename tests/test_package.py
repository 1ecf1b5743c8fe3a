"""The wheel: complete, installed into an environment of its own, typed, and usable without any extra."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from cuber import __version__

ROOT = Path(__file__).parent.parent
CORE = ("torch", "numpy", "safetensors", "filelock", "tomli-w", "tomli")
EXTRAS = {
    "cli": "typer rich click",
    "report": "matplotlib jinja2 scipy",
    "data": "sklearn PIL pooch requests platformdirs scipy",
    "lora": "peft",
    "others": "transformers lightning pytorch_lightning ray distributed onnx avalanche tensorboard wandb mlflow",
}
"""Extra -> modules of the packages that it installs."""
BLOCKER = """
import os, sys

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        hidden = name.partition(".")[0] in os.environ.get("BLOCKED", "").split()
        return None if hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hiding, sys.meta_path)
"""
"""Put into an environment as sitecustomize.py, it hides the packages that BLOCKED names."""


def build(tree: Path, target: str) -> Path:
    """Build a wheel or an sdist with hatchling, without a network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(tree / "built")]
    subprocess.run(command, cwd=tree, check=True, capture_output=True)
    (built,) = (tree / "built").glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built from; hatchling leaves out what .gitignore names."""
    copy = tmp_path_factory.mktemp("tree")
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path) -> Path:
    return build(tree, "wheel")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of scripts of an environment with the wheel, and the packages of this one that are not blocked."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    scripts = folder / "bin"
    command = [sys.executable, "-m", "pip", "--python", str(scripts / "python"), "install", "--quiet", "--no-index"]
    subprocess.run([*command, "--no-deps", str(wheel)], check=True, capture_output=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (site / "sitecustomize.py").write_text(BLOCKER)
    return scripts


def run(*command: object, blocked: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    """Run a command outside of the source tree, with only the environment's own modules."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    everything = {**variables, "BLOCKED": blocked, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        env=everything,
        cwd=Path(sys.prefix),
        timeout=300,
        **options,  # type: ignore[call-overload]
    )


def package_files(root: Path) -> Iterator[str]:
    for path in root.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield f"cuber/{path.relative_to(root)}"


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    """A line in .gitignore once left out cuber.runs, and nothing noticed but users."""
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("cuber/")}
    assert inside == set(package_files(ROOT / "src" / "cuber"))
    assert "cuber/py.typed" in inside


def test_the_sdist_builds_the_same_wheel(tree: Path, wheel: Path, tmp_path: Path) -> None:
    with tarfile.open(build(tree, "sdist")) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    contents = [
        {name: archive.read(name) for name in archive.namelist()}
        for archive in (zipfile.ZipFile(wheel), zipfile.ZipFile(build(source, "wheel")))
    ]
    assert contents[0] == contents[1]


def test_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    about = Parser().parsestr(archive.read(f"cuber_learn-{__version__}.dist-info/METADATA").decode())
    needed = about.get_all("Requires-Dist") or []
    core = [re.split("[^A-Za-z0-9-]", line)[0] for line in needed if "extra ==" not in line]
    assert sorted(core) == sorted(CORE)
    assert (about["Name"], about["Version"], about["Author"]) == ("cuber-learn", __version__, "cuber contributors")
    extras = about.get_all("Provides-Extra") or []
    features = {"cli", "report", "data", "dask", "ray", "transformers", "lightning", "lora", "onnx", "avalanche"}
    assert set(extras) == features | {"tensorboard", "wandb", "mlflow", "all", "docs", "dev"}
    in_all = {line.partition(";")[0].strip() for line in needed if line.endswith("extra == 'all'")}
    for line in needed:
        if not re.search("extra == '(all|docs|dev)'$", line) and "extra ==" in line:
            assert line.partition(";")[0].strip() in in_all


def test_without_extras_every_method_learns(environment: Path, tmp_path: Path) -> None:
    blocked = " ".join(EXTRAS.values())
    done = run(environment / "python", ROOT / "tests" / "core_only.py", tmp_path / "run", blocked=blocked)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "the digits of scikit-learn needs pip install 'cuber-learn[data]' (No module named 'sklearn')",
        "LoRA needs pip install 'cuber-learn[lora]' (No module named 'peft')",
    ]
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("command", [["cuber"], ["python", "-m", "cuber"], ["python", "-m", "cuber.cli"]])
def test_the_command_line_names_the_extra_that_it_lacks(environment: Path, command: list[str]) -> None:
    program = [environment / command[0], *command[1:]]
    lacking = run(*program, "--version", blocked=EXTRAS["cli"])
    sentence = "cuber: the command line needs pip install 'cuber-learn[cli]' (No module named 'rich')\n"
    assert (lacking.returncode, lacking.stdout, lacking.stderr) == (2, "", sentence)
    complete = run(*program, "--version", blocked=EXTRAS["report"] + EXTRAS["data"])
    assert (complete.returncode, complete.stdout) == (0, f"cuber {__version__}\n")


def test_every_command_names_the_extra_that_it_lacks(environment: Path, tmp_path: Path) -> None:
    commands = {
        "run --epochs 1": "data",
        "data": "data",
        "report .": "report",
        "theory": "report",
        f"grid split-digits --out {tmp_path}/grid --on ray": "ray",
        f"run --log wandb --out {tmp_path}/run": "wandb",
    }
    script = (
        "import sys\n"
        "from cuber.cli.main import main\n"
        "for command in sys.argv[1:]:\n"
        "    try: main(command.split())\n"
        "    except SystemExit as exit: assert exit.code == 2, command\n"
    )
    blocked = " ".join(words for name, words in EXTRAS.items() if name != "cli")
    done = run(environment / "python", "-c", script, *commands, blocked=blocked)
    assert (done.returncode, done.stdout) == (0, "")
    for line, extra in zip(done.stderr.splitlines(), commands.values(), strict=True):
        assert re.fullmatch(rf"cuber: .* needs pip install 'cuber-learn\[{extra}\]' \(No module .*", line)


def test_a_client_sees_our_types(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text(
        "import cuber\n"
        "def train(learner: cuber.CUBER, stream: cuber.Stream) -> float:\n"
        "    reveal_type(cuber.learn(learner, stream, epochs=1, lr=0.1))\n"
        "    reveal_type(learner.tasks)\n"
        "    cuber.learn(learner, [stream])\n"
        "    return cuber.GPM(learner.model, threshold=0.9)\n"
    )
    # What torch says about itself takes a minute to read.
    (tmp_path / "mypy.ini").write_text("[mypy]\n[mypy-torch.*,numpy.*]\nfollow_imports = skip\n")
    options = ["--python-executable", environment / "python", "--config-file", tmp_path / "mypy.ini"]
    checked = run(sys.executable, "-m", "mypy", *options, f"--cache-dir={tmp_path}/cache", tmp_path / "client.py")
    told = [line.partition("client.py:")[2] for line in checked.stdout.splitlines() if "client.py:" in line]
    assert [line.split(":")[0] for line in told] == ["3", "4", "5", "6"], checked.stdout
    assert 'Revealed type is "cuber.runs.result.Result"' in told[0]
    assert 'Revealed type is "int"' in told[1].replace("builtins.", "")
    assert 'Argument 2 to "learn" has incompatible type' in told[2]
    assert 'got "GPM", expected "float"' in told[3]


def write_distribution(site: Path, name: str) -> None:
    about = site / f"{name}-1.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.1\n")


def test_the_other_project_of_this_name_is_told_apart(tmp_path: Path) -> None:
    """PyPI's ``cuber`` 1.1 has an empty ``__init__.py``, a ``__main__.py`` and no script; pip replaces ours."""

    def start() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-c", "from cuber.cli.start import main; main()", "--version"],
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        return done.returncode, done.stderr

    shutil.copytree(ROOT / "src" / "cuber", tmp_path / "cuber", ignore=shutil.ignore_patterns("__pycache__"))
    write_distribution(tmp_path, "cuber_learn")
    assert start() == (0, "")
    (tmp_path / "elsewhere").mkdir()
    write_distribution(tmp_path / "elsewhere", "cuber")
    assert start() == (0, "")
    write_distribution(tmp_path, "cuber")
    code, sentence = start()
    assert code == 2
    assert re.fullmatch(
        r"cuber: .*other project named 'cuber'.*: run pip uninstall cuber, then pip install .*\n", sentence
    )
    shutil.rmtree(tmp_path / "cuber-1.1.dist-info")
    (tmp_path / "cuber" / "__init__.py").write_text("")  # as theirs, or as if removed with it
    assert start() == (code, sentence)


def test_help_without_docstrings() -> None:
    """``python -OO`` drops them; the source files still have them."""
    command = [sys.executable, "-OO", "-m", "cuber", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "Learn the tasks of a benchmark" in text
    assert "Show the results of finished runs" in text
