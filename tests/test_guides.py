"""The code in the guides runs unchanged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from benchmarks import scaling
from torch import nn
from torch.nn import functional

import cuber
from cuber.core.settings import settings_of
from cuber.experiments import Experiment, run
from cuber.experiments.reproduce import SCALES, TARGETS
from cuber.layers import BACKENDS, ProtectedLayer
from cuber.layers.rule import RULES
from cuber.methods import METHODS
from cuber.report.grouping import load_report
from tests.datasets import files
from tests.packages import install

ROOT = Path(__file__).parent.parent
GUIDES = ROOT / "docs"


def test_readme() -> None:
    text = (ROOT / "README.md").read_text()
    loop, whole = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    torch.manual_seed(0)
    model = nn.Sequential(OrderedDict(fc1=nn.Linear(8, 12), relu=nn.ReLU(), fc2=nn.Linear(12, 3)))
    x, y = torch.randn(24, 8), torch.randint(3, (24,))
    loaders = [[(x + shift, y)] for shift in range(3)]
    scope = {"torch": torch, "loss_fn": functional.cross_entropy, "model": model, "loaders": loaders}
    exec(loop, scope)
    learner = scope["learner"]
    guide = (GUIDES / "own-loop.md").read_text()
    attributes = re.findall(r"^\| `\.(\w+)` \|", guide, re.MULTILINE)
    assert len(attributes) == 7
    for attribute in attributes:
        assert len(getattr(learner.memory["fc1"], attribute))
    regime = learner.regimes[2]["fc1"][0]
    assert {"number", "ratio", "cosine", "demoted_at"} == regime.__dict__.keys()

    model = nn.Linear(8, 3)
    data = {f"{name}{number}": values for name, values in {"x": x, "y": y}.items() for number in ("", 2, 3, 4)}
    scope = {"cuber": scope["cuber"], "model": model, **data}
    exec(whole, scope)
    assert scope["result"].bwt is not None


def test_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUBER_CACHE", str(tmp_path / "cache"))
    for folder in ("flowers", "drawings"):
        for seed, letter in enumerate("abcd"):
            for number, image in enumerate(files.pictures(15, 40, 50, 3, seed=seed)):
                files.write_image(tmp_path / folder / letter / f"{number}.png", image)
    text = (GUIDES / "own-data.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    exec(code, {})
    (plants,) = load_report(["runs/plants"]).groups
    reached = {variant.label: variant.figure("acc").mean for variant in plants.variants}
    assert reached.keys() == {"soft-cuber", "trgp", "finetune"}
    assert min(reached["soft-cuber"], reached["trgp"]) > reached["finetune"] + 5
    out = capsys.readouterr().out
    assert re.search(r"print\(flowers\) +# (.*)", text).group(1) in out
    assert "Result(cuber on flowers, 2 tasks" in out
    results = re.findall(r"print\(result\) +# (.*)", text)
    assert len(results) == 3
    for shown in results:
        assert re.search(re.escape(shown).replace(re.escape("..."), ".*"), out)


@pytest.mark.parametrize("kind", ["pixel", "token"])
def test_programs_for_other_targets_are_complete(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = re.findall(r"```python\n(.*?)```", (GUIDES / "own-data.md").read_text(), re.DOTALL)
    (program,) = (code for code in found if f"{kind} accuracy" in code)
    exec(program, {})
    assert f"{kind} accuracy" in capsys.readouterr().out


def test_padding() -> None:
    pytest.importorskip("transformers")
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    first, second = re.findall(r"```python\n(.*?)```", (GUIDES / "padding.md").read_text(), re.DOTALL)
    exec(first, scope)
    real = scope["batch"]["attention_mask"].bool()
    assert torch.equal(scope["learner"].real_positions(scope["batch"]), real)
    assert scope["learner"].tasks == 1
    exec(second, scope)
    assert torch.equal(scope["learner"].real_positions(scope["batch"]), real)


def test_the_papers_tables() -> None:
    text = (GUIDES / "benchmarks.md").read_text()
    commands = re.findall(r"^cuber reproduce (\S+)(?: --scale (\S+))?(?: --from \S+)? +#", text, re.MULTILINE)
    assert {scale or "short" for _, scale in commands} == set(SCALES)
    assert all(target in TARGETS for target, _ in commands)
    assert re.findall(r"^\| `(table\d|figure-\w+)` \|", text, re.MULTILINE) == list(TARGETS)


def test_scaling() -> None:
    text = (GUIDES / "scaling.md").read_text()
    assert scaling.table() in text
    for name in re.findall(r"^cuber run \.\.\. --set (\w+)=", text, re.MULTILINE):
        assert name in settings_of(cuber.CUBER)


def test_theory(capsys: pytest.CaptureFixture[str]) -> None:
    text = (GUIDES / "theory.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})
    out = capsys.readouterr().out
    shown = re.findall(r"```\n(theorem .*?)  \.\.\.\n```", text, re.DOTALL)
    assert len(shown) == 1
    assert out.startswith(shown[0])
    scope: dict[str, Any] = {}
    exec(code.partition("alpha =")[0], scope)
    for call, value in re.findall(r"^(theory\.\S+\(.*?\)) +# definition \d: ([\d.]+),", code, re.MULTILINE):
        assert eval(call, scope) == pytest.approx(float(value), abs=0.005)


def command_line(*arguments: str, site: Path) -> str:
    """Return what a command prints in a process that imports packages from ``site`` too."""
    searched = [str(site), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, searched)), "COLUMNS": "80"}
    command = [sys.executable, "-c", "from cuber.cli.main import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    for epoch in (epoch for epochs in result["history"] for epoch in epochs):
        del epoch["seconds"]
    return {name: value for name, value in result.items() if name not in ("method", "seconds")}


def test_adding_a_method_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (GUIDES / "adding-a-method.md").read_text()
    modules = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", text, re.DOTALL))
    table = text.partition('[project.entry-points."cuber.methods"]\n')[2].partition("```")[0]
    offers = dict(re.findall(r'^(\w+) = "(.*)"$', table, re.MULTILINE))
    assert offers == {name: f"{name}:{name.capitalize()}" for name in ("nothing", "anchor", "normalized")}
    assert modules.keys() == offers.keys()
    assert len(modules["nothing"].splitlines()) < 15
    site = tmp_path / "site"
    site.mkdir()
    install(site, "my-methods", modules, offers)

    listed = command_line("list", site=site)
    assert re.search(r"^  nothing  Plain training on task after task *$", listed, re.MULTILINE)
    assert re.search(r"^  anchor  Pull weights back to their values", listed, re.MULTILINE)
    assert re.search(r"^    strength +0\.1 +factor of the distance", listed, re.MULTILINE)

    out = ["--tasks", "3", "--epochs", "2", "--quiet", "--out", str(tmp_path / "run")]
    assert "ACC" in command_line("run", "--method", "nothing", *out, site=site)
    nothing = json.loads((tmp_path / "run" / "result.json").read_text())
    assert nothing["method"] == "nothing"
    plain = without_times(run(Experiment(method="finetune", tasks=3, epochs=2)).to_dict())
    assert without_times(nothing) == plain

    monkeypatch.syspath_prepend(site)
    experiment = Experiment(method="anchor", tasks=3, epochs=2, settings={"strength": 0.5})
    anchored = without_times(run(experiment).to_dict())
    assert anchored["settings"]["strength"] == 0.5
    assert anchored["bytes"][-1]["anchors"] > 0
    assert anchored["history"][0] == plain["history"][0]  # no anchors in the first task
    assert anchored["history"][1] != plain["history"][1]
    assert anchored["bwt"] > plain["bwt"]

    normalized = run(Experiment(method="normalized", tasks=2, epochs=1))
    assert normalized.acc > 50


def test_adding_a_method_here(monkeypatch: pytest.MonkeyPatch) -> None:
    scope: dict[str, Any] = {"__name__": "cuber.methods.shrink"}
    monkeypatch.setitem(sys.modules, "cuber.methods.shrink", ModuleType("cuber.methods.shrink"))
    exec(contributing("methods/shrink.py"), scope)
    monkeypatch.setitem(METHODS, "shrink", scope["Shrink"])
    result = run(Experiment(method="shrink", tasks=2, epochs=1, settings={"strength": 0.2}))
    slower = run(Experiment(method="finetune", tasks=2, epochs=1, lr=0.04))
    assert result.acc == pytest.approx(slower.acc, abs=1.0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_adding_a_layer_type(backend: str) -> None:
    scope: dict[str, Any] = {"__name__": "pointwise"}
    before = dict(RULES)
    try:
        exec(extending("pointwise"), scope)
        torch.manual_seed(0)
        module = scope["Pointwise"](5, 3)
        x = torch.randn(4, 5, 7)
        layer = ProtectedLayer("layer", [module], scope["PointwiseRule"])
        layer.use_backend(backend)
        rows = layer.vectors(module, x) @ layer.matrix().mT
        assert torch.allclose(rows, scope["PointwiseRule"].outputs(module, module(x)), atol=1e-6)

        for method in ("CUBER", "GPM", "EWC", "HAT", "OWM"):
            pointwise = [scope["Pointwise"](5, 8), nn.ReLU(), scope["Pointwise"](8, 3)]
            model = nn.Sequential(*pointwise, nn.Flatten(), nn.Linear(21, 2))
            options = {"backend": backend} if method in ("CUBER", "GPM") else {}
            learner = getattr(cuber, method)(model, **options)
            assert "frozen" not in repr(learner)
            for shift in range(2):
                loader = [(x + shift, torch.tensor([0, 1, 0, 1]))]
                learner.begin_task(loader, functional.cross_entropy, steps=10)
                optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.1))
                for _ in range(10):
                    optimizer.zero_grad()
                    functional.cross_entropy(model(loader[0][0]), loader[0][1]).backward()
                    optimizer.step()
                learner.end_epoch()
                learner.end_task(loader)
    finally:
        RULES.clear()
        RULES.update(before)


def extending(module: str) -> str:
    """Return the code that extending.md has for a module."""
    (code,) = re.findall(rf"```python\n# {module}\.py\n(.*?)```", (GUIDES / "extending.md").read_text(), re.DOTALL)
    return str(code)


def test_a_stream_a_benchmark_and_a_logger_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("rotations", "milestones"):
        module = ModuleType(name)
        exec(extending(name), module.__dict__)
        monkeypatch.setitem(sys.modules, name, module)
    exec(extending("benchmark").replace('"soft-cuber", ', "").replace("range(2)", "range(1)"), {})
    results = {name: cuber.Result.load(f"runs/rotated-digits/{name}/seed-0") for name in ("trgp", "finetune")}
    assert results["trgp"].acc > results["finetune"].acc + 10
    assert capsys.readouterr().out == ""
    exec(extending("logged"), {})
    assert re.fullmatch(r"(after task \d: \d\d\.\d %\n){4}", capsys.readouterr().out)


def contributing(file: str) -> str:
    """Return the code that CONTRIBUTING.md has for a file."""
    (code,) = re.findall(rf"```python\n# src/cuber/{file}\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    return str(code)
