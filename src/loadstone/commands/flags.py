"""Flags: those that several commands share, and those that are made of the fields of options."""

import dataclasses
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from loadstone.core import plugins
from loadstone.workload.option_fields import RUN, Flag, Flags, fields_of, flags_of, options_of
from loadstone.workload.options import SimulateOptions

Command = Callable[..., None]
Kind = TypeVar("Kind", bound=Flags)
_REPEATED = {Sequence[str], Sequence[tuple[str, str]], Sequence[tuple[str, str | None]]}
"""Options of these types are flags that may be repeated."""


def option(heading: str, text: str, *names: str) -> Any:
    """Make an option that `--help` lists under `heading`."""
    return typer.Option(*names, help=text, rich_help_panel=heading)


def json_flag(content: str) -> Any:
    """Make the option --json of a command that prints `content` with it."""
    return typer.Option("--json", help=f"print {content} as JSON on stdout")


def _offer_models(incomplete: str) -> list[str]:
    """Offer a shell the catalogue's names of models that begin so."""
    from loadstone.catalogue import models

    names = {alias for model in models() for alias in (model.name, *model.aliases)}
    return sorted(name for name in names if name.startswith(incomplete))


def _offer_deployments(incomplete: str) -> list[str]:
    """Offer a shell models, and after the `@` GPUs."""
    from loadstone.catalogue import gpus

    model, separator, count = incomplete.partition("@")
    if not separator:
        return [f"{name}@" for name in _offer_models(incomplete)]
    number = count.partition("x")[0] or "1"
    words = (f"{model}@{number}x{gpu.name}" for gpu in gpus())
    return [word for word in words if word.startswith(incomplete)]


def _offer_endpoints(incomplete: str) -> list[str]:
    """Offer a shell the names of APIs that begin so."""
    return sorted(name for name in plugins.offers(plugins.WIRES) if name.startswith(incomplete))


_OFFERED = {
    "model": _offer_models,
    "models": _offer_deployments,
    "deployment": _offer_deployments,
    "endpoint": _offer_endpoints,
}
"""What completes an argument, or a flag, of this name."""


def _parameter(flag: Flag, hint: Any) -> inspect.Parameter:
    """Make a parameter of a command from an option, for typer to make a flag or an argument of."""
    default, kind = flag.default, hint
    kinds = {hint, *getattr(hint, "__args__", ())}
    if kinds & _REPEATED:
        kind = list[str]
    elif flag.is_switch:
        default, kind = False, bool
    elif flag.read is not None and Path not in kinds:
        kind = str
    names = [f"--{flag.dashed}", flag.short] if flag.short else []
    if flag.name.endswith("_") or (kind is bool and not default):
        names = [f"--{flag.dashed}"]
    shown = option(flag.heading, flag.help, *names)
    shown.autocompletion = _OFFERED.get(flag.name)
    if flag.argument:
        shown = typer.Argument(help=flag.help, autocompletion=_OFFERED.get(flag.argument))
    return inspect.Parameter(
        flag.argument or flag.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if default is dataclasses.MISSING else default,
        annotation=Annotated[kind | None if default is None else kind, shown],
    )


def parameters_of(kind: type[Flags]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a command by the fields of its options."""
    fields = fields_of(kind)
    return {name: _parameter(flag, fields[name].hint) for name, flag in flags_of(kind).items()}


def takes(
    kind: type[Kind], prepare: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> Callable[[Callable[..., None]], Command]:
    """Make a command of a function of `kind`'s options, whose other parameters are flags of the
    command alone. `prepare`: makes options of the words of the command line.
    """

    def decorate(function: Callable[..., None]) -> Command:
        _, *of_command = inspect.signature(function, eval_str=True).parameters.values()
        keeps_words = "command" in fields_of(kind)

        def command(**words: Any) -> None:
            values = {parameter.name: words.pop(parameter.name) for parameter in of_command}
            if keeps_words:
                words["command"] = ["loadstone", *sys.argv[1:]]
            function(options_of(prepare(words), kind), **values)

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__annotations__ = {}
        parameters = [*parameters_of(kind).values(), *of_command]
        keyword_only = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters
        ]
        command.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
        return command

    return decorate


_SIMULATED = {
    field: parameter.annotation for field, parameter in parameters_of(SimulateOptions).items()
}
Deployment: Any = _SIMULATED["deployment"]
Acceptance: Any = _SIMULATED["acceptance"]
Profile: Any = _SIMULATED["profile"]
Out: Any = _SIMULATED["out"]
Json = Annotated[bool, option(RUN, "print the summary as JSON on stdout", "--json")]
Strict = Annotated[
    bool, option(RUN, "exit 1 unless every load is trusted and every bound is met", "--strict")
]
_EXPLAIN = "also say what each number means, and all that was found"
Explain = Annotated[bool, option(RUN, _EXPLAIN, "--explain")]
PlainExplain = Annotated[bool, typer.Option("--explain", help=_EXPLAIN)]
"""Of a command whose options have no headings."""
Price = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        help="dollars per GPU and hour: h200=3.2,h100=2.1; adds the cost of a million tokens",
    ),
]
