"""One specification to SVG, PNG and HTML, offline."""

from __future__ import annotations

from pathlib import Path

from loadstone.core.errors import InputError
from loadstone.report.charts.theme import PNG_SCALE, Figure


def to_png(figure: Figure, scale: float = PNG_SCALE) -> bytes:
    import vl_convert

    drawn: bytes = vl_convert.vegalite_to_png(figure.spec, scale=scale, allowed_base_urls=[])
    return drawn


def to_svg(figure: Figure) -> str:
    import vl_convert

    drawn: str = vl_convert.vegalite_to_svg(figure.spec, allowed_base_urls=[])
    return drawn


def save_picture(picture: Figure, path: Path) -> None:
    """As HTML, SVG or PNG, by the name's ending; the HTML needs no network. Raises InputError for any other."""
    kind = path.suffix.lower()
    if kind == ".png":
        path.write_bytes(to_png(picture))
    elif kind == ".svg":
        path.write_text(to_svg(picture), encoding="utf-8")
    elif kind in (".html", ".htm"):
        import msgspec
        import vl_convert

        # It writes strings into a script element as they are: a model's name must not end that.
        harmless = msgspec.json.decode(msgspec.json.encode(picture.spec).replace(b"<", "‹".encode()))
        path.write_text(vl_convert.vegalite_to_html(harmless, bundle=True), encoding="utf-8")
    else:
        raise InputError(f"{path}: a picture's name ends in .png, .svg or .html")
