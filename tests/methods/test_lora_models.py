"""LoRA adapts the chosen layers only, merges into tied weights rightly, and leaves a plain model when it is removed."""

from __future__ import annotations

import copy
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cuber
from cuber.errors import CuberError, CuberWarning
from tests.methods.lora import adamw, learn, loss_fn, tasks, train, vit
from tests.methods.test_attention import Padded

pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")


class Nested(nn.Module):
    """Layers whose names end in the name of another layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.ModuleDict({"fc": nn.Linear(3, 16)})
        self.fc = nn.Linear(16, 32)
        self.classifier = nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.relu(self.fc(torch.relu(self.stem["fc"](x)))))


def points(task: int, features: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(32, features, generator=generator)
    return [(x, (x[:, 0] > 0).long())]


def adapted(model: nn.Module) -> set[str]:
    """Return the names of the layers that have an adapter, with the adapter's name."""
    names = (name for name, _ in model.named_parameters() if ".lora_A." in name)
    return {name.removesuffix(".weight").replace(".lora_A", "") for name in names}


def chosen(learner: cuber.LoRA) -> set[str]:
    return {f"{layer}.{adapter}" for adapter, ranks in learner.ranks.items() for layer in ranks}


def test_a_layer_without_free_directions_gets_no_adapter_although_its_name_ends_in_that_of_another() -> None:
    model = Nested()
    learner, x = cuber.LoRA(model, rank=2, eps1=2.0, threshold=0.9), points(0)[0][0]
    learn(learner, points(0))
    stem = model.stem["fc"]
    with torch.no_grad(), learner.as_task(0):
        before = stem(x)
    with pytest.warns(CuberWarning, match=r"'stem\.fc' with 0"):
        learn(learner, points(1), epochs=20)
    assert learner.ranks["task_1"] == {"fc": 2}
    assert adapted(model) == chosen(learner)
    with torch.no_grad(), learner.as_task(0):
        assert torch.equal(stem(x), before)


def test_a_convolution_gets_no_adapter_although_its_name_ends_in_that_of_a_linear_layer() -> None:
    torch.manual_seed(0)
    patch = nn.Sequential()
    patch.add_module("proj", nn.Conv2d(1, 4, 4, stride=4))
    model = nn.Sequential()
    for name, module in {
        "patch": patch,
        "flat": nn.Flatten(),
        "proj": nn.Linear(16, 8),
        "score": nn.Linear(8, 2),
    }.items():
        model.add_module(name, module)
    learner = cuber.LoRA(model, rank=2)
    learn(learner, tasks(1)[0])
    assert adapted(model) == chosen(learner) == {"proj.task_0"}


def test_a_head_gets_no_adapter_although_its_number_is_that_of_a_layer_and_the_state_can_be_loaded_in_mid_task() -> (
    None
):
    def sequential() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 2))

    learner = cuber.LoRA(sequential(), rank=2, output_layers=["4"])
    data = points(0, 12)
    learner.begin_task(data, loss_fn)
    train(learner, learner.model, data, learner.wrap(adamw(learner.parameters())))
    assert adapted(learner.model) == chosen(learner) == {"0.task_0", "2.task_0"}
    saved = copy.deepcopy((learner.state_dict(), learner.model.state_dict()))
    resumed = cuber.LoRA(sequential(), rank=2, output_layers=["4"])
    resumed.load_state_dict(saved[0])
    resumed.model.load_state_dict(saved[1])
    assert torch.equal(resumed.model(data[0][0]), learner.model(data[0][0]))


def test_a_dot_in_a_name_is_a_dot_and_each_layer_has_the_rank_and_scale_of_its_own() -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"a": nn.ModuleDict({"b": nn.Linear(6, 6)}), "axb": nn.Linear(6, 6), "b": nn.Linear(6, 6)})
    adapters = cuber.layers.adapters.Adapters(model, scale=3.0)
    adapters.add("one", {"a.b": 2, "axb": 4})
    assert adapted(model) == {"a.b.one", "axb.one"}
    assert (adapters.down("one", "a.b").shape, adapters.down("one", "axb").shape) == ((2, 6), (4, 6))
    assert [model.get_submodule(name).scaling["one"] for name in ("a.b", "axb")] == [3.0, 3.0]


# Tied weights


