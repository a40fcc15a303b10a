"""Makes the fields of options, and reads, changes and describes options by them.

A field is named as its flag, with _ for -; where it is a time in seconds, _s follows. Options lie
in groups, and users name them without their group.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, get_args, get_type_hints

import msgspec

from loadstone.core.errors import InputError
from loadstone.workload import option_values as values
from loadstone.workload.flag_names import no_such_option
from loadstone.workload.scenarios import complete

ARGUMENT, TARGET, WORKLOAD = "Arguments", "Target", "Workload"
LOAD, SIMULATOR, RUN = "Load", "Simulator", "Run"
DEPLOYMENT, ENGINE, WHERE = "Deployment", "Engine", "Where"
SEARCH, BATCH = "Search", "Batch"
"""Headings of a help text; ARGUMENT is for what stands without a flag."""
HEADINGS = (
    ARGUMENT,
    BATCH,
    DEPLOYMENT,
    ENGINE,
    WHERE,
    TARGET,
    WORKLOAD,
    LOAD,
    SIMULATOR,
    SEARCH,
    RUN,
)
"""Their order."""
Reader = Callable[[Any, str], Any]


class Limits(NamedTuple):
    """The numbers that an option may be, as a JSON Schema bounds them, and the same in `words`.
    Infinity is allowed only where `maximum` is."""

    words: str
    minimum: float = -math.inf
    exclusive_minimum: float = -math.inf
    maximum: float = sys.float_info.max

    def allow(self, value: float) -> bool:
        return self.exclusive_minimum < value <= self.maximum and self.minimum <= value

    def schema(self) -> dict[str, float]:
        """Return the bounds as a JSON Schema has them."""
        bounds = {
            "minimum": self.minimum,
            "exclusiveMinimum": self.exclusive_minimum,
            "maximum": self.maximum,
        }
        return {name: bound for name, bound in bounds.items() if abs(bound) < sys.float_info.max}


ABOVE_0 = Limits("must be above 0", exclusive_minimum=0)
SHARE = Limits("must be above 0 and at most 1", exclusive_minimum=0, maximum=1)
BURSTINESS = Limits(
    "must be above 0 (1 is Poisson, inf constant)", exclusive_minimum=0, maximum=math.inf
)
AT_LEAST_0, AT_LEAST_1 = Limits("must be 0 or more", 0), Limits("must be at least 1", 1)


class Flag(NamedTuple):
    """An option as the command line knows it.

    heading   under which `--help` lists it
    help      what it says there
    default   what it shows as the default: text, or the value itself
    read      from a text or a notebook's value to the field's, by value and name; None: the value
              as it is
    name      without -- and with _ for -; "" stands for the field's, without _s
    argument  its name as an argument of the command, where it has no flag there
    limits    the numbers that it may be
    short     a second name of one letter, with its -
    is_switch whether the command line gives it without a value
    """

    heading: str
    help: str
    default: Any = None
    read: Reader | None = None
    name: str = ""
    argument: str | None = None
    limits: Limits | None = None
    short: str = ""
    is_switch: bool = False

    @property
    def dashed(self) -> str:
        """The name as users of the command line write it, without --."""
        return self.name.rstrip("_").replace("_", "-")


def flag(
    heading: str, help: str, default: Any = None, read: Reader | None = None, **others: Any
) -> Any:
    """Make a field that is an option; see Flag. A `default` that is text is read; {} makes a new
    one for each."""
    shown = None if default in ((), {}) else default
    metadata = {"flag": Flag(heading, help, shown, read, **others)}
    if default == {}:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    value = read(default, "") if read is not None and isinstance(default, str) else default
    return dataclasses.field(
        default=tuple(value) if isinstance(value, list) else value, metadata=metadata
    )


def group(kind: type[Flags], heading: str = "", wording: Mapping[str, str] | None = None) -> Any:
    """Make a field that is a group of options.

    `wording`: fields of the group that are options here, each with its help, in which {} stands for
    what the group says; None: all of them. `heading`: theirs here; "": as in the group.
    """
    metadata = {"group": kind, "heading": heading, "wording": wording}
    return dataclasses.field(default_factory=kind, metadata=metadata)


@dataclasses.dataclass(kw_only=True)
class Flags:
    """Options: each field is one, made by flag(), or a group of them, made by group().

    `command_name`: bench, where users of other tools are told what their flags are called here.
    """

    command_name: ClassVar[str] = "size"

    @classmethod
    def read(cls, **given: Any) -> Self:
        """Make options as options_of() does, whatever their groups. Raises InputError."""
        return options_of(given, cls)

    @classmethod
    def refuse(cls, name: str) -> InputError:
        """Say in one line that `name` is no option of these, and what there is instead."""
        if name in ("json", "strict", "explain", "report"):
            return InputError(
                f"{name}: of the command alone; here the result comes back, with a verdict in each"
                " load"
            )
        names = [flag.name for flag in flags_of(cls).values()]
        return no_such_option(name, names, cls.command_name)


Kind = TypeVar("Kind", bound=Flags)


class Field(NamedTuple):
    """An option of a command: the group that holds it ("": none), what the command line knows of
    it, and its type. Without a `flag` it is no option of users."""

    group: str
    flag: Flag | None
    hint: Any


_fields: dict[type[Flags], dict[str, Field]] = {}


def fields_of(kind: type[Flags]) -> dict[str, Field]:
    """Return all fields, those of groups too, by their names; a dict to be read alone."""
    if kind in _fields:
        return _fields[kind]
    fields: dict[str, Field] = {}
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):
        about = field.metadata
        if "group" not in about:
            flag = about.get("flag")
            named = flag and flag._replace(name=flag.name or field.name.removesuffix("_s"))
            fields[field.name] = Field("", named, hints[field.name])
            continue
        wording = about["wording"]
        for name, (_, flag, hint) in fields_of(about["group"]).items():
            if wording is None or flag is None:
                fields[name] = Field(field.name, flag, hint)
            elif name in wording:
                heading, help = about["heading"] or flag.heading, wording[name].format(flag.help)
                fields[name] = Field(field.name, flag._replace(heading=heading, help=help), hint)
    _fields[kind] = fields
    return fields


def flags_of(kind: type[Flags]) -> dict[str, Flag]:
    """Return all options by field, in the order of the help text."""
    flags = {name: field.flag for name, field in fields_of(kind).items() if field.flag is not None}
    return dict(sorted(flags.items(), key=lambda item: HEADINGS.index(item[1].heading)))


def values_of(options: Flags) -> dict[str, Any]:
    """Return the values of all options by field, those of groups too."""
    return {
        name: getattr(getattr(options, field.group) if field.group else options, name)
        for name, field in fields_of(type(options)).items()
    }


def change(options: Kind, **changes: Any) -> Kind:
    """Return options with other values of some fields, whatever their groups."""
    parts = _in_groups(changes, type(options))
    for name in {field.group for field in fields_of(type(options)).values()} - {""}:
        parts[name] = dataclasses.replace(getattr(options, name), **parts[name])
    return dataclasses.replace(options, **parts)


def changed_options(options: Flags) -> dict[str, Any]:
    """Return the options that have another value than by being left out, by their flags, with - for
    _."""
    given, defaults = values_of(options), values_of(type(options)())

    def is_changed(field: str) -> bool:
        value = given[field]
        return bool((tuple(value) if isinstance(value, list) else value) != defaults[field])

    return {
        flag.dashed: given[field]
        for field, flag in flags_of(type(options)).items()
        if is_changed(field)
    }


def check_limits(options: Flags) -> None:
    """Raise InputError for a number beyond the limits of its option."""
    given = values_of(options)
    for field, flag in flags_of(type(options)).items():
        value = given[field]
        if value is not None and flag.limits is not None and not flag.limits.allow(value):
            shown = f"{value:g}" if isinstance(value, float) else value
            raise InputError(f"--{flag.dashed} {shown}: {flag.limits.words}")


def options_of(given: Mapping[str, Any], kind: type[Kind]) -> Kind:
    """Read options by their flags' names (with _ for -), or by those of the fields, each as a
    flag's text or a value.

    A time that is a number is in seconds; one value may stand for a list of it; None is an option
    left out. Raises InputError, one line, where there is no such option, or a value is none of its
    kind.
    """
    flags = flags_of(kind)
    if given.get("scenario") is not None:
        by_flag = {flags[name].name if name in flags else name: given[name] for name in given}
        defaults = {flag.name: flag.default for flag in flags.values()}
        given = complete(str(given["scenario"]), by_flag, defaults)
    field_of = {flag.name: field for field, flag in flags.items()}
    field_of |= {flag.name.rstrip("_"): field for field, flag in flags.items()}
    field_of |= {field: field for field in fields_of(kind)}
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in field_of:
            raise kind.refuse(name)
        field = field_of[name]
        if field in fields:
            raise InputError(f"{name}: given twice, by two names; give one")
        flag = flags.get(field)
        number = values.plain(value)
        if value is None:
            if flag is not None and flag.default is dataclasses.MISSING:
                fields[field] = None
        elif flag is None or flag.read is None:
            fields[field] = number
        else:
            fields[field] = flag.read(number, f"--{name.replace('_', '-')}")
    return _convert(fields, kind)


def _in_groups(values_by_field: Mapping[str, Any], kind: type[Flags]) -> dict[str, Any]:
    """Sort values into the groups to which their fields belong."""
    fields = fields_of(kind)
    parts: dict[str, Any] = {field.group: {} for field in fields.values() if field.group}
    for name, value in values_by_field.items():
        holder = fields[name].group if name in fields else ""
        (parts[holder] if holder else parts)[name] = value
    return parts


def _convert(fields: Mapping[str, Any], kind: type[Kind]) -> Kind:
    """Check the types of values. Raises InputError, one line."""
    try:
        return msgspec.convert(_in_groups(fields, kind), kind, strict=False)
    except UnicodeEncodeError:
        raise InputError(
            "an option holds half of a surrogate pair, which is no text; give text"
        ) from None
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at `$.")
        field = path.rstrip("`").partition("[")[0].rpartition(".")[2]
        if problem.startswith("Invalid enum value"):
            kinds = get_args(fields_of(kind)[field].hint)
            choices = [choice for part in kinds for choice in get_args(part)]
            problem += f"; choose one of {', '.join(choices)}"
        flag = flags_of(kind)[field]
        raise InputError(f"{flag.argument or f'--{flag.dashed}'}: {problem}") from error


def json_schema(kind: type[Flags]) -> dict[str, Any]:
    """Return a JSON Schema of the options by their flags' names, as a file of them has them: each
    as a value of its type or as the flag's text.
    """
    flags, fields = flags_of(kind), fields_of(kind)
    types, definitions = msgspec.json.schema_components(
        [fields[name].hint for name in flags], schema_hook=lambda path: {"type": "string"}
    )
    properties = {}
    for flag, kind_of_value in zip(flags.values(), types, strict=True):
        schema = kind_of_value
        if flag.read is not None:
            schema = {"anyOf": [kind_of_value, {"type": ["string", "number", "boolean"]}]}
        default = {} if flag.default in (None, dataclasses.MISSING) else {"default": flag.default}
        bounds = {} if flag.limits is None else flag.limits.schema()
        properties[flag.name] = schema | default | bounds | {"description": flag.help}
    required = [flag.name for flag in flags.values() if flag.default is dataclasses.MISSING]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
        "$defs": definitions,
    }


def list_in_docstring(kind: type[Kind]) -> type[Kind]:
    """Add the options to the end of the docstring of their class, which help() shows."""
    lines = (f"{flag.name:18} {flag.help}" for flag in flags_of(kind).values())
    kind.__doc__ = "\n    ".join((f"{kind.__doc__}\n", *lines))
    return kind
