"""What methods share that treat a network layer by layer: which layers, and their gradients as matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from cuber.core import batches
from cuber.core.batches import Batch
from cuber.core.learner import Method
from cuber.core.settings import setting
from cuber.errors import CuberError
from cuber.layers import ProtectedLayer, evaluation_mode, observed, scan
from cuber.networks.heads import head_parameters


@dataclass(eq=False, repr=False)
class LayerwiseMethod(Method):
    """A method for the layers that a rule covers, with a policy for the parameters that none does."""

    uncovered: str = setting(
        "freeze",
        "parameters that no layer rule covers: frozen after the first task, trained all the same, or refused",
        choices=("freeze", "train", "error"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.layers: dict[str, ProtectedLayer] = {}
        self.uncovered_parameters: dict[str, str] = {}
        """Trained parameters that no rule covers, with the reason."""
        self._bypassed: set[str] = set()
        self._trained_around: set[str] = set()
        self._trained: set[str] = set()
        """The layers that the present task was begun with."""
        try:
            self._scan()
        except CuberError:
            self.detach()
            raise

    def detach(self) -> None:
        for layer in self.layers.values():
            layer.detach()
        super().detach()

    def mean_gradients(self, loader: Iterable[Batch]) -> dict[str, Tensor]:
        """The gradient of the mean loss over all samples, in evaluation mode, for the layers that it reaches."""
        layers = [layer for layer in self.layers.values() if layer.trains]
        parameters = [parameter for layer in layers for parameter in layer.parameters]
        totals: dict[nn.Parameter, Tensor] = {}
        count = 0
        if not parameters:
            return {}
        with evaluation_mode(self.model), torch.enable_grad():
            for batch in loader:
                weight = batches.size(batch)
                loss = self._try_loss(batch, "batches") * weight
                if not bool(loss.isfinite()):
                    raise CuberError(
                        f"the loss of task {self.tasks} is {float(loss.detach())} after {self.epoch} epochs: "
                        "lower the learning rate, or look at the inputs"
                    )
                if not loss.requires_grad:
                    continue
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    if gradient is not None:
                        gradient = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
                        totals[parameter] = totals[parameter] + gradient if parameter in totals else gradient
                count += weight
        return {
            layer.name: layer.join([totals.get(p, torch.zeros_like(p)) for p in layer.parameters]) / count
            for layer in layers
            if layer.parameter in totals
        }

    def _layers_of(self, optimizer: Optimizer) -> Iterator[ProtectedLayer]:
        """The layers that an optimizer trains, all or part of them, and that the last backward pass has reached."""
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for layer in self.layers.values():
            if any(id(p) in held and p.grad is not None for p in layer.parameters):
                yield layer

    def _steps_straight(self, optimizer: Optimizer) -> bool:
        """Whether a step goes where the gradient points: not with momentum, decay, preconditioning or several rates."""
        if type(optimizer) is not SGD or len(optimizer.param_groups) > 1:
            return False
        (group,) = optimizer.param_groups
        if group["momentum"] or group["weight_decay"] or group["maximize"]:
            return False
        held = set(map(id, group["params"]))
        with_bias = (layer.parameters for layer in self.layers.values() if layer.with_bias)
        return all((id(weight) in held) == (id(bias) in held) for weight, bias in with_bias)

    def _require_held(self, optimizer: Optimizer, mark: str, what: str) -> None:
        """Raise unless this optimizer and those before it train all parameters with such a mark in their names."""
        groups = [group for known in (*self._wrapped, optimizer) for group in known.param_groups]
        held = {id(parameter) for group in groups for parameter in group["params"]}
        missing = [name for name, p in self.named_parameters() if mark in name and id(p) not in held]
        if missing:
            raise CuberError(
                f"the optimizer lacks {len(missing)} {what} of this task, first '{missing[0]}': "
                "build it from learner.parameters(), after begin_task, or wrap the one that has them first"
            )

    def _require_trained(self, verb: str) -> None:
        """Raise if somebody has frozen a layer since the task began."""
        for name in sorted(self._trained & self.layers.keys()):
            if not self.layers[name].trains:
                raise CuberError(
                    f"{verb}: layer '{name}' was trained in this task and is frozen now, so that its gradient is not "
                    f"known: set requires_grad back before {verb}"
                )

    def _freeze(self) -> None:
        self._freezer.thaw()
        self._scan()
        super()._freeze()
        for layer in self.layers.values():
            if not layer.trains:  # [W | b] moves as one: with a part of it frozen by somebody, so is the rest
                self._freezer.freeze(layer.parameters)
        if self.tasks and self.uncovered == "freeze":
            self._freezer.freeze(map(self.model.get_parameter, self.uncovered_parameters))

    def _scan(self) -> None:
        """Find the layers; those known stay known, also while somebody has them frozen."""
        found = scan(self.model, exempt=head_parameters(self.model))
        known = {id(parameter) for layer in self.layers.values() for parameter in layer.parameters}
        self.uncovered_parameters = {
            name: why for name, why in found.uncovered.items() if id(self.model.get_parameter(name)) not in known
        }
        for name, layer in found.layers.items():
            if name in self._bypassed:
                self._give_up(layer)
            elif name not in self.layers:
                self._adopt(name, layer)
            elif layer.modules != self.layers[name].modules:
                raise CuberError(
                    f"layer '{name}' is another module than in earlier tasks, so what they need of it is lost: "
                    "put the old one back, or give the new one a name of its own"
                )
            elif layer.with_bias != self.layers[name].with_bias:
                raise CuberError(
                    f"the bias of layer '{name}' was {'frozen' if layer.with_bias else 'trained'} in earlier tasks and "
                    f"is now {'trained' if layer.with_bias else 'frozen'}: set its requires_grad back"
                )
        if not self.layers:
            reasons = "; ".join(f"{name}: {why}" for name, why in found.uncovered.items()) or "nothing is trained"
            raise CuberError(f"no layer of this model can be protected ({reasons}); see cuber.layers for adding a rule")
        self._judge_uncovered()

    def _adopt(self, name: str, layer: ProtectedLayer) -> None:
        if name in self._trained_around:
            raise CuberError(
                f"layer '{name}' was frozen while earlier tasks were learnt, so what they need of it is not known: "
                "keep it frozen, or let it train from the first task on"
            )
        self.layers[name] = layer
        layer.attach(fused=any(isinstance(module, nn.TransformerEncoderLayer) for module in self.model.modules()))

    def _give_up(self, layer: ProtectedLayer) -> None:
        """A weight is used, but not by calling its layer: nobody can see what it is multiplied with."""
        for name, parameter in self.model.named_parameters():
            if any(parameter is part for part in layer.parameters):
                self.uncovered_parameters[name] = "used without calling its layer"

    def _judge_uncovered(self) -> None:
        if self.uncovered == "error" and self.uncovered_parameters:
            name, reason = next(iter(self.uncovered_parameters.items()))
            raise CuberError(
                f"{len(self.uncovered_parameters)} parameters cannot be protected, first '{name}' ({reason}): "
                "freeze them yourself, or choose uncovered='freeze' or 'train'"
            )

    def _first_look(self) -> None:
        super()._first_look()
        self._trained = {name for name, layer in self.layers.items() if layer.trains}
        called: set[str] = set()
        with observed(self.layers.values(), lambda layer, *_: called.add(layer.name)):
            reached = self.mean_gradients(self._sample[:1])
        for name in reached.keys() - called:
            layer = self.layers.pop(name)
            layer.detach()
            self._bypassed.add(name)
            self._give_up(layer)
            if self.tasks and self.uncovered == "freeze":
                self._freezer.freeze(layer.parameters)
        self._judge_uncovered()
        if not reached.keys() & called:
            raise CuberError(
                f"task {self.tasks} reaches none of the protected layers ({', '.join(self.layers)}): "
                "its loss does not depend on them, or they are frozen"
            )

    def _state(self) -> dict[str, Any]:
        return super()._state() | {
            "layers": {name: layer.with_bias for name, layer in self.layers.items()},
            "trained": sorted(self._trained),
            "bypassed": sorted(self._bypassed),
            "trained_around": sorted(self._trained_around),
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        for name, with_bias in state["layers"].items():
            if name not in self.layers:
                raise CuberError(f"layer '{name}' is protected in this state but frozen here: thaw it while loading")
            if with_bias != self.layers[name].with_bias:
                was, now = ("trained", "frozen") if with_bias else ("frozen", "trained")
                raise CuberError(
                    f"the bias of layer '{name}' is {was} in this state and {now} here: "
                    "set its requires_grad back before the learner is made"
                )

    def _restore(self, state: dict[str, Any]) -> None:
        self._bypassed = set(state["bypassed"])
        self._trained_around = set(state["trained_around"])
        self._trained = set(state["trained"])
        for name in self._bypassed & self.layers.keys():
            self._give_up(layer := self.layers.pop(name))
            layer.detach()

    def _leave_task(self) -> None:
        if self.task is not None:
            modules = {name for name, _ in self.model.named_modules()}
            self._trained_around = modules - self.layers.keys()
        super()._leave_task()

    def _describe(self) -> list[str]:
        fate = {"freeze": "frozen after the first task", "train": "trained without protection", "error": ""}
        return [f"{name}: {fate[self.uncovered]} ({reason})" for name, reason in self.uncovered_parameters.items()]
