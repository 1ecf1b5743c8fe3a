"""LoRA: adapters in free directions leave the outputs of old tasks, whatever the optimizer does."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cuber
from cuber.errors import CuberError, CuberWarning
from cuber.layers.rule import rule_for
from cuber.methods.adapted import private, shared
from tests.methods.lora import adamw, learn, loss_fn, tasks, train, vit

peft = pytest.importorskip("peft")
pytest.importorskip("transformers")


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5, momentum=0.9)


def test_rows_are_orthonormal_and_outside_the_pool_and_nothing_but_up_projections_and_the_own_head_is_trained() -> None:
    model = vit()
    learner = cuber.LoRA(model, rank=4)
    for number, data in enumerate(tasks()):
        pools = {name: memory.basis.clone() for name, memory in learner.memory.items()}
        learner.begin_task(data, loss_fn)
        ups = [learner.adapters.up(adapter, name) for adapter in learner.adapters.trained for name in learner.layers]
        head = model.classifier.heads[number]
        assert {id(p) for p in learner.parameters()} == {id(p) for p in [*ups, *head.parameters()]}
        for name, pool in pools.items():
            rows = learner.adapters.down(shared(number), name)
            assert torch.allclose(rows @ rows.mT, torch.eye(4), atol=1e-5)
            assert torch.allclose(rows @ pool, torch.zeros(4, pool.shape[1]), atol=1e-5)
        trained = {id(p) for p in learner.parameters()}
        before = {name: p.clone() for name, p in model.named_parameters() if id(p) not in trained}
        optimizer = learner.wrap(adamw(model.parameters()))  # frozen parameters included
        train(learner, model, data, optimizer)
        assert all(up.abs().max() > 0 for up in ups)
        after = dict(model.named_parameters())
        assert all(torch.equal(after[name], value) for name, value in before.items())
        learner.end_task(data)


def test_a_task_trains_at_most_rank_times_in_plus_out_numbers_per_layer() -> None:
    learner = cuber.LoRA(vit(), rank=4)
    for data in tasks():
        learner.begin_task(data, loss_fn)
        for name, layer in learner.layers.items():
            count = sum(
                learner.adapters.up(adapter, name).numel()
                for adapter in learner.adapters.trained
                if name in learner.ranks[adapter]
            )
            assert 0 < count <= 4 * (layer.dimension + layer.outputs)
        learner.wrap(adamw(learner.parameters()))
        learner.end_task(data)
    assert any(private(2) == adapter for adapter in learner.ranks)


def outputs_of(learner: cuber.LoRA, x: Tensor, task: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return each adapted layer's inputs, and its outputs without the bias."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = [
        learner.model.get_submodule(name).register_forward_pre_hook(
            lambda module, inputs, name=name: found.update({name: (inputs[0], inputs[0] @ learner.weight(name).mT)})
        )
        for name in learner.layers
    ]
    with torch.no_grad(), learner.as_task(task):
        learner.model(x)
    for hook in hooks:
        hook.remove()
    return found


def largest_change(make_optimizer: Any, **settings: Any) -> float:
    """Return the largest relative change of a layer's outputs for the inputs that old tasks gave it."""
    learner = cuber.LoRA(vit(), rank=4, **settings)
    old = []
    for number, data in enumerate(tasks()):
        learn(learner, data, make_optimizer)
        old.append(outputs_of(learner, torch.cat([x for x, _ in data]), number))
    changes = [0.0]
    for number, layers in enumerate(old[:-1]):
        with learner.as_task(number):
            for name, (x, before) in layers.items():
                changes.append(float((x @ learner.weight(name).mT - before).norm() / before.norm()))
    return max(changes)


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_after_three_tasks_no_layers_output_for_old_inputs_has_changed_by_more_than_1e_3(make_optimizer: Any) -> None:
    assert 0 < largest_change(make_optimizer) <= 1e-3


def test_without_the_bound_on_updates_a_low_threshold_leaks() -> None:
    assert largest_change(adamw, threshold=0.9, tolerance=1e9) > 0.02
    assert largest_change(adamw, threshold=0.9) <= 1e-3


def test_what_is_reused_is_active_for_its_own_task_alone() -> None:
    learner, data = cuber.LoRA(vit(), rank=4, tolerance=0.0), tasks()
    for each in data:
        learn(learner, each)
    assert {private(1), private(2)} <= learner.ranks.keys()
    for number in range(3):
        with learner.as_task(number):
            assert private(number) in learner.adapters.active or number == 0
            assert not {private(other) for other in range(3) if other != number} & set(learner.adapters.active)
            assert {shared(other) for other in range(3)} <= set(learner.adapters.active)
    assert not any(private(number) in cuber_without_reuse(data).ranks for number in range(2))


def cuber_without_reuse(data: Any) -> cuber.LoRA:
    learner = cuber.LoRA(vit(), rank=4, eps1=2.0)
    for each in data[:2]:
        learn(learner, each, epochs=1)
    return learner


