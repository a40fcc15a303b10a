"""A headless Chromium for tests, driven over its DevTools protocol through a pair of pipes."""

from __future__ import annotations

import base64
import itertools
import json
import os
import re
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None or shutil.which("bash") is None, reason="no Chromium here to show the page in"
)


class Browser:
    """One tab. `complaints`: errors of scripts, of the console and of the content-security-policy
    so far."""

    def __init__(self, profile: Path, *, dark: bool = False, scripts: bool = True) -> None:
        assert CHROMIUM is not None
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        flags = [
            "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
            "--disable-background-networking", "--hide-scrollbars", f"--user-data-dir={profile}",
            *(["--blink-settings=preferredColorScheme=0"] if dark else []), "about:blank",
        ]  # fmt: skip
        # Chromium reads file 3 and writes file 4.
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$0" "$@" 3<&{to_browser} 4>&{from_browser}', CHROMIUM, *flags],
            pass_fds=(to_browser, from_browser), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._numbers = itertools.count(1)
        self._unread = b""
        self.complaints: list[str] = []
        targets = self._send("Target.getTargets", session=False)["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self._send(
            "Target.attachToTarget", session=False, targetId=page, flatten=True
        )["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._send(f"{domain}.enable")
        self._send("Emulation.setScriptExecutionDisabled", value=not scripts)

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._out)
        self._process.terminate()
        self._process.wait(20)
        os.close(self._in)

    def size(self, width: int, height: int = 900) -> None:
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )

    def dark(self) -> None:
        self._send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark"}],
        )

    def media(self, name: str) -> None:
        self._send("Emulation.setEmulatedMedia", media=name)

    def pages(self) -> int:
        """How many sheets of A4 the page is printed on."""
        text = base64.b64decode(
            self._send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"]
        )
        return len(re.findall(rb"/Type\s*/Page\b", text))

    def open(self, url: str) -> None:
        said = self._send("Page.navigate", url=url)
        assert "errorText" not in said, said
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """What a JavaScript expression gives, awaited if it is a promise."""
        said = self._send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    def until(self, script: str, within_s: float = 30) -> None:
        """Wait until an expression is true, also through a change of page."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                if self.run(script):
                    return
            except (AssertionError, RuntimeError):
                pass  # the page was just going
            assert time.monotonic() < deadline, f"never true: {script}\n{self.complaints}"
            time.sleep(0.05)

    def press(self, key: str, *, shift: bool = False) -> None:
        code = {"Tab": 9, "Enter": 13, " ": 32}[key]
        fields: dict[str, Any] = {
            "key": key,
            "code": {" ": "Space"}.get(key, key),
            "windowsVirtualKeyCode": code,
        }
        text = {"Enter": "\r", " ": " "}.get(key)
        down: dict[str, Any] = {"text": text} if text else {}
        modifiers = 8 if shift else 0
        self._send("Input.dispatchKeyEvent", type="keyDown", modifiers=modifiers, **fields, **down)
        self._send("Input.dispatchKeyEvent", type="keyUp", modifiers=modifiers, **fields)

    def mouse(self, kind: str, x: float, y: float) -> None:
        self._send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def cookies(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._send("Network.getCookies")["cookies"]
        return found

    def accessible(self) -> list[tuple[str, str]]:
        """(role, name) of everything that a screen reader is told of."""
        nodes = self._send("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node.get("ignored") and "role" in node
        ]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        if whole:
            height = self.run("Math.min(6000, document.documentElement.scrollHeight)")
            width = self.run("window.innerWidth")
            self.size(width, height)
        path.write_bytes(
            base64.b64decode(self._send("Page.captureScreenshot", format="png")["data"])
        )

    def _send(self, method: str, *, session: bool = True, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        said: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            said["sessionId"] = self._session
        message = json.dumps(said).encode() + b"\0"
        while message:
            message = message[os.write(self._out, message) :]
        while True:
            answer = self._next()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._notice(answer)

    def _notice(self, event: dict[str, Any]) -> None:
        said = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(said["exceptionDetails"])[:500])
        elif event.get("method") == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.complaints.append(f"{said['entry']['text']} {said['entry'].get('url', '')}")
        elif event.get("method") == "Runtime.consoleAPICalled" and said["type"] in (
            "error",
            "warning",
        ):
            self.complaints.append(json.dumps(said["args"])[:500])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._in], [], [], 180)
            assert ready, "Chromium does not answer"
            piece = os.read(self._in, 1 << 20)
            assert piece, "Chromium went away"
            self._unread += piece
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found
