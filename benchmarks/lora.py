"""LoRA in a stream of tasks: what is left of old outputs, and what old tasks gain. The tables of docs/lora.md.

    python -m benchmarks.lora [--seeds 3]
    python -m benchmarks.lora --overlap [--seeds 5] [--first-seed 0]

A small vision transformer learns the digits 0 to 3, then three tasks of two other digits each, with AdamW (one row:
SGD). All methods adapt the same layers, and every task has a head of its own. With ``--overlap``, four tasks of three
digits share digits, and have 20 images of each: later tasks have something to say about old ones.
"""

from __future__ import annotations

import argparse
import copy
import functools
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import peft
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import cuber
from benchmarks.class_token import DIGITS, ClassToken
from benchmarks.common import standard_error
from cuber.subspace import BACKWARD_TRANSFER

FEATURES, RANK, EPOCHS = 64, 8, 6
PRESERVED = (0.5, 0.6, 0.7)
"""Share of the singular directions that OSF preserves in each task."""

Makers = Callable[[Any], torch.optim.Optimizer]


@dataclass(frozen=True)
class Stream:
    """The digits of each task, and the number of images of a digit that a task trains with."""

    tasks: tuple[tuple[int, ...], ...]
    images: int


DISTINCT = Stream(((4, 5), (6, 7), (8, 9)), 120)
OVERLAPPING = Stream(((4, 5, 6), (5, 6, 7), (6, 7, 8), (7, 8, 9)), 20)


@dataclass
class Outcome:
    """What a method has done to the tasks, over all seeds."""

    leak: list[float] = field(default_factory=list)
    layers: list[float] = field(default_factory=list)
    network: list[float] = field(default_factory=list)
    old: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)
    trained: list[float] = field(default_factory=list)
    transfer: list[float] = field(default_factory=list)
    """Per seed, accuracy of old tasks at the end minus that when they were learned."""
    losses: list[float] = field(default_factory=list)
    """Per seed, the same for losses, relative."""
    regimes: list[int] = field(default_factory=list)
    """Per seed, how often an old task was in regime 3 in a layer."""
    demoted: list[int] = field(default_factory=list)


def digits(seed: int) -> dict[int, tuple[Tensor, Tensor]]:
    """Digit -> its images for training, and for testing."""
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    images, labels = torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)[order], torch.tensor(y)[order]
    own = {digit: images[labels == digit] for digit in range(10)}
    return {digit: (found[:120], found[120:]) for digit, found in own.items()}


def labeled(images: list[Tensor]) -> tuple[Tensor, Tensor]:
    return torch.cat(images), torch.cat([torch.full((len(own),), label) for label, own in enumerate(images)])


def task_of(data: dict[int, tuple[Tensor, Tensor]], stream: Stream, number: int) -> tuple[Tensor, Tensor]:
    """The training data of a task: other images of a digit than in the tasks before it, while there are any."""
    chosen, count = stream.tasks[number], stream.images
    used = {digit: count * sum(digit in task for task in stream.tasks[:number]) for digit in chosen}
    return labeled([data[digit][0][used[digit] : used[digit] + count] for digit in chosen])


def loader(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    return [(x[part], y[part]) for part in torch.randperm(len(x)).split(32)]


@functools.cache
def pretrained(seed: int, stream: Stream) -> cuber.MultiHead:
    torch.manual_seed(seed)
    data, backbone, head = digits(seed), ClassToken(FEATURES, **DIGITS), nn.Linear(FEATURES, 4)
    optimizer = torch.optim.AdamW([*backbone.parameters(), *head.parameters()], lr=2e-3)
    x, y = labeled([data[digit][0] for digit in range(4)])
    for _ in range(10):
        for images, labels in loader(x, y):
            optimizer.zero_grad()
            functional.cross_entropy(head(backbone(images)), labels).backward()
            optimizer.step()
    return cuber.MultiHead(backbone, FEATURES, [len(task) for task in stream.tasks])


def weight_of(module: nn.Module) -> Tensor:
    """The weight of a layer with all adapters that are active."""
    if isinstance(module, nn.Linear):
        return module.weight.detach().clone()
    known = getattr(module, "lora_A", None) or module.osf_svd_params
    changes = [module.get_delta_weight(name) for name in module.active_adapters if name in known]
    return (module.get_base_layer().weight + sum(changes)).detach()


def shared_weights(learner: cuber.Method, names: list[str]) -> dict[str, Tensor]:
    """The weights of layers that all tasks share."""
    with learner.as_task(None):
        return weights_of(learner.model, names)


def weights_of(model: nn.Module, names: list[str]) -> dict[str, Tensor]:
    return {name: weight_of(model.get_submodule(name)) for name in names}


@torch.no_grad()
def inputs_of(model: nn.Module, names: list[str], x: Tensor) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    hooks = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, inputs, name=name: found.update({name: inputs[0].flatten(0, -2)})
        )
        for name in names
    ]
    model(x)
    for hook in hooks:
        hook.remove()
    return found


