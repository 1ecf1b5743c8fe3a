"""An export is taken by torch.export, ONNX, torch.jit and Hugging Face, and loads where there is no cuber."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, HAT, CuberError, MultiHead
from tests.loops import logits, loss_fn
from tests.methods.test_export import SETTINGS, learned
from tests.models import CASES, CLASSES

DYNAMIC = {0: torch.export.Dim("batch", min=1, max=64)}
OLD_TORCH = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
"""Older than the version that quotes; of those between, 2.8 is known not to."""
TRIED = [("cuber", "cnn"), ("hat", "residual block"), ("trgp", "many heads")]


@pytest.mark.parametrize(("method", "name"), [*TRIED, ("cuber", "transformer")])
def test_torch_export_with_a_dynamic_batch(method: str, name: str) -> None:
    learner, case = learned(method, CASES[name]), CASES[name]
    program = torch.export.export(learner.export(1), (case.inputs(7, 4),), dynamic_shapes=(DYNAMIC,))
    for size in (2, 9):
        x = case.inputs(8, size)
        assert torch.allclose(program.module()(x), logits(learner, 1, x), atol=1e-6, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("method", "name"), TRIED)
def test_a_trace(method: str, name: str) -> None:
    learner, case = learned(method, CASES[name]), CASES[name]
    traced: Any = torch.jit.trace(learner.export(1), case.inputs(7, 4))
    x = case.inputs(8, 9)
    assert torch.allclose(traced(x), logits(learner, 1, x), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("method", "name"), TRIED[:2])
def test_onnx_with_a_dynamic_batch(method: str, name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    learner, case = learned(method, CASES[name]), CASES[name]
    file = tmp_path / "task.onnx"
    example = (case.inputs(7, 4),)
    torch.onnx.export(learner.export(1), example, file, dynamo=True, dynamic_shapes=(DYNAMIC,), verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for size in (2, 9):
        x = case.inputs(8, size)
        (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        assert torch.allclose(torch.from_numpy(output), logits(learner, 1, x), atol=1e-5)


WITHOUT_CUBER = """
import sys

class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "cuber":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Refused())
import torch
torch.set_num_threads(1)
for model, x, expected in torch.load(sys.argv[1], weights_only=False):
    assert torch.allclose(model(x), expected, atol=1e-6, rtol=1e-6)
try:
    import cuber
except ModuleNotFoundError:
    print("without cuber:", type(model).__name__)
"""


def test_saved_exports_load_in_a_process_that_has_no_cuber(tmp_path: Path) -> None:
    saved = []
    x = CASES["residual block"].inputs(7, 9)
    for method in ("cuber", "hat"):
        torch.manual_seed(0)
        body = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 6), nn.ReLU()
        )
        model = MultiHead(body, 6, [CLASSES] * 3)
        learner = learned(method, CASES["residual block"], model=model, norm_statistics="batch")
        saved.append((learner.export(1), x, logits(learner, 1, x)))
    torch.save(saved, tmp_path / "tasks.pt")
    command = [sys.executable, "-I", "-c", WITHOUT_CUBER, str(tmp_path / "tasks.pt")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("without cuber: Sequential\n", 0), done.stderr


# Hugging Face


def tiny_bert() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=13,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        num_labels=CLASSES,
    )
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(config)


@pytest.mark.parametrize("method", ["cuber", "hat"])
def test_a_hugging_face_model_is_saved_and_loaded_as_one(method: str, tmp_path: Path) -> None:
    kind: Any = {"cuber": CUBER, "hat": HAT}[method]
    model = tiny_bert()
    model.classifier = MultiHead(nn.Identity(), 8, [CLASSES] * 2)

    def forward(model: nn.Module, batch: Any) -> Tensor:
        return loss_fn(model(batch[0]).logits, batch[1])

    learner = kind(model, forward=forward, **SETTINGS[method])
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        words, y = torch.randint(13, (8, 5), generator=generator), torch.randint(3, (8,), generator=generator)
        learner.begin_task([(words, y)])
        optimizer = learner.wrap(torch.optim.SGD(learner.parameters(), lr=0.3))
        forward(model, (words, y)).backward()
        optimizer.step()
        learner.end_task([(words, y)])
    for task in range(2):
        exported: Any = learner.export(task)
        assert type(exported) is type(model)
        exported.save_pretrained(tmp_path / str(task))
        loaded = type(model).from_pretrained(tmp_path / str(task)).eval()
        with torch.no_grad(), learner.as_task(task):
            model.eval()
            expected = model(words).logits
            assert torch.allclose(loaded(words).logits, expected, atol=1e-6, rtol=1e-6)
        with torch.no_grad(), learner.as_task(None):
            bare = model(words).logits
    assert not torch.allclose(bare, expected, atol=1e-4), "the weights alone give the same outputs"


# A model that has its learner


@pytest.mark.parametrize("shown", [None, 0, 1])
def test_tracing_a_model_with_scalings_is_refused_with_the_way_out(shown: int | None) -> None:
    case = CASES["mlp"]
    learner = learned("cuber", case, tasks=2)
    x = case.inputs(7, 4)
    with learner.as_task(shown) as model:
        model.eval()
        for trace in (
            lambda: torch.jit.trace(model, x),
            lambda: torch.export.export(model, (x,), dynamic_shapes=(DYNAMIC,)),
        ):
            with pytest.raises(CuberError, match=r"layer 'layers\.0' has a learner.*learner\.export\(task\)"):
                trace()
        # Torch's own exception: 2.13 quotes ours, 2.8 names only its class.
        with pytest.raises(Exception, match="CuberError" if OLD_TORCH else r"learner\.export\(task\)"):
            torch.export.export(model, (x,), strict=True)
        assert torch.isfinite(model(x)).all()


def test_a_model_whose_learner_adds_nothing_to_it_is_traced_as_it_is() -> None:
    case = CASES["many heads"]
    learner = learned("finetune", case, tasks=2)
    x = case.inputs(7, 4)
    with learner.as_task(0) as model:
        model.eval()
        program = torch.export.export(model, (x,), dynamic_shapes=(DYNAMIC,))
    assert torch.allclose(program.module()(x), logits(learner, 0, x), atol=1e-6)
