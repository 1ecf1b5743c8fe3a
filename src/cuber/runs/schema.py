"""Schemas of the files of a run, which may come from anywhere: read once, so that tables and figures can rely on them.

A schema is a function of a value and its place. It raises an :class:`InvalidError` such as
"accuracy[1][0] must be a number from 0 to 100, not 5000.0".
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cuber.core.settings import short

Schema = Callable[[Any, str], None]

LARGEST = 1e100
"""Magnitude of numbers with which tables compute: sums of squares of such numbers are finite."""
DEEPEST = 20
"""Lists and tables inside each other."""


class InvalidError(ValueError):
    """A value that does not fit its schema."""

    def __init__(self, place: str, expected: str, value: Any) -> None:
        super().__init__(f"{place or 'it'} must be {expected}, not {short(value)}")


class Repeated(dict[str, Any]):
    """A JSON object in which a name occurs more than once; no schema allows it."""

    name: str


def read_json(text: str) -> Any:
    """Return the values of a JSON text, for a schema to check.

    Raises:
        ValueError: it is no JSON.
    """
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) == len(pairs):
        return values
    names = [name for name, _ in pairs]
    repeated = Repeated(values)
    repeated.name = next(name for name in names if names.count(name) > 1)
    return repeated


# Parts of schemas


def number(low: float = -LARGEST, high: float = LARGEST, *, whole: bool = False, above: bool = False) -> Schema:
    """A finite number, ``low`` and ``high`` included; ``above``: without ``low``."""
    ends = (
        f"from {low:g} to {high:g}" if high < LARGEST or low < 0 else f"{'above' if above else 'of at least'} {low:g}"
    )
    expected = f"a {'whole ' if whole else ''}number {ends}"

    def check(value: Any, place: str) -> None:
        kind = int if whole else int | float
        if (
            not isinstance(value, kind)
            or isinstance(value, bool)
            or not low <= value <= high
            or (above and value == low)
        ):
            raise InvalidError(place, expected, value)

    return check


def text_up_to(longest: int) -> Schema:
    """Text of a bounded length."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, str) or len(value) > longest:
            raise InvalidError(place, f"text of at most {longest:,} characters", value)

    return check


TEXT = text_up_to(10_000)


def one_of(*choices: Any) -> Schema:
    """One of a few values."""

    def check(value: Any, place: str) -> None:
        if not any(value is choice or (type(value) is type(choice) and value == choice) for choice in choices):
            raise InvalidError(place, f"one of {', '.join(map(repr, choices))}", value)

    return check


def optional(schema: Schema) -> Schema:
    """None, or what another schema allows."""
    return lambda value, place: None if value is None else schema(value, place)