class Ours:
    """cuber.LoRA."""

    def __init__(self, model: cuber.MultiHead, names: list[str], **settings: Any) -> None:
        self.learner = cuber.LoRA(model, targets=names, rank=RANK, **settings)

    def before(self, task: int) -> None:
        """Nothing: ``begin_task`` adds the adapter."""

    def after(self) -> None:
        """Nothing: the adapters stay."""

    def protected(self, name: str, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Directions of outputs, and of inputs, along which the update of the present task must not be."""
        return weight[:, :0], self.learner.memory[name].basis[:, self.learner.protected_columns(name)]


class FineTuned(Ours):
    """One adapter of peft for all tasks."""

    def __init__(self, model: cuber.MultiHead, names: list[str]) -> None:
        ends = [name.removeprefix("backbone.") for name in names]
        peft.get_peft_model(model.backbone, peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=ends))
        model.heads.requires_grad_(True)
        self.learner = cuber.FineTune(model)

    def protected(self, name: str, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight[:, :0], weight[:0].mT


class OSF(Ours):
    """peft's orthogonal subspace fine-tuning; each task's update is merged into the weights."""

    def __init__(self, model: cuber.MultiHead, names: list[str]) -> None:
        self.model, self.ends, self.wrapped = model, [name.removeprefix("backbone.") for name in names], None
        self.learner = cuber.FineTune(model)

    def before(self, task: int) -> None:
        self.preserved = PRESERVED[task]
        config = peft.OSFConfig(target_modules=self.ends, effective_rank=self.preserved)
        self.wrapped = peft.get_peft_model(self.model.backbone, config)

    def after(self) -> None:
        self.wrapped.merge_and_unload()

    def protected(self, name: str, weight: Tensor) -> tuple[Tensor, Tensor]:
        left, _, right = torch.linalg.svd(weight, full_matrices=False)
        count = int(min(weight.shape) * self.preserved)
        return left[:, :count], right[:count].mT


def outside(change: Tensor, left: Tensor, right: Tensor) -> Tensor:
    change = change - left @ (left.mT @ change)
    return change - (change @ right) @ right.mT


@torch.no_grad()
def test_loss(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    return float(functional.cross_entropy(model(images), labels))


def run(make: Callable[..., Ours], optimizer: Makers, seed: int, outcome: Outcome, stream: Stream = DISTINCT) -> None:
    data, model = digits(seed), copy.deepcopy(pretrained(seed, stream))
    torch.manual_seed(seed)
    names = [name for name, module in model.backbone.named_modules() if isinstance(module, nn.Linear)]
    names = [f"backbone.{name}" for name in names]
    method = make(model, names)
    learner = method.learner
    old, losses, before = [], [], len(outcome.new)
    for number, chosen in enumerate(stream.tasks):
        x, y = task_of(data, stream, number)
        unseen = labeled([data[digit][1] for digit in chosen])
        batches = loader(x, y)
        start = shared_weights(learner, names)
        method.before(number)
        learner.begin_task(batches, functional.cross_entropy)
        protected = {name: method.protected(name, weight) for name, weight in start.items()}
        stepped = learner.wrap(optimizer(learner.parameters()))
        heads = {id(p) for p in model.heads.parameters()}
        outcome.trained.append(sum(p.numel() for p in learner.parameters() if id(p) not in heads))
        for _ in range(EPOCHS):
            for images, labels in batches:
                stepped.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
                stepped.step()
            learner.end_epoch()
        learner.end_task(batches)
        changes = {name: weight - start[name] for name, weight in shared_weights(learner, names).items()}
        if number:
            leaks = [(change - outside(change, *protected[name])).norm() for name, change in changes.items()]
            sizes = [change.norm() for change in changes.values()]
            outcome.leak.append(float(torch.stack(leaks).norm() / torch.stack(sizes).norm()))
        method.after()
        with torch.no_grad(), learner.as_task(number):
            outcome.new.append(float((model(unseen[0]).argmax(1) == unseen[1]).float().mean()))
            losses.append(test_loss(model, *unseen))
            features = model.backbone(unseen[0])
            old.append((number, unseen, features, inputs_of(model, names, x), weights_of(model, names)))
    for number, (images, labels), features, inputs, weights in old[:-1]:
        with torch.no_grad(), learner.as_task(number):
            outcome.old.append(float((model(images).argmax(1) == labels).float().mean()))
            outcome.network.append(float((model.backbone(images) - features).norm() / features.norm()))
            now = weights_of(model, names)
            losses[number] = test_loss(model, images, labels) / losses[number] - 1
        for name, vectors in inputs.items():
            outputs = vectors @ weights[name].mT
            outcome.layers.append(float((vectors @ now[name].mT - outputs).norm() / outputs.norm()))
    learned = outcome.new[before:-1]
    outcome.transfer.append(statistics.mean(outcome.old[-len(learned) :]) - statistics.mean(learned))
    outcome.losses.append(statistics.mean(losses[:-1]))
    regimes = [
        regime for task in getattr(learner, "regimes", []) for layer in task.values() for regime in layer.values()
    ]
    outcome.regimes.append(sum(regime.at_start == BACKWARD_TRANSFER for regime in regimes))
    outcome.demoted.append(sum(regime.demoted_at is not None for regime in regimes))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.01)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)


METHODS: dict[str, tuple[Callable[..., Ours], Makers]] = {
    "LoRA, fine-tuned": (FineTuned, adamw),
    "peft OSF, SGD": (OSF, sgd),
    "peft OSF, AdamW": (OSF, adamw),
    "cuber.LoRA, regime 1 alone": (lambda model, names: Ours(model, names, eps1=2.0), adamw),
    "cuber.LoRA": (Ours, adamw),
    "cuber.LoRA, regime 3 (eps2=0)": (lambda model, names: Ours(model, names, eps2=0.0), adamw),
}
REGIME_3: dict[str, dict[str, float]] = {
    "no regime 3": {},
    "eps2=0": {"eps2": 0.0},
    "eps2=-0.1": {"eps2": -0.1},
    "eps2=-0.1, lam=0.3": {"eps2": -0.1, "lam": 0.3},
    "eps2=-0.1, lam=30": {"eps2": -0.1, "lam": 30.0},
}


def table(seeds: range) -> str:
    lines = [
        "| | update in protected directions | largest change of a layer's old outputs | change of old features | "
        "old tasks | new tasks | trained parameters |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (make, optimizer) in METHODS.items():
        outcome = Outcome()
        for seed in seeds:
            run(make, optimizer, seed, outcome)
        mean = statistics.mean
        leak = "-" if make is FineTuned else f"{mean(outcome.leak):.2%}"
        lines.append(
            f"| {name} | {leak} | {max(outcome.layers):.1e} | {mean(outcome.network):.1e} | {mean(outcome.old):.1%} | "
            f"{mean(outcome.new):.1%} | {max(outcome.trained):,.0f} |"
        )
    return "\n".join(lines)


def transfer_table(seeds: range) -> str:
    """Return what old tasks gain by regime 3, with standard errors over seeds."""
    lines = [
        "| | new tasks | old tasks | BWT | change of old test loss | largest change of a layer's old outputs | "
        "in regime 3 | demoted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    mean = statistics.mean
    for name, settings in REGIME_3.items():
        outcome = Outcome()
        for seed in seeds:
            make = functools.partial(Ours, selected=len(OVERLAPPING.tasks) - 1, **settings)
            run(make, adamw, seed, outcome, OVERLAPPING)
        lines.append(
            f"| {name} | {mean(outcome.new):.1%} | {mean(outcome.old):.1%} | {with_error(outcome.transfer)} | "
            f"{with_error(outcome.losses)} | {max(outcome.layers):.1e} | {mean(outcome.regimes):.0f} | "
            f"{mean(outcome.demoted):.0f} |"
        )
    return "\n".join(lines)


def with_error(values: list[float]) -> str:
    """Return the mean and the standard error in percent."""
    return f"{100 * statistics.mean(values):+.2f} ± {100 * standard_error(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--overlap", action="store_true", help="what old tasks gain by regime 3")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(transfer_table(seeds) if options.overlap else table(seeds))


if __name__ == "__main__":
    main()