def test_merged_models_are_plain_and_answer_the_same(tmp_path: Path) -> None:
    model = vit()
    names = list(model.state_dict())
    learner, data = cuber.LoRA(model, rank=4), tasks()
    for each in data:
        learn(learner, each)
    for number, each in enumerate(data):
        x = each[0][0]
        merged = learner.export(number)
        merged.save_pretrained(tmp_path / str(number))
        loaded = type(vit()).from_pretrained(tmp_path / str(number))
        assert type(merged) is type(model)
        assert list(merged.state_dict()) == names
        assert not any(
            "peft" in type(module).__module__ or "cuber" in type(module).__module__ for module in merged.modules()
        )
        assert not any("forward" in vars(module) for module in merged.modules())
        with torch.no_grad(), learner.as_task(number):
            expected = model(x).logits
            assert torch.allclose(merged.eval()(x).logits, expected, atol=1e-5)
            assert torch.allclose(loaded.eval()(x).logits, expected, atol=1e-5)
    assert not torch.allclose(learner.export(0)(x).logits, learner.export(2)(x).logits, atol=1e-2)


def test_peft_saves_the_adapters_and_loads_them_again(tmp_path: Path) -> None:
    from peft import PeftModel

    base = vit()
    learner, data = cuber.LoRA(copy.deepcopy(base), rank=4), tasks(2)
    for each in data:
        learn(learner, each)
    learner.peft_model.save_pretrained(tmp_path)
    loaded = PeftModel.from_pretrained(base, tmp_path / "task_0", adapter_name="task_0")
    for name in learner.ranks.keys() - {"task_0"}:
        loaded.load_adapter(tmp_path / name, name)
    loaded.base_model.set_adapter(learner.adapters.active)
    x = data[0][0][0]
    with torch.no_grad(), learner.as_task(1):
        ours = learner.model.vit(x).last_hidden_state
        assert torch.allclose(loaded.base_model.model.vit(x).last_hidden_state, ours, atol=1e-6)


@pytest.mark.parametrize("task", [0, 1])
def test_a_run_that_is_resumed_in_mid_task_gives_the_same_bits(task: int) -> None:
    data = tasks()
    learner = cuber.LoRA(vit(), rank=4)
    for each in data[:task]:
        learn(learner, each)
    learner.begin_task(data[task], loss_fn)
    optimizer = learner.wrap(adamw(learner.parameters()))
    train(learner, learner.model, data[task], optimizer)
    saved = copy.deepcopy((learner.state_dict(), learner.model.state_dict(), optimizer.state_dict()))

    resumed = cuber.LoRA(vit(seed=1), rank=4)
    resumed.load_state_dict(saved[0])
    resumed.model.load_state_dict(saved[1])
    resumed.resume_task(loss_fn)
    other = resumed.wrap(adamw(resumed.parameters()))
    other.load_state_dict(saved[2])
    for one, its_optimizer in ((learner, optimizer), (resumed, other)):
        torch.manual_seed(5)  # the new head of the next task
        train(one, one.model, data[task], its_optimizer)
        one.end_task(data[task])
        learn(one, data[task + 1])
    weights = resumed.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in learner.model.state_dict().items())
    assert learner.budgets == resumed.budgets


def test_a_state_that_cannot_be_loaded_changes_nothing() -> None:
    data = tasks()
    learner, other = cuber.LoRA(vit(), rank=4), cuber.LoRA(vit(), rank=4, targets=list(cuber.LoRA(vit()).layers)[:1])
    learn(learner, data[0])
    learn(other, data[0])
    before = copy.deepcopy(learner.model.state_dict())
    with pytest.raises(CuberError, match="other targets"):
        learner.load_state_dict(other.state_dict())
    after = learner.model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    learn(learner, data[1])


def test_a_task_that_is_refused_leaves_no_adapter_and_no_head() -> None:
    model = vit()
    learner, data = cuber.LoRA(model, rank=4), tasks(2)
    learn(learner, data[0])
    names = list(model.state_dict())
    with pytest.raises(CuberError):
        learner.begin_task([(torch.randn(4, 3), torch.zeros(4).long())], loss_fn)
    assert list(model.state_dict()) == names
    learn(learner, data[1])


def linear_tasks(count: int) -> list[Any]:
    x = 3 * torch.eye(12)
    return [[(x[:, torch.arange(12).roll(number)], torch.arange(12) % 2)] for number in range(count)]


def multi_head(tasks: int) -> cuber.MultiHead:
    torch.manual_seed(0)
    return cuber.MultiHead(nn.Sequential(nn.Linear(12, 10), nn.ReLU()), 10, [2] * tasks)


def test_learn_takes_a_model_without_heads_although_nothing_is_trained_before_the_first_task() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 2))
    ((x, y),) = linear_tasks(1)[0]
    tasks = [cuber.Task(f"{own}", (x[own], y[own]), (x[own], y[own])) for own in (slice(0, 4), slice(4, 8))]
    stream = cuber.Stream("one head", tasks, shared_head=True)
    result = cuber.learn(cuber.LoRA(model, rank=2), stream, epochs=2, lr=0.1, optimizer=torch.optim.AdamW)
    assert result.training["optimizer"] == "AdamW"
    assert len(result.accuracy) == 2


