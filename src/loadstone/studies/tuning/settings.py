"""Makes the settings of a race: values of an engine's flags, without those that cannot be."""

import itertools
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from loadstone.core.errors import InputError
from loadstone.engines.table import EngineTable, Tie, TunedFlag, engine_tables

Value = str | int | float | bool
_MOST_PRODUCT = 4_096


class Setting(NamedTuple):
    """Values of flags, by the flags' names without dashes; of the default none. `layout`: hardware
    and parallelism, where these are tried too; empty: the deployment's own."""

    values: tuple[tuple[str, Value], ...] = ()
    layout: str = ""

    @property
    def name(self) -> str:
        words = [self.layout] if self.layout else []
        words += [f"{flag} {show_value(value)}" for flag, value in self.values]
        return ", ".join(words) or "default"


class RefusedSetting(NamedTuple):
    """A setting that is not launched, and why."""

    setting: Setting
    why: str


class FlagValues(NamedTuple):
    """Flags that are changed together, and the values that they take in turn."""

    flags: tuple[str, ...]
    values: tuple[Value, ...]


def show_value(value: Value) -> str:
    """Return a value as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def tuned_flags(engine: str) -> dict[str, TunedFlag]:
    return engine_tables().get(engine, EngineTable()).tune


def find_flag(engine: str, name: str) -> str:
    """Return a flag by any of its names, dashes or not, as the engine's table has it; one that it
    does not have as it was written."""
    plain = name.strip().lstrip("-").replace("_", "-")
    for flag, row in tuned_flags(engine).items():
        if plain in (flag.replace("_", "-"), *row.also):
            return flag
    return name.strip().lstrip("-")


def read_flags(engine: str, texts: Sequence[str]) -> list[FlagValues]:
    """Read what is to be tried: `FLAG=V1,V2`, `FLAG` with the table's values, `A+B=V1,V2` for flags
    that change together; without any, the engine's main flags. Raises InputError."""
    rows = tuned_flags(engine)
    wanted = list(texts) or [flag for flag, row in rows.items() if row.main]
    if not wanted:
        raise InputError(f"--set: no flags of {engine} are known here; name some: --set FLAG=V1,V2")
    found: list[FlagValues] = []
    for text in wanted:
        names, _, values = text.partition("=")
        flags = tuple(find_flag(engine, name) for name in names.split("+"))
        _check_names(engine, flags, text, [flag for taken in found for flag in taken.flags])
        read = tuple(read_value(part) for part in values.split(",") if part.strip())
        read = tuple(dict.fromkeys(read)) or _table_values(rows.get(flags[0], TunedFlag()))
        if not read:
            raise InputError(
                f"--set {text}: no values of {flags[0]} are known here; write --set"
                f" {flags[0]}=V1,V2"
            )
        found.append(FlagValues(flags, read))
    return found


def _check_names(engine: str, flags: tuple[str, ...], text: str, taken: Collection[str]) -> None:
    rows = tuned_flags(engine)
    for flag in flags:
        if not flag:
            raise InputError(f"--set {text}: no flag is named; write --set FLAG=V1,V2")
        if flag in taken or flags.count(flag) > 1:
            raise InputError(f"--set {text}: {flag} is set twice; give it once, with all values")
        if flag in rows and rows[flag].unread:
            raise InputError(
                f"--set {text}: since {rows[flag].unread} nothing in {engine} reads {flag}; leave"
                " it out"
            )


def read_value(text: str) -> Value:
    """Read a value as numbers and switches are written; anything else is text."""
    plain = text.strip()
    for kind in (int, float):
        try:
            return kind(plain)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(plain.lower(), plain)


def _table_values(row: TunedFlag) -> tuple[Value, ...]:
    """Return the values that the table has; for a flag of cores, those of this machine."""
    if not row.cores:
        return row.values
    cores = os.cpu_count() or 1
    return tuple(1 << power for power in range(cores.bit_length()) if 1 << power <= cores)


def combine(
    wanted: Sequence[FlagValues], layouts: Sequence[str], given: Mapping[str, Value]
) -> list[Setting]:
    """Return the settings that these values make, the default first. A value that the deployment
    has already changes nothing, so that combinations of such values alone are the default.

    given: the flags that the default has, by their names here
    """
    count = len(layouts or ("",))
    for flags in wanted:
        count *= len(flags.values)
    if count > _MOST_PRODUCT:
        raise InputError(
            f"--set: {count:,} combinations, more than {_MOST_PRODUCT:,}; give fewer values"
        )
    settings = [Setting()]
    for layout in layouts or ("",):
        for values in itertools.product(*(flags.values for flags in wanted)):
            pairs = tuple(
                (flag, value)
                for flags, value in zip(wanted, values, strict=True)
                for flag in flags.flags
                if given.get(flag) != value
            )
            settings.append(Setting(pairs, layout))
    return list(dict.fromkeys(settings))


def find_broken_tie(engine: str, setting: Setting, given: Mapping[str, Value]) -> str | None:
    """Say which values of a setting do not go together; None: all do. `given`: as combine() has
    it."""
    table = engine_tables().get(engine, EngineTable())
    values = {**given, **dict(setting.values)}
    for tie in table.tie:
        broken = _broken(tie, values)
        if broken:
            return f"{broken}: {tie.why}"
    return None


def _broken(tie: Tie, values: Mapping[str, Value]) -> str:
    """Name the flags of a tie that is broken, with their values; empty: it holds."""
    if tie.least is not None:
        large, small = tie.least
        pair = values.get(large), values.get(small)
        if all(isinstance(value, int | float) for value in pair) and pair[0] < pair[1]:  # type: ignore[operator]
            return f"{large} {pair[0]} with {small} {pair[1]}"
    for flag, refused in tie.where.items():
        if show_value(values.get(flag, "")) not in refused:
            continue
        for partner, needed in tie.needs.items():
            value = values.get(partner)
            if value is not None and show_value(value) not in needed:
                return f"{flag} {show_value(values[flag])} with {partner} {show_value(value)}"
    return ""


def find_heavier(engine: str, settings: Sequence[Setting]) -> list[set[int]]:
    """Return for every setting the others that take at least as much of every memory: all else is
    equal, and what differs takes more there."""
    rows = tuned_flags(engine)
    return [
        {
            number
            for number, larger in enumerate(settings)
            if number != index and _takes_more(rows, smaller, larger)
        }
        for index, smaller in enumerate(settings)
    ]


def _takes_more(rows: Mapping[str, TunedFlag], smaller: Setting, larger: Setting) -> bool:
    first, second = dict(smaller.values), dict(larger.values)
    if first.keys() != second.keys() or smaller.layout != larger.layout:
        return False
    for flag, value in first.items():
        sign = rows[flag].memory if flag in rows else 0
        value_of_larger = second[flag]
        if value == value_of_larger:
            continue
        if (
            not sign
            or not isinstance(value, int | float)
            or not isinstance(value_of_larger, int | float)
        ):
            return False
        if sign * (value_of_larger - value) < 0:
            return False
    return True


def changes_answers(engine: str, settings: Sequence[Setting]) -> bool:
    """Tell whether any setting may change what the model answers."""
    rows = tuned_flags(engine)
    return any(
        flag in rows and rows[flag].answers for setting in settings for flag, _ in setting.values
    )


def arguments(setting: Setting) -> Iterator[tuple[str, str | int | float | None]]:
    """Yield a setting as a study's `args` have it: a switch that is on has no value, one that is
    off is left out."""
    for flag, value in setting.values:
        if value is not False:
            yield flag, None if value is True else value
