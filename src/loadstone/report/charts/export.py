"""One specification to SVG and PNG, offline."""

from __future__ import annotations

from loadstone.report.charts.theme import PNG_SCALE, Figure


def to_png(figure: Figure, scale: float = PNG_SCALE) -> bytes:
    import vl_convert

    drawn: bytes = vl_convert.vegalite_to_png(figure.spec, scale=scale, allowed_base_urls=[])
    return drawn


def to_svg(figure: Figure) -> str:
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(figure.spec, allowed_base_urls=[])
    return drawn
