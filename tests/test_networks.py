"""The multi-layer perceptron and multi-head networks."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from cuber import CuberError, MultiHead
from cuber.networks import MLP
from cuber.networks.heads import can_mix, head_parameters, heads_of, mixed_loss


def test_the_perceptron_is_linear_layers_with_a_relu_between_and_no_biases() -> None:
    model = MLP(6, 5, 4, 3)
    x = torch.randn(7, 2, 3)  # images are flattened
    first, second, third = (layer.weight for layer in model.layers)
    expected = ((x.flatten(1) @ first.T).relu() @ second.T).relu() @ third.T
    assert torch.allclose(model(x), expected, atol=1e-6)
    assert [name for name, _ in model.named_parameters()] == [f"layers.{i}.weight" for i in range(3)]
    assert (MLP(6, 5, last_relu=True)(x) >= 0).all()
    assert model.layers[0].bias is None
    assert MLP(6, 5, bias=True).layers[0].bias is not None


def test_the_chosen_head_answers() -> None:
    model = MultiHead(nn.Flatten(), features=6, classes_per_task=[2, 3])
    x = torch.randn(4, 2, 3)
    for task, classes in enumerate((2, 3)):
        model.select_task(task)
        assert torch.equal(model(x), model.heads[task](x.flatten(1)))
        assert model(x).shape == (4, classes)


@pytest.mark.parametrize("task", [-1, 2, 7])
def test_a_head_that_is_not_there_is_named_with_the_remedy(task: int) -> None:
    model = MultiHead(nn.Flatten(), 6, [2, 3])
    with pytest.raises(CuberError, match=rf"heads for tasks 0 to 1 but not for task {task}.*add_head\(classes\)"):
        model.select_task(task)
    assert model.task == 0


def test_a_head_may_be_added_and_is_like_the_rest() -> None:
    model = MultiHead(nn.Linear(6, 6), 6, [2]).double()
    model.add_head(5, bias=False)
    model.select_task(1)
    assert model(torch.randn(3, 6).double()).shape == (3, 5)
    assert model.heads[1].bias is None


def test_a_model_without_parameters_can_be_given_its_first_head_later() -> None:
    model = MultiHead(nn.Flatten(), 6, [])
    model.add_head(3)
    assert model(torch.randn(2, 6)).shape == (2, 3)


def test_heads_are_found_wherever_they_are() -> None:
    multi = MultiHead(nn.Linear(6, 6), 6, [2, 3])
    model = nn.Sequential(nn.Linear(6, 6), nn.Sequential(multi))
    assert heads_of(model) == [multi]
    assert {id(p) for p in head_parameters(model)} == {id(p) for p in multi.heads.parameters()}
    assert heads_of(nn.Linear(2, 2)) == []


def test_a_copy_remembers_the_chosen_head() -> None:
    model = MultiHead(nn.Flatten(), 6, [2, 3])
    model.select_task(1)
    assert copy.deepcopy(model)(torch.randn(1, 6)).shape == (1, 3)


def test_the_loss_of_a_mixed_batch_is_the_mean_over_its_samples() -> None:
    torch.manual_seed(0)
    model = MultiHead(nn.Linear(6, 6), 6, [2, 4])
    x, y, tasks = torch.randn(5, 6), torch.tensor([1, 3, 0, 1, 2]), torch.tensor([0, 1, 0, 0, 1])
    loss = mixed_loss(model, nn.functional.cross_entropy, x, y, tasks)
    alone = []
    for sample, task in enumerate(tasks.tolist()):
        model.select_task(task)
        alone.append(nn.functional.cross_entropy(model(x[[sample]]), y[[sample]]))
    torch.testing.assert_close(loss, torch.stack(alone).mean())
    assert can_mix(model)
    assert can_mix(nn.Linear(2, 2))
    assert not can_mix(nn.Sequential(model, nn.ReLU()))


def test_a_forward_pass_of_ones_own_is_not_left_out() -> None:
    class Scaled(MultiHead):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    assert not can_mix(Scaled(nn.Linear(6, 6), 6, [2, 4]))