def sequences(task: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(task)
    x = torch.randn(32, 5, 8, generator=generator)
    return [(x, (x[:, 0, 0] > 0).long())]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_layers_of_torchs_own_transformer_get_adapters_although_fused_kernels_pass_them_by_in_evaluation() -> None:
    torch.manual_seed(0)
    model, x = Padded(), sequences(0)[0][0]
    learner = cuber.LoRA(model, rank=1, threshold=0.8, targets=["linear1", "linear2"], output_layers=["head"])
    for task in range(2):
        learn(learner, sequences(task))
        assert set(learner.ranks[f"task_{task}"]) == {f"encoder.layers.{n}.linear{m}" for n in (0, 1) for m in (1, 2)}
    model.eval()
    for task in range(2):
        with learner.as_task(task):
            slow = model(x).detach()
            with torch.no_grad():
                assert torch.equal(model(x), slow)
        with torch.no_grad():
            assert torch.allclose(learner.export(task)(x), slow, atol=1e-5)


class Hidden(nn.Module):
    """Does not call some of its layers where no gradients are wanted."""

    def __init__(self, *hidden: str) -> None:
        super().__init__()
        self.hidden = hidden
        self.first, self.second, self.classifier = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        for name in ("first", "second"):
            layer = self.get_submodule(name)
            fused = name in self.hidden and not torch.is_grad_enabled()
            x = torch.relu(nn.functional.linear(x, layer.weight, layer.bias) if fused else layer(x))
        return self.classifier(x)


def test_layers_that_get_no_adapter_because_they_are_not_called_are_named_once() -> None:
    learner = cuber.LoRA(Hidden("second"), rank=1, threshold=0.4)
    with pytest.warns(CuberWarning, match=r"^no adapter for second, whose weights .*: choose .*targets=") as caught:
        learner.begin_task(points(0), loss_fn)
    assert [warning.filename for warning in caught] == [__file__]
    assert learner.ranks == {"task_0": {"first": 1}}
    learner.wrap(adamw(learner.parameters()))
    learner.end_task(points(0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learn(learner, points(1))
    learner = cuber.LoRA(Hidden("first", "second"), rank=1)
    with pytest.raises(CuberError, match=r"^task 0: no adapter for first, second, whose weights .*: choose .*targets="):
        learner.begin_task(points(0), loss_fn)
    assert (learner.ranks, learner.task) == ({}, None)


@pytest.mark.parametrize("named", [True, False])
def test_the_output_projection_of_attention_gets_no_adapter_and_is_named_where_it_was_chosen(named: bool) -> None:
    targets = ["linear1", "out_proj"] if named else None
    learner = cuber.LoRA(Padded(), rank=1, targets=targets, output_layers=["head"])
    said = r"no adapter for encoder.layers.0.self_attn.out_proj, encoder.layers.1.self_attn.out_proj,"
    with pytest.warns(CuberWarning, match=said) if named else nullcontext():
        learner.begin_task(sequences(0), loss_fn)
    assert not any("out_proj" in layer for layer in learner.ranks["task_0"])


def language_model(name: str) -> Any:
    torch.manual_seed(0)
    if name == "GPT-2":
        config = transformers.GPT2Config(
            vocab_size=30, n_positions=6, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
        )
        return transformers.GPT2LMHeadModel(config).eval()
    if name == "BERT":
        sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=30, **sizes)).eval()
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=30, **sizes, decoder_start_token_id=0)
    ).eval()


def words(task: int) -> dict[str, Tensor]:
    x = torch.randint(1 + 8 * task, 12 + 8 * task, (16, 6), generator=torch.Generator().manual_seed(task))
    return {"input_ids": x, "labels": x}


def learned_language(method: type[cuber.Method], name: str) -> Any:
    """Return a learner that has learned two tasks, of a model whose output layer is tied to its embedding."""
    settings: dict[str, Any] = {"rank": 2, "threshold": 0.99} if method is cuber.LoRA else {}
    learner = method(language_model(name), eps1=0.0, forward=lambda model, batch: model(**batch).loss, **settings)
    for task in range(2):
        learner.begin_task([words(task)])
        optimizer = learner.wrap(torch.optim.AdamW(learner.parameters(), lr=0.01))
        for _ in range(4):
            optimizer.zero_grad()
            learner.loss(words(task)).backward()
            optimizer.step()
        learner.end_task([words(task)])
    return learner


