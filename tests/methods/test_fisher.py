"""The Fisher of every model is the one that comes of looking at one sample at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuber import CuberWarning
from cuber.core import fisher as machinery
from cuber.core.fisher import fisher_diagonal
from cuber.layers import Normalization
from tests.models import CASES, CLASSES, Case, Loader, cases, encoder_layer
from tests.oracles import ewc as oracle

Loss = Callable[[Any], Tensor]


def cross_entropy(model: nn.Module) -> Loss:
    return lambda batch: functional.cross_entropy(model(batch[0]), batch[1])


def held(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad and not name.startswith("heads.")]


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float = 1e-10) -> bool:
    return ours.keys() == theirs.keys() and all(
        (ours[name] - theirs[name]).norm() <= tolerance * theirs[name].norm() for name in theirs
    )


@pytest.fixture
def one_by_one_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many samples at once, but for the two that are tried alone."""
    monkeypatch.setattr("cuber.core.fisher.warnings.warn", lambda *_, **__: pytest.fail("one sample at a time"))


@pytest.mark.filterwarnings("error:There is a performance drop")  # torch's own way of going one by one
@pytest.mark.usefixtures("one_by_one_is_forbidden")
@pytest.mark.parametrize("case", cases(but=frozenset({"recurrent"})))  # one sample at a time
def test_every_model_against_one_sample_at_a_time(case: Case) -> None:
    model = case.model(dtype=torch.float64)
    loader = case.loader(0, samples=20, batch_size=7, dtype=torch.float64)
    model(loader[0][0])  # running statistics that are not those of the first day
    expected = oracle.fisher(copy.deepcopy(model), held(model), loader)
    assert any(values.any() for values in expected.values())
    assert same(fisher_diagonal(model, cross_entropy(model), loader), expected)


@pytest.mark.parametrize("name", ["mlp", "grouped strided dilated cnn", "residual block"])
def test_it_knows_nothing_of_batches(name: str) -> None:
    case = CASES[name]
    model = case.model(dtype=torch.float64)
    model(case.inputs(0, 9, torch.float64))
    of_batches = [
        fisher_diagonal(model, cross_entropy(model), case.loader(0, 12, batch_size, torch.float64))
        for batch_size in (1, 5, 12)
    ]
    assert same(of_batches[0], of_batches[2])
    assert same(of_batches[1], of_batches[2])


def test_layers_that_a_rule_covers_need_no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machinery._Fisher, "_squares_by_func", lambda *_: pytest.fail("not by the layers"))
    for name in ("mlp", "cnn", "grouped strided dilated cnn", "conv1d", "conv3d", "layer used twice", "tied layers"):
        case = CASES[name]
        model = case.model()
        fisher_diagonal(model, cross_entropy(model), case.loader(0))


# Models that are not what their layers' rules think: each must come out right all the same.


class SequenceFirst(nn.Module):
    """A transformer with positions in the first dimension and samples in the second."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.into(x.transpose(0, 1))).mean(0))


class Bypassed(nn.Module):
    """A layer that is called, and whose weight is also used past it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.linear(self.layer(x).relu(), self.layer.weight))


class OneAtATime(nn.Module):
    """A convolution that the model calls for every sample by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 3, 3)
        self.head = nn.Linear(3, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.stack([self.conv(image).relu().mean((1, 2)) for image in x.unbind()]))


class Overwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


class BareParameters(nn.Module):
    """Weights of no layer, and a layer that nothing reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES, 8))
        self.scale = nn.Parameter(torch.ones(()))
        self.idle = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x @ self.weight.T


ODD: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "sequence first": (SequenceFirst, (5, 8)),
    "as many positions as samples": (SequenceFirst, (8, 8)),
    "weight used past its layer": (Bypassed, (8,)),
    "called for every sample": (OneAtATime, (2, 5, 5)),
    "activations in place": (Overwritten, (8,)),
    "bare parameters": (BareParameters, (8,)),
    "frozen bias": (lambda: freeze(Overwritten(), "parts.0.bias"), (8,)),
    "frozen weight": (lambda: freeze(Overwritten(), "parts.2.weight"), (8,)),
    "weight normalization": (
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, CLASSES)),
        (8,),
    ),
    "one layer": (lambda: nn.Linear(8, CLASSES), (8,)),
}


def freeze(model: nn.Module, name: str) -> nn.Module:
    model.get_parameter(name).requires_grad_(False)
    return model


@pytest.mark.usefixtures("one_by_one_is_forbidden")
@pytest.mark.parametrize("name", ODD)
def test_odd_models_against_one_sample_at_a_time(name: str) -> None:
    build, shape = ODD[name]
    case = Case(name, build, shape)
    model = case.model(dtype=torch.float64)
    loader = case.loader(0, samples=20, batch_size=8, dtype=torch.float64)
    expected = oracle.fisher(copy.deepcopy(model), held(model), loader)
    assert same(fisher_diagonal(model, cross_entropy(model), loader), expected)


@pytest.mark.usefixtures("one_by_one_is_forbidden")
def test_a_loss_that_is_no_mean_over_the_samples_is_taken_sample_by_sample() -> None:
    case = CASES["cnn"]
    model = case.model(dtype=torch.float64)
    loader = case.loader(0, samples=20, batch_size=8, dtype=torch.float64)
    weights = torch.tensor([0.2, 1.0, 5.0]).double()  # of one sample alone, its own weight divides out again
    expected = oracle.fisher(copy.deepcopy(model), held(model), loader)
    weighted = fisher_diagonal(model, lambda b: functional.cross_entropy(model(b[0]), b[1], weights), loader)
    assert same(weighted, expected)


