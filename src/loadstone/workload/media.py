"""Parts of a data set's messages that are no text: pictures, videos and sound, as data URLs."""

import base64
import mimetypes
import re
from pathlib import Path
from typing import Any

from loadstone.core.files import read_bytes
from loadstone.workload.files import BadItem

MEDIA = frozenset({"image_url", "video_url", "audio_url", "input_audio"})
"""Kinds of parts that are sent as they are: servers count them, no rule here does."""
_MOST_BYTES = 64 << 20
_ENCODED = re.compile("data:image/[a-z+]+;base64,([A-Za-z0-9+/=]*)")


def embed_files(item: Any, folder: Path) -> None:
    """Put files beside a data set into the parts of an item's messages that name them. Raises
    BadItem."""
    messages = item.get("messages") if isinstance(item, dict) else None
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind not in MEDIA or kind == "input_audio":
                continue
            named = part.get(kind)
            url = named.get("url") if isinstance(named, dict) else named
            if not isinstance(url, str):
                raise BadItem(f"{kind} has no url; give a data URL, or a file beside the data set")
            part[kind] = {**(named if isinstance(named, dict) else {}), "url": _embed(url, folder)}


def _embed(url: str, folder: Path) -> str:
    """Return a data URL. Raises BadItem: a file elsewhere, or none."""
    if url.startswith("data:"):
        return url
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
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    content = base64.b64encode(read_bytes(path, _MOST_BYTES, "give a smaller file")).decode()
    return f"data:{kind};base64,{content}"


def count_pictures(prompt: str) -> tuple[int, int]:
    """Return how many pictures a prompt of messages has, and the bytes of their files."""
    sizes = [len(data) * 3 // 4 - data.count("=") for data in _ENCODED.findall(prompt)]
    return len(sizes), sum(sizes)
