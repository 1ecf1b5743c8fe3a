"""Methods that act layer by layer: which layers there are, and their gradients as matrices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cuber.core import distributed
from cuber.core.batches import Batch
from cuber.core.coverage import FATES, few, warn_of_frozen
from cuber.core.gradients import mean_gradients
from cuber.core.learner import Method
from cuber.core.per_task import norm_parameters_setting, vectors
from cuber.core.rows import HeldRows, RowMemory
from cuber.core.settings import setting
from cuber.errors import CuberError
from cuber.layers import ProtectedLayer, UsedRows, evaluation_mode, observed, scan, strip
from cuber.layers.attached import has_fused_kernels


@dataclass(eq=False, repr=False)
class LayerwiseMethod(Method):
    """A method for the layers that a rule covers, with a policy for parameters that no rule covers.

    Args:
        model: any ``nn.Module``; it stays the same object.
        forward: ``forward(model, batch) -> loss``, where ``loss_fn(model(x), y)`` is not enough.

    >>> @dataclass(eq=False, repr=False)
    ... class Strengths(LayerwiseMethod):
    ...     strength: float = setting(1.0, "how much is protected", low=0, per_layer=True)
    ...     def make_layer(self, layer):
    ...         print("found", layer.name)
    ...         return layer
    >>> learner = Strengths(nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), strength=[1.0, 0.5])
    found 0
    found 1
    >>> learner.for_layer("strength", "1")
    0.5
    >>> learner.begin_task([(torch.eye(4), torch.ones(4, 2))], nn.functional.mse_loss)
    >>> learner.mean_gradients([(torch.eye(4), torch.ones(4, 2))])["1"].shape
    torch.Size([2, 4])
    """

    remembered: ClassVar[dict[str, Any]] = {
        "with_bias": dict[str, bool],
        "rows": dict[str, Tensor],
        "bypassed": set[str],
        "untracked": set[str],
    }
    in_task: ClassVar[dict[str, Any]] = {"trained": set[str], "held_rows": dict[str, HeldRows]}

    norm_parameters: str = norm_parameters_setting()
    uncovered: str = setting(
        "freeze",
        "other parameters that no layer rule covers: frozen after the first task, trained all the same, or refused",
        choices=("freeze", "train", "error"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.layers: dict[str, ProtectedLayer] = {}
        """Layer name -> layer."""
        self.row_memory = RowMemory()
        """The embeddings, and the rows of them that old tasks need."""
        self.optimizers.rows = self.row_memory
        self.uncovered_parameters: dict[str, str] = {}
        """Trained parameters that no rule covers, with the reason."""
        self.bypassed: set[str] = set()
        """Layers whose weight is used without calling them."""
        self.untracked: set[str] = set()
        """Modules that were not protected when the last task ended."""
        self.reached: set[str] = set()
        """Layers that the loss of the present task's first batch depends on, where they are called."""
        self.trained: set[str] = set()
        """Layers that the present task began to train."""
        for module in self.model.modules():
            strip(module)  # a copy of a model comes with the forward passes of the original's learner
        try:
            self._find_layers()
        except CuberError:
            self.detach()
            raise

    @property
    def with_bias(self) -> dict[str, bool]:
        """Layer name -> whether its bias is trained."""
        return {name: layer.with_bias for name, layer in self.layers.items()}

    @with_bias.setter
    def with_bias(self, _: dict[str, bool]) -> None:
        """Loaded states are checked, not taken over."""

    @property
    def rows(self) -> dict[str, Tensor]:
        """Name of an embedding -> which of its rows old tasks have used."""
        return self.row_memory.used

    @rows.setter
    def rows(self, rows: dict[str, Tensor]) -> None:
        self.row_memory.used = rows

    @property
    def held_rows(self) -> dict[str, HeldRows]:
        """Name of an embedding -> these rows when the present task began."""
        return self.row_memory.held

    @held_rows.setter
    def held_rows(self, held: dict[str, HeldRows]) -> None:
        self.row_memory.held = held

    def make_layer(self, layer: ProtectedLayer) -> ProtectedLayer:
        """Return the layer to protect: here the layer itself; a subclass may return another, or change it.

        Args:
            layer: a layer that was found in the model.
        """
        return layer

    def real_positions(self, batch: Batch) -> Tensor | None:
        """Return which positions of a batch are not padding, samples x positions, bool; None: all."""
        return None

    def on_detach(self) -> None:
        for layer in self.layers.values():
            layer.detach()

    def mean_gradients(self, loader: Iterable[Batch], *, dropout: bool = False) -> dict[str, Tensor]:
        """Return the gradient of the mean loss over all samples for the layers that it reaches.

        The model is in evaluation mode, but for dropout if that is asked for. Of several processes each has its own
        loader, and all get the mean over the samples of all.

        Args:
            loader: the data.
            dropout: whether torch's modules with dropout drop, as in training.

        Returns:
            Layer name -> gradient, out x d.
        """
        return mean_gradients(self, loader, dropout=dropout)

    def for_layer(self, setting: str, name: str) -> Any:
        """Return the value of a per-layer setting (one for all layers, a list, or a table by name) for one layer.

        Args:
            setting: name of the setting.
            name: name of the layer.
        """
        value, names = getattr(self, setting), list(self.layers)
        if isinstance(value, Mapping):
            if name not in value:
                raise CuberError(f"{setting} has no value for layer '{name}' (it names {', '.join(map(str, value))})")
            return value[name]
        if isinstance(value, Sequence):
            if len(value) != len(names):
                raise CuberError(f"{setting} has {len(value)} values, but the model has {len(names)} protected layers")
            return value[names.index(name)]
        return value

    def require_trained(self, verb: str) -> None:
        """Raise if a layer was frozen since the task began."""
        for name in sorted(self.trained & self.layers.keys()):
            if not self.layers[name].requires_grad:
                raise CuberError(
                    f"{verb}: layer '{name}' was trained in this task and is frozen now, so that its gradient is not "
                    f"known: set requires_grad back before {verb}"
                )

    def freeze_parameters(self) -> None:
        self._find_layers()
        super().freeze_parameters()
        for layer in self.layers.values():
            if not layer.requires_grad:  # [W | b] changes as one: where a part is frozen, so is the rest
                self.freezer.freeze(layer.parameters)
        self._freeze_unprotected()

    def _freeze_unprotected(self) -> None:
        if self.tasks and self.uncovered == "freeze":
            self.freezer.freeze(map(self.model.get_parameter, self.unprotected_parameters()))

    def per_task_parameters(self) -> list[str]:
        return vectors(self.model, self.uncovered_parameters) if self.norm_parameters == "task" else []

    def unprotected_parameters(self) -> dict[str, str]:
        own = set(self.per_task_parameters())
        return {name: why for name, why in self.uncovered_parameters.items() if name not in own}

    def _find_layers(self) -> None:
        """Scan the model; layers found before stay protected, also while they are frozen."""
        heads = [parameter for multi_head in self.heads for parameter in multi_head.heads.parameters()]
        found = scan(self.model, exempt=heads)
        known = {id(parameter) for layer in self.layers.values() for parameter in layer.parameters}
        self.uncovered_parameters = {
            name: why for name, why in found.uncovered.items() if id(self.model.get_parameter(name)) not in known
        }
        for name, layer in found.layers.items():
            if name in self.bypassed:
                self._give_up(*layer.parameters)
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
        for name, table in found.tables.items():
            if name in self.bypassed:
                self._give_up(table.parameter)
            elif name not in self.row_memory.tables:
                self._require_tracked(name)
                self.row_memory.tables[name] = table
        if not self.layers:
            reasons = "; ".join(f"{name}: {why}" for name, why in found.uncovered.items()) or "nothing is trained"
            raise CuberError(f"no layer of this model can be protected ({reasons}); see cuber.layers for adding a rule")
        self._judge_uncovered()

    def _adopt(self, name: str, layer: ProtectedLayer) -> None:
        self._require_tracked(name)
        layer = self.layers[name] = self.make_layer(layer)
        layer.attach(fused=has_fused_kernels(self.model))

    def _require_tracked(self, name: str) -> None:
        if name in self.untracked:
            raise CuberError(
                f"layer '{name}' was frozen while earlier tasks were learned, so what they need of it is not known: "
                "keep it frozen, or let it train from the first task on"
            )

    def _drop(self, name: str) -> None:
        """Protect a layer or an embedding no longer, since its weight is used without calling it."""
        self.bypassed.add(name)
        if name in self.layers:
            layer = self.layers.pop(name)
            layer.detach()
            self._give_up(*layer.parameters)
        else:
            self._give_up(self.row_memory.tables.pop(name).parameter)

    def _give_up(self, *parameters: nn.Parameter) -> None:
        """Count a weight as uncovered: it is used without calling its layer, so its inputs are not known."""
        for name, parameter in self.model.named_parameters():
            if any(parameter is part for part in parameters):
                self.uncovered_parameters[name] = "used without calling its layer"

    def _judge_uncovered(self) -> None:
        unprotected = self.unprotected_parameters() if self.uncovered == "error" else {}
        if unprotected:
            name, reason = next(iter(unprotected.items()))
            raise CuberError(
                f"{len(unprotected)} parameters cannot be protected, first '{name}' ({reason}): "
                "freeze them yourself, or choose uncovered='freeze' or 'train'"
            )

    def try_sample(self) -> None:
        super().try_sample()
        self.trained = {name for name, layer in self.layers.items() if layer.requires_grad}
        called: set[str] = set()
        with observed(self.layers.values(), lambda layer, *_: called.add(layer.name)):
            reached = self.mean_gradients(self.sample[:1])
        called = set().union(*distributed.gather(called))
        self.reached = reached.keys() & called
        for name in reached.keys() - called:
            self._drop(name)
        for name in self._bypassed_tables():
            self._drop(name)
        self._freeze_unprotected()
        self.row_memory.hold()
        self._judge_uncovered()
        if not self.reached:
            raise CuberError(f"task {self.tasks} reaches none of the protected layers: {self._why_unreached()}")
        if self.tasks == 0:
            warn_of_frozen(self)

    def _why_unreached(self) -> str:
        reasons = []
        if self.layers:
            reasons.append(f"its loss does not depend on {', '.join(self.layers)}, or they are frozen")
        if self.bypassed:
            reasons.append(
                f"it uses the weights of {few(sorted(self.bypassed))} without calling these layers, so that their "
                "inputs are not known: call them, or choose other layers"
            )
        return "; ".join(reasons)

    def _bypassed_tables(self) -> set[str]:
        """Return the embeddings with gradients in rows that were not looked up: they are used in another way, too."""
        memory = self.row_memory
        tied = memory.tied_to(parameter for layer in self.layers.values() for parameter in layer.parameters)
        tables = [table for name, table in memory.tables.items() if name not in tied and table.parameter.requires_grad]
        bypassed: set[str] = set()
        if not tables:
            return bypassed
        with evaluation_mode(self.model), torch.enable_grad(), UsedRows(tables) as used:
            loss = self.try_loss(self.sample[0], "first batch")
        weights = [table.parameter for table in tables]
        gradients = torch.autograd.grad(loss, weights, allow_unused=True) if loss.requires_grad else []
        for table, gradient in zip(tables, gradients, strict=False):
            if gradient is not None and bool((gradient.ne(0).any(1) & ~used.rows[table.name]).any()):
                bypassed.add(table.name)
        return set().union(*distributed.gather(bypassed))

    def observe_task(self, loader: Iterable[Batch]) -> None:
        """Remember the rows of embeddings that the task has used: in all of its data, since each row is one input."""
        super().observe_task(loader)
        if not self.row_memory.tables:
            return
        with torch.no_grad(), evaluation_mode(self.model), UsedRows(self.row_memory.tables.values()) as used:
            for batch in loader:
                used.real = self.real_positions(batch)
                self.try_loss(batch, "batches")
        self.row_memory.add(used.rows)

    def check_state(self, remembered: dict[str, Any]) -> None:
        for name in remembered["rows"].keys() - self.row_memory.tables.keys():
            raise CuberError(f"layer '{name}' is protected in this state but frozen here: unfreeze it to load")
        for name, with_bias in remembered["with_bias"].items():
            if name not in self.layers:
                raise CuberError(f"layer '{name}' is protected in this state but frozen here: unfreeze it to load")
            if with_bias != self.layers[name].with_bias:
                was, now = ("trained", "frozen") if with_bias else ("frozen", "trained")
                raise CuberError(
                    f"the bias of layer '{name}' is {was} in this state and {now} here: "
                    "set its requires_grad back before the learner is made"
                )

    def on_state_loaded(self) -> None:
        for name in [*self.bypassed & self.layers.keys(), *self.bypassed & self.row_memory.tables.keys()]:
            self._drop(name)

    def on_task_left(self) -> None:
        self.row_memory.release()
        if self.task is not None:
            # Layers have the names of modules, or of parameters where a module has several weights.
            names = {name for name, _ in [*self.model.named_modules(), *self.model.named_parameters()]}
            self.untracked = names - self.layers.keys() - self.row_memory.tables.keys()

    def describe(self) -> list[str]:
        unprotected, own = self.unprotected_parameters(), self.per_task_parameters()
        lines = self.row_memory.describe()
        lines += [f"{name}: {FATES[self.uncovered]} ({reason})" for name, reason in unprotected.items()]
        return [*lines, f"kept per task: {few(own)}"] if own else lines
