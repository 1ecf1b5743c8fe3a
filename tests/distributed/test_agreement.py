"""What the processes exchange, and what is refused: gradients and weights that differ, sharded models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from cuber import AGEM, CUBER, GPM, OWM, CuberError, FineTune
from cuber.core import batches, distributed
from cuber.networks import MLP
from cuber.replay import Reservoir
from tests.distributed.processes import in_processes
from tests.loops import loss_fn

X, Y = torch.randn(23, 6, generator=torch.Generator().manual_seed(1)), torch.arange(23) % 3


def uneven(batch_size: int = 4) -> list[tuple[Tensor, Tensor]]:
    """Batches of 23 samples: process 0 has 15 of them, process 1 has 8, and fewer batches."""
    own = slice(None) if not distributed.is_active() else slice(0, 15) if distributed.rank() == 0 else slice(15, 23)
    return list(zip(X[own].split(batch_size), Y[own].split(batch_size), strict=True))


def exchanged() -> dict[str, Any]:
    """Everything that is computed from unevenly distributed samples."""
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for kind in (GPM, OWM):
        learner = kind(MLP(6, 8, 3, bias=True))
        learner.begin_task(uneven(), loss_fn)
        found["gradients"] = learner.mean_gradients(uneven())
        if isinstance(learner, GPM):
            found["Gram"] = {name: gram.matrix for name, gram in learner.input_grams(uneven()).items()}
            learner.sketch = "always"
            found["sketch"] = {name: gram.matrix for name, gram in learner.input_grams(uneven()).items()}
        if isinstance(learner, OWM):
            learner.averaged = 1  # means of more samples depend on their order
            found["means"] = {name: gram.matrix for name, gram in learner.mean_inputs(uneven()).items()}
    reservoir = Reservoir(9, torch.Generator().manual_seed(3)).read(uneven())
    found["memory"] = sorted(float(sample.rows[0].sum()) for sample in reservoir.new())
    found["seen"] = reservoir.seen
    found["count"] = batches.count(uneven())
    return found


def test_uneven_loaders_give_the_sums_over_all_samples(tmp_path: Path) -> None:
    first, second = in_processes(tmp_path, exchanged)
    alone = exchanged()
    for name in ("gradients", "Gram", "sketch", "means"):
        for layer, matrix in alone[name].items():
            assert torch.equal(first[name][layer], second[name][layer]), name
            assert torch.allclose(first[name][layer], matrix, rtol=1e-4, atol=1e-6), name
    assert first["memory"] == second["memory"]
    assert len(first["memory"]) == 9
    assert set(first["memory"]) <= {float(x.sum()) for x in X}
    assert first["seen"] == second["seen"] == first["count"] == 23


def refusals() -> list[str]:
    sentences: list[str] = []
    own = [(X[distributed.rank() :: 2], Y[distributed.rank() :: 2])]

    def refused(learner: Any, model: nn.Module, lr: float = 0.1) -> None:
        learner.begin_task(own, loss_fn)
        optimizer = learner.wrap(SGD(learner.parameters(), lr=lr))
        try:
            loss_fn(model(own[0][0]), own[0][1]).backward()
            optimizer.step()
            learner.end_task(own)
        except CuberError as error:
            sentences.append(str(error))

    model = MLP(6, 8, 3)
    refused(CUBER(model), model)  # without DistributedDataParallel
    model = MLP(6, 8, 3)
    refused(FineTune(model), DistributedDataParallel(model), lr=0.1 + distributed.rank())
    # A layer that was frozen when DistributedDataParallel was made
    model = MLP(6, 8, 3)
    model.layers[0].weight.requires_grad_(False)
    parallel = DistributedDataParallel(model)
    model.layers[0].weight.requires_grad_(True)
    refused(AGEM(model), parallel)
    model = MLP(6, 8, 3)
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
    try:
        GPM(model)
    except CuberError as error:
        sentences.append(str(error))
    return sentences


def test_what_would_go_wrong_is_refused_in_all_processes(tmp_path: Path) -> None:
    first, second = in_processes(tmp_path, refusals)
    assert first == second
    gradients, weights, frozen, sharded = first
    assert gradients.startswith("the gradient of 'layers.0.weight' differs between the processes")
    assert weights.startswith("end_task: 'layers.0.weight' differs between the processes")
    assert frozen.startswith("the gradient of 'layers.0.weight' differs between the processes")
    assert sharded.startswith("parameter 'layers.0.weight' is sharded over processes")


@pytest.mark.parametrize("count", range(1, 40))
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_shares_are_disjoint_slices_of_at_least_two(
    count: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "processes", lambda: processes)
    shares = []
    for rank in range(processes):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shares.append(distributed.share(count))
    used = [share.part for share in shares if share.weight]
    assert [i for part in used for i in range(count)[part]] == list(range(count))
    assert sum(share.weight for share in shares) == pytest.approx(1)
    assert all(len(range(count)[share.part]) >= min(2, count) for share in shares)


def test_a_single_process_gets_back_what_it_gave() -> None:
    tensor = torch.ones(2)
    assert not distributed.is_active()
    assert distributed.gather("a") == ["a"]
    assert distributed.sum_tensors([tensor])[0] is tensor
    assert distributed.sum_present([None, tensor], [tensor, tensor]) == [None, tensor]
    assert distributed.broadcast(tensor) is tensor
    distributed.check_equal({"a": tensor}, "{name} differs")


@pytest.mark.parametrize("text", ["0", "-1", "soon", "nan", "1e99"])
def test_a_wrong_timeout_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(distributed.ENVIRONMENT, ("0", "2", "localhost", "1"), strict=True):
        monkeypatch.setitem(os.environ, name, value)
    monkeypatch.setitem(os.environ, distributed.TIMEOUT, text)
    with (
        pytest.raises(CuberError, match=f"CUBER_TIMEOUT must be a number of seconds above 0, not '{text}'"),
        distributed.group_from_environment(),
    ):
        pass