@pytest.mark.parametrize(
    ("method", "name"),
    [(cuber.LoRA, "GPT-2"), (cuber.LoRA, "BERT"), (cuber.LoRA, "T5"), (cuber.TRGP, "GPT-2"), (cuber.TRGP, "T5")],
)
def test_an_export_of_tied_weights_answers_the_same_and_stays_untied(
    method: type[cuber.Method], name: str, tmp_path: Path
) -> None:
    learner = learned_language(method, name)
    with torch.no_grad(), learner.as_task(1) as model:
        expected = model(**words(1)).logits
    plain = learner.export(1)
    plain.save_pretrained(tmp_path)
    loaded = type(plain).from_pretrained(tmp_path).eval()

    def same(other: Any) -> bool:
        with torch.no_grad():
            return torch.allclose(other(**words(1)).logits, expected, atol=1e-5)

    assert same(plain)
    assert same(loaded)
    assert learner.model.config.tie_word_embeddings
    assert plain.config.tie_word_embeddings == (name == "T5")  # whose configuration cannot say that it is untied
    if name != "T5":
        plain.tie_weights()
        assert same(plain)
        fresh = type(plain)(plain.config).eval()
        fresh.load_state_dict(plain.state_dict())
        assert same(fresh)


def test_a_layer_in_two_places_is_merged_in_the_place_that_has_the_adapter() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(12, 12)
    model = cuber.MultiHead(nn.Sequential(layer, nn.Tanh(), layer), 12, [2])
    learner, x = cuber.LoRA(model, rank=2), points(0, 12)[0][0]
    learn(learner, points(0, 12))
    with torch.no_grad(), learner.as_task(0):
        assert torch.allclose(learner.export(0)(x), model(x), atol=1e-6)


# Detaching


def is_plain(model: nn.Module) -> bool:
    kinds = {type(module).__module__.split(".")[0] for module in model.modules()}
    return not kinds & {"peft", "cuber"} and not any("forward" in vars(module) for module in model.modules())


def test_detach_merges_what_serves_all_tasks_keeps_the_shown_head_and_names_what_is_lost() -> None:
    model, data = vit(), tasks(2)
    names, learner = list(model.state_dict()), cuber.LoRA(model, rank=4)
    for each in data:
        learn(learner, each)
    x = data[1][0][0]
    head = model.classifier.heads[1]
    model.eval()
    with torch.no_grad(), learner.as_task(None):
        expected = model(x).logits
    with pytest.warns(CuberWarning, match=r"these are lost: adapters of task 1; heads of task 0\. ") as caught:
        learner.detach()
    assert [warning.filename for warning in caught] == [__file__]
    assert is_plain(model)
    assert list(model.state_dict()) == names
    assert model.classifier is head
    assert all(parameter.requires_grad for parameter in model.parameters())
    with torch.no_grad():
        assert torch.allclose(model(x).logits, expected, atol=1e-5)
    learner.detach()
    learn(cuber.LoRA(model, rank=4), data[0])


def test_detach_is_silent_where_the_model_has_all_that_its_tasks_need() -> None:
    data = tasks(2)
    learner = cuber.LoRA(vit(), rank=4, eps1=2.0)
    for each in data:
        learn(learner, each)
    learner.export(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner.detach()
        unused = vit()
        cuber.LoRA(unused, rank=4).detach()
    assert is_plain(unused)


def test_detach_in_mid_task_keeps_what_the_task_has_learned() -> None:
    model, data = vit(), tasks(1)[0]
    learner = cuber.LoRA(model, rank=4)
    learner.begin_task(data, loss_fn)
    train(learner, model, data, learner.wrap(adamw(learner.parameters())))
    model.eval()
    with torch.no_grad():
        expected = model(data[0][0]).logits
    learner.detach()
    with torch.no_grad():
        assert torch.allclose(model(data[0][0]).logits, expected, atol=1e-5)


# What print shows


def test_print_counts_up_projections_as_trained_and_the_model_as_frozen_by_the_learner() -> None:
    model, data = vit(), tasks(2)
    model.vit.layernorm.requires_grad_(False)
    base = sum(p.numel() for name, p in model.named_parameters() if "classifier" not in name and p.requires_grad)
    learner = cuber.LoRA(model, rank=4)
    assert "nothing is trained before the first task" in str(learner)
    for each in data:
        learn(learner, each)
    said = str(learner).splitlines()
    ups = {name: sum(learner.adapters.up(name, layer).numel() for layer in own) for name, own in learner.ranks.items()}
    shared, private = ups["task_0"] + ups["task_1"], ups["task_1_reuse"]
    share, trained = 100 * shared / (shared + private), shared + private
    protected = f"{share:.1f} % of {trained:,} trained parameters in protected layers"
    assert said[1] == f"  {protected}, {100 - share:.1f} % per task"
    assert said[2] == f"  heads: {2 * (2 * 48 + 2)} parameters, not counted above"
    assert said[3] == f"  frozen by the learner: {base:,} parameters, not counted above"
    assert said[4] == "  frozen by you: 1 layer (vit.layernorm)"
