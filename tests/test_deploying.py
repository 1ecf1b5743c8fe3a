"""The code of the guide to deploying runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from tests.methods.test_export import assert_plain, learned
from tests.models import CASES


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_deploying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    text = (Path(__file__).parent.parent / "docs" / "deploying.md").read_text()
    learner = learned("cuber", CASES["cnn"])
    scope = {"torch": torch, "learner": learner, "model": learner.model, "x": CASES["cnn"].inputs(7, 6)}
    exec("\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)), scope)  # detach does not warn
    assert torch.allclose(torch.from_numpy(scope["output"]), scope["expected"][:3], atol=1e-5)
    assert torch.allclose(scope["traced"](scope["x"]), scope["expected"], atol=1e-5)
    assert_plain(torch.load("task0.pt", weights_only=False))
    assert len(scope["exported"]) == 3
    assert learner.is_detached