def test_where_fewer_directions_than_rank_are_free_it_uses_them_and_says_so() -> None:
    half = [[(x[:9], y[:9])] for ((x, y),) in linear_tasks(1)] * 2
    learner = cuber.LoRA(multi_head(2), rank=4, eps1=2.0)
    learn(learner, half[0])
    said = r"task 1: 1 of 1 adapted layers .* 'backbone.0' with 3;.* lower threshold= or rank=, or adapt fewer layers"
    with pytest.warns(CuberWarning, match=said) as caught:
        learner.begin_task(half[1], loss_fn)
    assert [warning.filename for warning in caught] == [__file__]
    assert learner.ranks["task_1"] == {"backbone.0": 3}


def test_where_nothing_is_free_it_says_what_to_do() -> None:
    first, second = linear_tasks(2)
    learner = cuber.LoRA(multi_head(2), rank=4, eps1=2.0)
    learn(learner, first)
    with pytest.raises(CuberError, match="no free direction in any adapted layer"):
        learner.begin_task(second, loss_fn)
    assert list(learner.ranks) == ["task_0"]


def test_where_nothing_is_free_old_subspaces_can_be_reused() -> None:
    first, second = linear_tasks(2)
    model = multi_head(2)
    learner = cuber.LoRA(model, rank=4)
    learn(learner, first, epochs=30)
    with torch.no_grad(), learner.as_task(0):
        before = model(first[0][0])
    with pytest.warns(CuberWarning, match="with 0;"):
        learn(learner, second, epochs=30)
    assert list(learner.ranks) == ["task_0", "task_1_reuse"]
    with torch.no_grad(), learner.as_task(0):
        assert torch.equal(model(first[0][0]), before)


def test_the_model_keeps_its_mode_and_its_gradients_are_given_back() -> None:
    model = vit().eval()
    model.vit.layernorm.weight.requires_grad_(False)
    learner = cuber.LoRA(model, rank=4)
    learn(learner, tasks(1)[0])
    assert not model.training
    learner.detach()
    assert not model.vit.layernorm.weight.requires_grad
    assert model.vit.layernorm.bias.requires_grad


def test_the_transposed_weights_of_gpt2_are_adapted_and_exported() -> None:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=30, n_positions=6, n_embd=32, n_layer=1, n_head=2, num_labels=2, pad_token_id=0)
    model = GPT2ForSequenceClassification(config).eval()
    if rule_for(model.transformer.h[0].attn.c_attn) is None:
        pytest.skip("no rule for Conv1D")
    learner = cuber.LoRA(model, rank=4, targets=["c_attn", "c_fc"])
    assert [(layer.outputs, layer.dimension) for layer in learner.layers.values()] == [(96, 32), (128, 32)]
    data = [[(torch.randint(1 + 8 * n, 9 + 8 * n, (16, 6)), torch.arange(16) % 2)] for n in range(2)]
    learn(learner, data[0])
    old = outputs_of(learner, data[0][0][0], 0)
    learn(learner, data[1])
    with torch.no_grad(), learner.as_task(0):
        for name, (x, before) in old.items():
            assert (x @ learner.weight(name).mT - before).norm() <= 1e-3 * before.norm()
        expected = model(data[0][0][0]).logits
    assert torch.allclose(learner.export(0)(data[0][0][0]).logits, expected, atol=1e-5)


def test_the_code_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide = Path(__file__).parents[2] / "docs" / "lora.md"
    (code,) = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    torch.manual_seed(0)
    scope: dict[str, Any] = {}
    exec(code, scope)
    x, plain = scope["loaders"][0][0][0], scope["plain"].eval()
    loaded = type(plain).from_pretrained("task-0").eval()
    assert torch.equal(loaded(x).logits, plain(x).logits)
    assert {path.name for path in Path("adapters").iterdir()} >= {"task_0", "task_1", "task_2"}


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(CuberError, match=r"^LoRA needs pip install 'cuber-learn\[lora\]' \("):
        cuber.LoRA(multi_head(1))


def test_bad_arguments_are_explained() -> None:
    with pytest.raises(CuberError, match=r"no linear layer of the model is called 'qery' \(linear layers: .*\w+, \w+"):
        cuber.LoRA(vit(), targets=["qery"])
    with pytest.raises(CuberError, match="output_layers names 'head'"):
        cuber.LoRA(vit(), output_layers=["head"])
    with pytest.raises(CuberError, match="no linear layer to adapt"):
        cuber.LoRA(nn.Sequential(nn.Conv2d(1, 2, 3)))
    with pytest.raises(CuberError, match="no max_rank"):
        cuber.LoRA(vit(), max_rank=3)
    with pytest.raises(CuberError, match="has adapters of peft already"):
        cuber.LoRA(peft.get_peft_model(vit(), peft.LoraConfig(target_modules="all-linear")))
