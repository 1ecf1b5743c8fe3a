"""Whether a state that somebody saved is one that a learner can take over."""

from __future__ import annotations

from typing import Any

from cuber.errors import CuberError


def check_saved(state: Any, own: dict[str, Any]) -> None:
    """Raise a sentence unless a state is whole, and of the same method and model as a learner's ``own``."""
    saved_by = state.get("method", "something else") if isinstance(state, dict) else type(state).__name__
    if saved_by != own["method"]:
        raise CuberError(f"this state was saved by {saved_by}, not {own['method']}")
    for lacking in own.keys() - state.keys():
        raise CuberError(f"this state is not whole: it lacks '{lacking}'; save learner.state_dict() again")
    saved, shapes = state["model"], own["model"]
    if saved != shapes:
        name = next(name for name in {**saved, **shapes} if shapes.get(name) != saved.get(name))
        raise CuberError(
            f"this state belongs to another model: parameter '{name}' is {saved.get(name, 'missing')} "
            f"there and {shapes.get(name, 'missing')} here"
        )
