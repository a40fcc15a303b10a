"""Tells what a model does with pictures: the tokens they become, and what its tower computes."""

import msgspec

from loadstone.catalogue.visual.rules import RULES, RULES_OF_RESOLUTIONS, Counted


class TowerShape(msgspec.Struct, frozen=True):
    """Holds the sizes of a tower for pictures.

    depth         layers; width: of their states; inner, matrices: of an MLP
    inputs        numbers of a patch
    joined        parameters of what joins it to the text model; of each deepstack layer too
    parameters    of all this
    windowed      layers whose attention sees `window` patches only
    deepstack     layers whose output goes to the text model besides the last one's
    """

    depth: int
    width: int
    inner: int
    matrices: int
    inputs: int
    joined: int
    parameters: int
    windowed: int = 0
    window: int = 0
    deepstack: int = 0

    def flops(self, patches: int) -> float:
        """Return the floating-point operations of one tile, without what joins it."""
        linear = 2 * patches * self.depth * self.width
        linear *= 4 * self.width + self.matrices * self.inner
        seen = (self.depth - self.windowed) * patches + self.windowed * min(patches, self.window)
        attention = 4 * self.width * patches * seen
        return linear + attention + 2 * patches * self.inputs * self.width


class Visual(msgspec.Struct, frozen=True):
    """Holds how a model, or an engine in its place, takes pictures.

    rule         its name in `RULES`; numbers: its numbers
    resolutions  (width, height) that a file lists; empty: the rule's own
    tower        None: the config does not say enough
    assumed      what no file said of the numbers, for the reader
    """

    rule: str
    numbers: dict[str, int]
    resolutions: tuple[tuple[int, int], ...] = ()
    tower: TowerShape | None = None
    assumed: tuple[str, ...] = ()

    def count(self, width: int, height: int) -> Counted:
        """Return what a picture of so many pixels becomes. Raises InputError: the model's processor
        refuses its shape."""
        if self.rule in RULES:
            return RULES[self.rule](width, height, self.numbers)
        return RULES_OF_RESOLUTIONS[self.rule](width, height, self.numbers, self.resolutions)

    def flops(self, counted: Counted) -> float | None:
        """Return what the tower computes for a picture, whose tiles see each other where layers of
        cross attention see them; None where its shape is not known."""
        if self.tower is None:
            return None
        joins = 2 * counted.seen * self.tower.joined
        tiles = (counted.patches,) if counted.cross else counted.tiles
        return sum(map(self.tower.flops, tiles)) + joins
