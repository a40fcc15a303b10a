"""Reads a config.json, which is others' text, with bounds, remembering which fields were
understood."""

from __future__ import annotations

from typing import Any

from loadstone.core.errors import InputError

_MOST = 10**9
MOST_LAYERS = 2_000


class Fields:
    """Holds the fields of one JSON object. Names of a getter are tried in order; null counts as
    absent."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where
        self.used: set[str] = set()
        self.assumed: list[str] = []
        self.spellings: dict[str, tuple[str, ...]] = {}

    def find(self, *names: str) -> tuple[str, Any] | None:
        """Return the first of them that is there, with its value; all count as understood from now
        on."""
        all_names = (
            spelling for name in names for spelling in (name, *self.spellings.get(name, ()))
        )
        present = [name for name in all_names if name in self.values]
        self.used.update(present)
        return next(
            ((name, self.values[name]) for name in present if self.values[name] is not None), None
        )

    def raw(self, *names: str) -> Any:
        """Return the value as it stands; None: absent."""
        entry = self.find(*names)
        return None if entry is None else entry[1]

    def count(self, *names: str, default: int | None = None, least: int = 0) -> int:
        """Return a whole number. Raises InputError where it is absent without default, or out of
        bounds."""
        number = self.maybe(*names, least=least)
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

    def maybe(self, *names: str, least: int = 0) -> int | None:
        entry = self.find(*names)
        return None if entry is None else self.whole(*entry, least=least)

    def whole(self, name: str, value: Any, least: int = 0) -> int:
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
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
            raise InputError(
                f"{self.where}: {name} is {_short(value)}; it must be a whole number of {least} to"
                f" {_MOST}"
            )
        return value

    def layers(self, count: int) -> int:
        """Return a number of layers, looked at before anything is made of each. Raises
        InputError."""
        if not 0 < count <= MOST_LAYERS:
            raise InputError(f"{self.where}: {count} layers; a model has 1 to {MOST_LAYERS}")
        return count

    def real(self, name: str, default: float) -> float:
        """Return a number of 0 to 1000, no fraction needed. Raises InputError."""
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
        value = self.raw(*names)
        return default if value is None else bool(value)

    def text(self, *names: str, default: str = "") -> str:
        name, value = self.find(*names) or ("", default)
        if not isinstance(value, str) or len(value) > 10_000:
            raise InputError(f"{self.where}: {name} is {_short(value)}; it must be a text")
        return value

    def items(self, *names: str) -> list[Any] | None:
        name, value = self.find(*names) or ("", None)
        if value is not None and (not isinstance(value, list) or len(value) > 100 * MOST_LAYERS):
            raise InputError(f"{self.where}: {name} is {_short(value)}; it must be a list")
        return value

    def inner(self, *names: str) -> Fields | None:
        """Return an object within; its own fields are remembered by itself."""
        name, value = self.find(*names) or ("", None)
        return Fields(value, f"{self.where}, {name}") if isinstance(value, dict) else None

    def of_layer(self, index: int) -> Fields:
        """Return the fields with what `per_layer_config` (transformers 5) says of this layer in
        place of what holds for all. Raises InputError: it says what has no place among those.
        """
        each_layer = self.raw("per_layer_config")
        if not isinstance(each_layer, dict):
            return self
        # Keys are as wide as the largest: "05".
        changed: Any = next(
            (
                values
                for key, values in each_layer.items()
                if (key.lstrip("0") or "0") == str(index)
            ),
            {},
        )
        where = f"{self.where}, per_layer_config[{index}]"
        if not isinstance(changed, dict):
            raise InputError(f"{where}: must be an object")
        new = sorted(changed.keys() - self.values.keys())
        if new:
            raise InputError(f"{where}: {new[0][:40]} is not understood of one layer")
        layer = Fields({**self.values, **changed}, where)
        layer.used, layer.assumed, layer.spellings = self.used, self.assumed, self.spellings
        return layer

    def spread(self, *names: str) -> None:
        """Have the fields of these objects stand beside the others, which come first (DBRX,
        MPT)."""
        for name in names:
            part = self.inner(name)
            if part is not None:
                self.values = {**part.values, **self.values}

    def per_layer(self, layers: int, *names: str) -> list[Any] | None:
        """Return a list with an entry for each layer; longer ones (draft layers at the end) are
        cut. Raises InputError."""
        entries = self.items(*names)
        if entries is None:
            return None
        if len(entries) < layers:
            raise InputError(
                f"{self.where}: {names[0]} has {len(entries)} entries for {layers} layers"
            )
        return entries[:layers]

    def assume(self, text: str) -> None:
        if text not in self.assumed:
            self.assumed.append(text)


def _short(value: Any) -> str:
    text = (
        repr(value)
        if isinstance(value, (str, int, float, bool, type(None)))
        else type(value).__name__
    )
    return text if len(text) <= 60 else text[:57] + "..."
