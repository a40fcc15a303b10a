"""Reads the fields of a config.json, which anybody may have written, with bounds; remembers which
of them were read, so that a field that nobody reads can be reported."""

from __future__ import annotations

from typing import Any

from loadstone.core.errors import InputError

_MAX_COUNT = 10**9
MOST_LAYERS = 2_000


class Fields:
    """Holds the fields of one JSON object.

    A getter takes several names for one field and reads the first that is there; null counts as
    absent. A getter raises InputError where the value has the wrong type or is out of bounds.

    where      the file, and the place in it, for errors
    used       names that were read
    assumed    sentences on what the file left open and was assumed
    spellings  makers' other names, by the name that is asked for
    """

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self.used: set[str] = set()
        self.assumed: list[str] = []
        self.spellings: dict[str, tuple[str, ...]] = {}

    def find(self, *names: str) -> tuple[str, Any] | None:
        """Return the first of these names that has a value, and the value; all that are there count
        as read from now on."""
        all_names = (
            spelling for name in names for spelling in (name, *self.spellings.get(name, ()))
        )
        present = [name for name in all_names if name in self.values]
        self.used.update(present)
        return next(
            ((name, self.values[name]) for name in present if self.values[name] is not None), None
        )

    def raw(self, *names: str) -> Any:
        """Return the value as the file has it, of any type; None where it is absent."""
        entry = self.find(*names)
        return None if entry is None else entry[1]

    def count(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """Return a whole number of at least `least`. Raises InputError also where it is absent and
        has no default."""
        number = self.optional_count(*names, least=least)
        if number is not None:
            return number
        if default is None:
            raise InputError(f"{self.where}: no {names[0]}{self._absent(names[0])}")
        return default

    def _absent(self, name: str) -> str:
        kind = self.values.get("model_type")
        if not isinstance(kind, str) or not kind:
            return "; is it the config.json of a language model?"
        return (
            f", which {kind[:40]!r} may leave to its code or call by another name; add {name} to a"
            " copy of the file"
        )

    def optional_count(self, *names: str, least: int = 0) -> int | None:
        """Return a whole number of at least `least`; None where it is absent."""
        entry = self.find(*names)
        return None if entry is None else self.check_count(*entry, least=least)

    def check_count(self, name: str, value: Any, least: int = 0) -> int:
        """Return the value of a field as a whole number; of a list with the same one for each
        layer, that."""
        if (
            isinstance(value, list)
            and len(value) > 1
            and len(value) == self.values.get("num_hidden_layers")
        ):
            if any(entry != value[0] for entry in value):
                raise InputError(
                    f"{self.where}: {name} differs from layer to layer; only one for all is read"
                )
            value = value[0]
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or not least <= value <= _MAX_COUNT
        ):
            raise InputError(
                f"{self.where}: {name} is {_short(value)}; it must be a whole number of {least} to"
                f" {_MAX_COUNT}"
            )
        return value

    def check_layers(self, count: int) -> int:
        """Return a number of layers that is within bounds, to be called before anything is made for
        each of them."""
        if not 0 < count <= MOST_LAYERS:
            raise InputError(f"{self.where}: {count} layers; a model has 1 to {MOST_LAYERS}")
        return count

    def number(self, name: str, default: float) -> float:
        """Return a number above 0 and below 1000, whole or not."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1000:
            raise InputError(
                f"{self.where}: {name} is {_short(value)}; it must be a number above 0 and below"
                " 1000"
            )
        return value

    def flag(self, *names: str, default: bool = False) -> bool:
        """Return whether the value is true, as Python has it."""
        value = self.raw(*names)
        return default if value is None else bool(value)

    def text(self, *names: str, default: str = "") -> str:
        """Return a text of at most 10,000 characters."""
        name, value = self.find(*names) or ("", default)
        if not isinstance(value, str) or len(value) > 10_000:
            raise InputError(f"{self.where}: {name} is {_short(value)}; it must be a text")
        return value

    def entries(self, *names: str) -> list[Any] | None:
        """Return a list, whose entries are of any type; None where it is absent."""
        name, value = self.find(*names) or ("", None)
        if value is not None and (not isinstance(value, list) or len(value) > 100 * MOST_LAYERS):
            raise InputError(f"{self.where}: {name} is {_short(value)}; it must be a list")
        return value

    def inner(self, *names: str) -> Fields | None:
        """Return the fields of an object within this one, which remember for themselves what was
        read; None where there is no object."""
        name, value = self.find(*names) or ("", None)
        return Fields(value, f"{self.where}, {name}") if isinstance(value, dict) else None

    def of_layer(self, index: int) -> Fields:
        """Return the fields of one layer: those of `per_layer_config` (transformers 5) replace
        those of all layers. Raises InputError where it has one that the object has not.
        """
        by_layer = self.raw("per_layer_config")
        if not isinstance(by_layer, dict):
            return self
        # Keys are padded with zeros to the width of the largest: "05".
        changed: Any = next(
            (values for key, values in by_layer.items() if (key.lstrip("0") or "0") == str(index)),
            {},
        )
        where = f"{self.where}, per_layer_config[{index}]"
        if not isinstance(changed, dict):
            raise InputError(f"{where}: must be an object")
        unknown = sorted(changed.keys() - self.values.keys())
        if unknown:
            raise InputError(f"{where}: {unknown[0][:40]} is not understood of one layer")
        layer = Fields({**self.values, **changed}, where)
        layer.used, layer.assumed, layer.spellings = self.used, self.assumed, self.spellings
        return layer

    def flatten(self, *names: str) -> None:
        """Add the fields of these objects within to this object's own, which win (DBRX, MPT)."""
        for name in names:
            part = self.inner(name)
            if part is not None:
                self.values = {**part.values, **self.values}

    def per_layer(self, layers: int, *names: str) -> list[Any] | None:
        """Return a list with one entry for each layer; further entries, of draft layers at the end,
        are left out. Raises InputError where there are too few."""
        entries = self.entries(*names)
        if entries is None:
            return None
        if len(entries) < layers:
            raise InputError(
                f"{self.where}: {names[0]} has {len(entries)} entries for {layers} layers"
            )
        return entries[:layers]

    def assume(self, text: str) -> None:
        """Note once what the file leaves open and is assumed."""
        if text not in self.assumed:
            self.assumed.append(text)


def _short(value: Any) -> str:
    """Return a value for an error, in at most 60 characters; of a list or object its type."""
    text = (
        repr(value)
        if isinstance(value, (str, int, float, bool, type(None)))
        else type(value).__name__
    )
    return text if len(text) <= 60 else text[:57] + "..."
