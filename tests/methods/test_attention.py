"""Transformers: what attention packs is a layer, and no fused kernel reads the weights past the scalings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cuber import CUBER, GPM, TRGP, FineTune
from cuber.errors import CuberError
from cuber.layers import ProtectedLayer
from cuber.subspace import Scaling
from tests.loops import Watch, learn, logits, loss_fn, train
from tests.models import CASES, encoder_layer

CASE = CASES["transformer"]


class Padded(nn.Module):
    """A TransformerEncoder that is told which positions are padding."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.encoder, self.head = nn.TransformerEncoder(encoder_layer(0.0), layers), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[:, -1] = True
        return self.head(self.encoder(x, src_key_padding_mask=padding)[:, 0])


def test_the_packed_projections_and_the_output_projection_are_layers() -> None:
    learner = CUBER(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    attention = "parts.0.self_attn"
    parts = [f"{attention}.in_proj_weight", f"{attention}.out_proj"]
    assert list(learner.layers) == [*parts, "parts.0.linear1", "parts.0.linear2", "head"]
    assert not any(attention in name for name in learner.uncovered_parameters)


class Attending(nn.Module):
    """Attention to the input itself, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].flatten(1))


def change_of_old_outputs(method: Any) -> float:
    torch.manual_seed(0)
    learner = method(Attending())
    x = torch.randn(1, 3, 8)
    learn(learner, [(x, torch.tensor([0]))])
    before = logits(learner, 0, x)
    learn(learner, [(torch.randn(2, 3, 8), torch.tensor([1, 2]))], lambda p: torch.optim.AdamW(p, lr=0.02), epochs=20)
    return float((logits(learner, 0, x) - before).norm())


def test_attention_keeps_its_outputs_for_old_inputs() -> None:
    kept = change_of_old_outputs(lambda model: GPM(model, threshold=1.0))  # which leaves 0.1 % of the energy
    assert kept < 0.05 * change_of_old_outputs(FineTune)


def scaled(case_name: str) -> TRGP:
    """A transformer in its first task, with scalings put on by hand as a later task would have them."""
    learner = TRGP(CASES[case_name].model(), eps1=0.0)
    learn(learner, CASES[case_name].loader(0))
    learner.model.eval()
    give_scalings(learner.layers)
    return learner


def give_scalings(layers: dict[str, ProtectedLayer]) -> None:
    for layer in layers.values():
        basis = torch.linalg.qr(torch.randn(layer.dimension, 3)).Q
        layer.scaling = Scaling(basis, torch.ones(1, 3, dtype=torch.bool), [], like=layer.parameter)
        layer.scaling.matrix.data = 0.5 * torch.randn(3, 3)


@pytest.mark.parametrize("name", ["transformer", "transformer on words"])
def test_without_gradients_in_evaluation_the_fused_kernels_do_not_pass_the_scalings_by(name: str) -> None:
    learner = scaled(name)
    x = CASES[name].inputs(0, 4)
    slow = learner.model(x).detach()  # gradients are on: no fused kernel
    with torch.no_grad():
        fast = learner.model(x)
        bare = logits(learner, None, x)
    assert torch.allclose(fast, slow, atol=1e-6)
    assert not torch.allclose(bare, slow, atol=1e-3)


def test_the_fused_kernels_would_pass_the_scalings_by_and_come_back_after_detaching() -> None:
    """The test above can fail: this is what it guards against."""
    model: Any = CASE.model().eval()
    taken = []
    fused = torch._transformer_encoder_layer_fwd

    def spy(*args: Any) -> Tensor:
        taken.append(1)
        return fused(*args)

    patch = pytest.MonkeyPatch()
    patch.setattr(torch, "_transformer_encoder_layer_fwd", spy)
    try:
        with torch.no_grad():
            model(CASE.inputs(0, 4))
            assert len(taken) == 1
            learner = CUBER(model)
            model(CASE.inputs(0, 4))
            assert len(taken) == 1
            learner.detach()
            model(CASE.inputs(0, 4))
            assert len(taken) == 2
    finally:
        patch.undo()


def test_a_transformer_learns_three_tasks_and_keeps_what_it_protects() -> None:
    learner = CUBER(CASE.model(), eps1=0.2, eps2=1.1, threshold=0.7)
    for task in range(3):
        loader = CASE.loader(task)
        learner.begin_task(loader, loss_fn)
        watch = Watch.over(learner)
        train(learner, learner.wrap(torch.optim.AdamW(learner.parameters(), lr=0.01)), loader, after_step=watch.held)
        learner.end_task(loader)
    x = CASE.inputs(0, 4)
    with learner.as_task(2) as model:
        model.eval()
        slow = model(x).detach()
        with torch.no_grad():
            assert torch.allclose(model(x), slow, atol=1e-6)


@pytest.mark.parametrize("setting", ["threshold", "samples"])
def test_a_list_has_one_value_for_each_layer_that_repr_calls_protected(setting: str) -> None:
    learner = CUBER(CASE.model())
    learner.begin_task(CASE.loader(0), loss_fn)
    count = sum("directions protected" in line for line in repr(learner).splitlines())
    learner.detach()
    values = [0.9] * count if setting == "threshold" else [10] * count
    learn(learner := CUBER(CASE.model(), **{setting: values}), CASE.loader(0))
    assert len(learner.memory) == count
    with pytest.raises(CuberError, match=setting):
        learn(CUBER(CASE.model(), **{setting: [*values, values[0]]}), CASE.loader(0))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_sequences_which_torch_packs_in_evaluation_are_seen_like_any_other() -> None:
    torch.manual_seed(0)
    model = Padded()
    learner = CUBER(model)
    learn(learner, CASE.loader(0))
    learner.model.eval()
    give_scalings(learner.layers)
    x = CASE.inputs(0, 4)
    slow = model(x).detach()
    with torch.no_grad():
        assert torch.allclose(model(x), slow, atol=1e-6)


def test_attention_called_with_the_sequence_first_works() -> None:
    class SequenceFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.linear(x.transpose(0, 1)).relu().mean(0))

    learner = CUBER(SequenceFirst(), eps1=0.0, samples=10)
    for task in range(3):
        learn(learner, CASE.loader(task))
    assert learner.memory["linear"].size