@pytest.mark.usefixtures("one_by_one_is_forbidden")
def test_batches_of_any_make() -> None:
    case = CASES["residual block"]
    model = case.model(dtype=torch.float64)
    loader = case.loader(0, samples=20, batch_size=8, dtype=torch.float64)
    expected = oracle.fisher(copy.deepcopy(model), held(model), loader)
    dictionaries = [{"name": "eight", "in": {"x": x, "scale": torch.ones(3)}, "y": y} for x, y in loader]

    def loss(batch: dict[str, Any]) -> Tensor:
        return functional.cross_entropy(model(batch["in"]["x"]) * batch["in"]["scale"], batch["y"])

    assert same(fisher_diagonal(model, loss, dictionaries), expected)


class Choosy(nn.Module):
    """A model that looks at its numbers, which vmap cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, CLASSES)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (self.scale if float(x.sum()) < 1e6 else 1.0)


def test_what_vmap_cannot_do_is_done_one_sample_at_a_time_with_a_word() -> None:
    case = Case("choosy", Choosy, (8,))
    model = case.model(dtype=torch.float64)
    loader = case.loader(0, samples=20, batch_size=8, dtype=torch.float64)
    expected = oracle.fisher(copy.deepcopy(model), held(model), loader)
    with pytest.warns(
        CuberWarning, match=r"1 parameters, first 'scale', get their gradients one sample at a time"
    ) as told:
        ours = fisher_diagonal(model, cross_entropy(model), loader)
    assert len(told) == 1
    assert same(ours, expected)


def test_sparse_gradients_are_like_any_others() -> None:
    case = Case(
        "words", lambda: nn.Sequential(nn.Embedding(7, 8, sparse=True), nn.Flatten(), nn.Linear(40, 3)), (5,), 7
    )
    model = case.model(dtype=torch.float64)
    loader = case.loader(0, samples=12)
    dense = copy.deepcopy(model)
    dense[0].sparse = False  # type: ignore[index, union-attr]
    with pytest.warns(CuberWarning, match="one sample at a time"):
        ours = fisher_diagonal(model, cross_entropy(model), loader)
    assert same(ours, oracle.fisher(dense, held(dense), loader))


# Batch normalization


def by_hand(model: Any, loader: Loader) -> dict[str, Tensor]:
    """One sample at a time through the residual block, with the mean and variance of its batch as numbers."""
    names = held(model)
    parameters = dict(model.named_parameters())
    total = {name: torch.zeros_like(parameters[name]) for name in names}

    def norm(x: Tensor, batch: Tensor, layer: Any) -> Tensor:
        mean, variance = batch.mean((0, 2, 3), keepdim=True), batch.var((0, 2, 3), unbiased=False, keepdim=True)
        shift, scale = layer.bias[:, None, None], layer.weight[:, None, None]
        return (x - mean.detach()) / (variance.detach() + layer.eps).sqrt() * scale + shift

    for x, y in loader:
        for sample in range(len(y)):
            one = x[sample : sample + 1]
            inner_of_all, inner = model.conv1(x), model.conv1(one)
            hidden_of_all = norm(inner_of_all, inner_of_all, model.norm1).relu()
            hidden = norm(inner, inner_of_all, model.norm1).relu()
            out = norm(model.conv2(hidden), model.conv2(hidden_of_all), model.norm2) + model.shortcut(one)
            loss = functional.cross_entropy(model.head(out.relu().mean((2, 3))), y[sample : sample + 1])
            for name, gradient in zip(names, torch.autograd.grad(loss, list(parameters.values())), strict=True):
                total[name] += gradient.square()
    return {name: values / sum(len(y) for _, y in loader) for name, values in total.items()}


@pytest.mark.usefixtures("one_by_one_is_forbidden")
def test_with_statistics_of_the_batch_they_are_constants() -> None:
    case = CASES["residual block"]
    model = case.model(dtype=torch.float64)
    Normalization(model, "batch")
    loader = case.loader(0, samples=20, batch_size=10, dtype=torch.float64)
    assert same(fisher_diagonal(model, cross_entropy(model), loader), by_hand(model, loader))


# The model is left as it was


@pytest.mark.parametrize("mode", ["task", "batch"])
def test_nothing_is_left_on_the_model(mode: str) -> None:
    case = CASES["residual block"]
    model = case.model()
    Normalization(model, mode)
    model.norm1.eval()  # type: ignore[union-attr]

    def fingerprint() -> list[Any]:
        return [
            (
                module.training,
                module.__dict__.get("forward"),
                len(module._forward_hooks),
                len(module._forward_pre_hooks),
            )
            for module in model.modules()
        ]

    before, state = fingerprint(), copy.deepcopy(model.state_dict())
    random = torch.get_rng_state()
    fisher = fisher_diagonal(model, cross_entropy(model), case.loader(0))
    assert fingerprint() == before
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(values.requires_grad for values in fisher.values())
    assert torch.equal(torch.get_rng_state(), random)


def test_a_model_of_which_nothing_is_trained_has_no_fisher() -> None:
    model = CASES["mlp"].model().requires_grad_(False)
    assert fisher_diagonal(model, cross_entropy(model), CASES["mlp"].loader(0)) == {}


def test_an_encoder_in_evaluation_mode_keeps_its_gradients() -> None:
    """Without gradients, torch's transformers use fused kernels that call no layer."""
    case = Case("encoder", lambda: nn.Sequential(encoder_layer(), nn.Flatten(), nn.Linear(40, CLASSES)), (5, 8))
    model = case.model().eval()
    with torch.no_grad():
        fisher = fisher_diagonal(model, cross_entropy(model), case.loader(0))
    assert all(values.any() for values in fisher.values())