def list_of(schema: Schema, lengths: Sequence[int] | None = None) -> Schema:
    """A list of values with the same schema; ``lengths``: allowed numbers of values, in ascending order."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, list):
            raise InvalidError(place, "a list", value)
        if lengths is not None and len(value) not in lengths:
            ends = map(str, sorted({lengths[0], lengths[-1]}))
            expected = (" to " if isinstance(lengths, range) else " or ").join(ends)
            raise InvalidError(f"the length of {place}", expected, len(value))
        for index, entry in enumerate(value):
            schema(entry, f"{place}[{index}]")

    return check


def per_task(schema_of: Callable[[int], Schema], lengths: Sequence[int]) -> Schema:
    """A list with an entry for each task, whose schema depends on the number of the task."""

    def check(value: Any, place: str) -> None:
        list_of(lambda entry, where: None, lengths)(value, place)
        for task, entry in enumerate(value):
            schema_of(task)(entry, f"{place}[{task}]")

    return check


def table(
    required: Mapping[str, Schema], others: Mapping[str, Schema] | None = None, rest: Schema | None = None
) -> Schema:
    """Names and values: some that must be there, others that may be, and a schema for all the rest."""

    def check(value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise InvalidError(place, "a table of names and values", value)
        for name in required:
            if name not in value:
                raise ValueError(f"{_inside(place, name)} is missing")
        known = {**(others or {}), **required}
        for name, entry in value.items():
            schema = known.get(name, rest)
            TEXT(name, f"a name in {place or 'it'}")
            if isinstance(value, Repeated) and name == value.name:
                raise ValueError(f"{_inside(place, name)} occurs more than once")
            if schema is not None:
                schema(entry, _inside(place, name))

    return check


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


FINITE = number(-sys.float_info.max, sys.float_info.max)


def plain(value: Any, place: str, depth: int = 0) -> None:
    """Text, numbers, true, false, None, and lists and tables of them."""
    if depth > DEEPEST:
        raise InvalidError(place, f"at most {DEEPEST} lists or tables deep", value)
    if isinstance(value, list):
        list_of(lambda entry, where: plain(entry, where, depth + 1))(value, place)
    elif isinstance(value, dict):
        table({}, rest=lambda entry, where: plain(entry, where, depth + 1))(value, place)
    elif isinstance(value, str):
        TEXT(value, place)
    elif value is not None and not isinstance(value, bool):
        FINITE(value, place)


# The files of a run

EARLIER_METHODS = {"softcuber": "soft-cuber"}
"""Names of methods in files of earlier versions, and the present ones."""

SEED = number(0, 2**63 - 1, whole=True)
COUNT = number(0, whole=True)
AMOUNT = number(0)
PLAIN_TABLE = table({}, rest=plain)
LOOP = {"epochs": number(1, whole=True), "lr": number(0, above=True)}
"""Training options with which tables compute; the settings of a method may have the same names."""
TASKS = list_of(table({"name": TEXT}, rest=plain))

CONFIG = table(
    {},
    {
        "experiment": table(
            {},
            {"benchmark": TEXT, "method": TEXT, "seed": SEED, "threads": number(1, 2**20, whole=True)}
            | {"options": PLAIN_TABLE},
            rest=plain,
        ),
        "stream": table({}, {"tasks": list_of(PLAIN_TABLE)}, rest=plain),
    },
    rest=PLAIN_TABLE,
)
"""``config.toml``."""

EVENT = table({"event": TEXT, "task": COUNT}, {"epoch": COUNT})
"""A line of ``log.jsonl`` about an epoch or an evaluation."""
ERROR = table({"message": text_up_to(2**24)})
"""``error.json``."""

MEASURE = table(
    {},
    {"name": TEXT, "higher_is_better": one_of(True, False), "unit": one_of("%", "")},
    rest=lambda value, place: _refuse(place),
)
EPOCH = table(
    {"train_loss": optional(FINITE), "lr": FINITE, "seconds": AMOUNT},
    {"kept": one_of(True, False)}
    | dict.fromkeys(("validation_loss", "validation_accuracy", "train_accuracy"), optional(FINITE)),
    rest=lambda value, place: _refuse(place),
)
REGIME = table(
    {"regime": one_of(1, 2, 3), "ratio": optional(FINITE), "cosine": optional(FINITE), "demoted_at": optional(COUNT)}
)
CONDITIONS = table(dict.fromkeys(("ratio", "cosine", "eps2", "step_size", "agreement"), optional(number())))
POOL = table({"size": AMOUNT, "dimension": number(1)})
FOUND = table(
    {"kind": one_of("new", "known", "drift"), "task": COUNT, "change": COUNT, "noticed": COUNT, "log_evidence": FINITE}
)
BOUNDARIES = table(
    {
        "found": list_of(FOUND),
        "changes": list_of(COUNT),
        "delays": list_of(optional(COUNT)),
        "answers": list_of(COUNT),
        "false_alarms": COUNT,
        "batches": COUNT,
        "largest_buffer": COUNT,
    }
)


def check_result(values: Any) -> None:
    """Raise a ValueError that names the first invalid value, unless these are the values of ``result.json``."""
    table({"tasks": TASKS, "accuracy": list_of(plain)}, {"metric": MEASURE})(values, "")
    tasks, rows = len(values["tasks"]), len(values["accuracy"])
    list_of(plain, range(1, 2**31))(values["tasks"], "tasks")
    list_of(plain, (1, tasks))(values["accuracy"], "accuracy")
    in_percent = values.get("metric", {}).get("unit", "%") == "%"
    value = number(0, 100) if in_percent else number()
    list_of(plain)(values.get("history", []), "history")
    detected = len(values.get("history", [])) if values.get("boundaries") is not None else 0
    some_rows, some_tasks = range(max(rows, detected) + 1), range(1, max(tasks, detected) + 1)
    all_or_none = sorted({0, rows, detected})

    def row(index: int) -> Schema:
        learned = index + 1 if rows == tasks else tasks
        return per_task(lambda task: value if task < learned else _later, [tasks])

    def of_old_tasks(schema: Schema) -> Callable[[int], Schema]:
        return lambda task: table(
            {}, dict.fromkeys(map(str, range(task)), schema), rest=lambda _, place: _refuse(place)
        )

    def by_layer(schema_of: Callable[[int], Schema]) -> Schema:
        return per_task(lambda task: table({}, rest=schema_of(task)), some_rows)

    table(
        {
            "benchmark": TEXT,
            "method": TEXT,
            "seed": SEED,
            "settings": table({}, LOOP, rest=plain),
            "training": table(LOOP, rest=plain),
            "accuracy": per_task(row, [rows]),
            "seconds": list_of(AMOUNT, some_tasks),
            "bytes": list_of(table({}, rest=AMOUNT), some_tasks),
        },
        {
            "accuracy_bare": optional(per_task(row, [rows])),
            "accuracy_inferred": optional(per_task(row, [rows])),
            "reshuffled": list_of(list_of(value, [tasks])),
            "regimes": per_task(lambda task: table({}, rest=of_old_tasks(REGIME)(task)), all_or_none),
            "predictions": list_of(number(), all_or_none),
            "boundaries": optional(BOUNDARIES),
            "theory": by_layer(lambda task: table({"old": of_old_tasks(CONDITIONS)(task)})),
            "pool": by_layer(lambda task: POOL),
            "history": list_of(list_of(EPOCH)),
            "machine": PLAIN_TABLE,
            "notes": list_of(TEXT),
        },
    )(values, "")


def _later(value: Any, place: str) -> None:
    if value is not None:
        raise InvalidError(place, "null, because this task is learned later", value)


def _refuse(place: str) -> None:
    raise ValueError(f"{place} is not a name that can be there")
