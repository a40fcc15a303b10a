"""Finds the packages that only some uses need, which extras of Loadstone install."""

from importlib.util import find_spec

from loadstone.core.errors import InputError


def require(module: str, extra: str, use: str) -> None:
    """Check that this module is installed. Raises InputError, which names what needs it, `use`, and
    the extra that has it."""
    if find_spec(module) is None:
        raise InputError(f"{use}: {module} is not installed; pip install 'loadstone[{extra}]'")
