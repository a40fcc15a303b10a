"""Options of other load generators, and what they are called here (flag_names.toml): told to who
uses one of those."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

import msgspec

from loadstone.core.errors import InputError


def other_flags() -> dict[str, str]:
    """Read what each flag of another tool, with its --, is here."""
    table = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes())
    return {f"--{name}": flag for name, flag in table.items()}


def flag_here(flag: str, command: str | None) -> str | None:
    """Write one line about another tool's flag of a load; None where it is none, or the command
    makes no load."""
    if command not in ("bench", "simulate"):
        return None
    hint = other_flags().get(flag)
    return None if hint is None else f"{flag}: here it is {hint}"


def no_such_option(name: str, names: Iterable[str], command: str) -> InputError:
    """Write one line about a name that is none of the `names` options: another tool's, else the
    nearest."""
    text = flag_here(f"--{name.replace('_', '-')}", command)
    if text is not None:
        return InputError(text)
    near = get_close_matches(name, list(names), n=1)
    return InputError(f"{name}: no such option" + (f"; the nearest is {near[0]}" if near else ""))
