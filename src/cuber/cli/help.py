"""Help texts: options in groups, and the defaults that a benchmark decides."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

OF_BENCHMARK = "of the benchmark"
"""``show_default`` of options whose default the benchmark decides."""
HERE = 'Training options have the defaults of each benchmark; "here" shows them.'
"""Said once, so that no option has to."""
ARGUMENTS, EXPERIMENT, TRAINING, STREAM = "Arguments", "Experiment", "Training", "Streams of single benchmarks"
DIRECTORY, MACHINE, OTHER = "Run directory", "Machine", "Options"
GROUPS = (ARGUMENTS, EXPERIMENT, TRAINING, STREAM, DIRECTORY, MACHINE, OTHER)
"""In the order of the help."""
GIVEN = "cuber.arguments"
"""Key of the arguments of a command in its context."""


class Command(TyperCommand):
    """A command whose help has one group of options for each ``rich_help_panel``.

    Of several names of an option, the help and the completion show the first and the short ones; the others are
    earlier names, which still work.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[GIVEN] = list(args)
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)
        if _has_defaults_of_benchmark(self.get_params(ctx)):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(HERE)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        shown = [parameter for parameter in self.get_params(ctx) if not getattr(parameter, "hidden", False)]
        names = {parameter.name: _names(parameter) for parameter in shown}
        width = max(map(len, names.values()))
        here = self._defaults_of_benchmark(ctx, shown)
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in shown:
            title = ARGUMENTS if parameter.param_type_name == "argument" else OTHER
            rows = groups.setdefault(getattr(parameter, "rich_help_panel", None) or title, [])
            rows.append((names[parameter.name].ljust(width), _text(parameter, here)))
        for title in sorted(groups, key=GROUPS.index):
            with formatter.section(title):
                formatter.write_dl(groups[title])

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        return [self.options_metavar or "", *(_names(one) if one.required else f"[{_names(one)}]" for one in arguments)]

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        earlier = {name for parameter in self.get_params(ctx) for name in _long(parameter)[1:]}
        return [item for item in super().shell_complete(ctx, incomplete) if item.value not in earlier]

    def _defaults_of_benchmark(self, ctx: Any, parameters: list[Any]) -> dict[str, str]:
        """Defaults of the benchmark that the arguments name, by option; none where they name several."""
        if not _has_defaults_of_benchmark(parameters):
            return {}
        arguments = [text for text in ctx.meta.get(GIVEN, []) if text not in ctx.help_option_names]
        chosen = self.make_context(ctx.info_name, arguments, ctx.parent, resilient_parsing=True).params
        benchmarks = chosen.get("what") if "what" in chosen else [chosen.get("benchmark")]
        methods = str(chosen.get("methods") or chosen.get("method") or "cuber").split(",")
        if not benchmarks or len(benchmarks) > 1 or len(methods) > 1:
            return {}
        from cuber.errors import CuberError
        from cuber.experiments import Experiment

        named: dict[str, Any] = {"benchmark": benchmarks[0], "method": methods[0], "protocol": chosen.get("protocol")}
        try:
            experiment = Experiment(**{name: value for name, value in named.items() if value is not None})
        except CuberError:  # the command itself will say what is wrong
            return {}
        values = vars(experiment.training()) | {"threads": experiment.preset.threads or "torch's"}
        values["protocol"] = experiment.protocol or next(iter(experiment.preset.protocols))
        return {name: _value(value) for name, value in values.items()}


def _has_defaults_of_benchmark(parameters: list[Any]) -> bool:
    return any(getattr(parameter, "show_default", None) == OF_BENCHMARK for parameter in parameters)


def _value(value: Any) -> str:
    """A default in words.

    >>> _value(None), _value(False), _value(1e-05)
    ('none', 'off', '1e-05')
    """
    if value is None:
        return "none"
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)


def _long(parameter: Any) -> list[str]:
    return [name for name in parameter.opts if name.startswith("--")]


def _names(parameter: Any) -> str:
    """The first column: ``-o, --out DIR``, or the name of an argument."""
    if parameter.param_type_name == "argument":
        return (parameter.metavar or parameter.name.upper()) + "..." * (parameter.nargs == -1)
    short = [name for name in parameter.opts if not name.startswith("--")]
    metavar = "" if parameter.is_flag else f" {parameter.metavar or 'NAME'}"
    return ", ".join([*short, *_long(parameter)[:1]]) + metavar


def _text(parameter: Any, here: dict[str, str]) -> str:
    """The second column: what it is, and its default."""
    text = (parameter.help or "").removesuffix(".")
    default = parameter.show_default
    if default is True:
        default = parameter.default if not (parameter.required or getattr(parameter, "is_flag", False)) else None
    if default == OF_BENCHMARK:
        return f"{text} (here: {here[parameter.name]})" if parameter.name in here else text
    return text if default is None or default is False or default == [] else f"{text} (default: {default})"
