"""Parts of a data set's messages that are no text: pictures, videos and sound, as data URLs."""

import base64
import mimetypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from loadstone.core.files import read_bytes
from loadstone.core.pictures import FileSize
from loadstone.core.text import excerpt
from loadstone.workload.files import BadItem
from loadstone.workload.picture_files import MOST_SIDE, PictureFile, read_picture

MEDIA = frozenset({"image_url", "video_url", "audio_url", "input_audio"})
"""Kinds of parts that are sent as they are: servers count them, no rule here does but those of
pictures."""
_MOST_BYTES = 64 << 20
_ENCODED = re.compile('"data:image/[^",]*;base64,([^"]*)"')


def embed_files(item: Any, folder: Path) -> None:
    """Put files beside a data set into the parts of an item's messages that name them. Raises
    BadItem, also for a picture that is none."""
    for part in _parts(item.get("messages") if isinstance(item, dict) else None):
        kind = part.get("type")
        if kind not in MEDIA:
            continue
        named = part.get(kind)
        if kind == "input_audio":
            if not isinstance(named, dict) or not named.get("data"):
                raise BadItem("input_audio has no data; give it in base64")
            continue
        url = named.get("url") if isinstance(named, dict) else named
        if not isinstance(url, str) or not url:
            raise BadItem(f"{kind} has no url; give a data URL, or a file beside the data set")
        if not url.startswith("data:"):
            path = _find_file(url, folder)
            content = read_bytes(path, _MOST_BYTES, "give a smaller file")
            media = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            if kind == "image_url":
                media = _picture(content, url).media
            url = f"data:{media};base64,{base64.b64encode(content).decode()}"
        elif kind == "image_url":
            _picture(_decode(url), url)
        part[kind] = {**(named if isinstance(named, dict) else {}), "url": url}


def picture_urls(prompt: str) -> list[str]:
    """Return the data URLs of a data set's prompt's pictures, which embed_files() has looked at."""
    if '"image_url"' not in prompt:
        return []
    item = msgspec.json.decode(prompt)
    parts = _parts(item["messages"] if isinstance(item, dict) else item)
    return [part["image_url"]["url"] for part in parts if part.get("type") == "image_url"]


def picture_sizes(prompt: str) -> tuple[FileSize, ...]:
    """Return the sizes of these pictures."""
    return tuple(_picture(_decode(url), url).size for url in picture_urls(prompt))


def picture_bytes(prompt: str) -> int:
    """Return the bytes of the files of a prompt's pictures."""
    return sum(len(data) * 3 // 4 - data[-2:].count("=") for data in _ENCODED.findall(prompt))


def _parts(messages: Any) -> Iterator[dict[str, Any]]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict):
                yield part


def _decode(url: str) -> bytes:
    """Return the file of a data URL. Raises BadItem."""
    head, _, data = url.partition(",")
    if not head.endswith(";base64"):
        raise BadItem(f"{excerpt(url, 40)}: not in base64; write data:image/png;base64,…")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError as error:
        raise BadItem(
            f"{excerpt(url, 40)}: broken base64 ({error}); correct it, or leave it out"
        ) from None


def _picture(content: bytes, url: str) -> PictureFile:
    found = read_picture(content)
    if found is None:
        raise BadItem(
            f"{excerpt(url, 40)}: no PNG, JPEG, WebP or GIF with sides of 1 to {MOST_SIDE:,} pixels"
            " (other formats need Pillow); correct it, or leave it out"
        )
    return found


def _find_file(url: str, folder: Path) -> Path:
    """Return the path of a file beside the data set. Raises BadItem: elsewhere, or none."""
    if re.match("[a-z]+://", url.lower()):
        raise BadItem(
            f"{url[:80]}: the server would fetch it, and its time would be another server's; give"
            " data URLs, or files beside the data set"
        )
    path = (folder / url).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise BadItem(f"{url[:80]}: lies not beside the data set; put it there")
    if not path.is_file():
        raise BadItem(f"{url[:80]}: no such file beside the data set")
    return path
