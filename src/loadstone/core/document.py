"""Results of commands, typed: the functions of the package return them, `--json` prints them."""

from typing import Any

import msgspec


class Document:
    """A struct that is a command's result, beside msgspec.Struct among its bases."""

    __slots__ = ()

    def document(self) -> dict[str, Any]:
        """Return what the command prints with `--json`: dicts, lists, numbers and text."""
        document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self, enc_hook=str))
        return document


def null(name: str | None = None) -> Any:
    """Make the default of a field that is printed as null where it is not known."""
    return msgspec.field(name=name, default_factory=type(None))


class DocumentPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """The base of parts of a document, of which what nobody knows is left out."""
