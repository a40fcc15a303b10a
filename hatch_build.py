"""Puts the JavaScript that draws the pages' charts into the package, as vl-convert bundles it:
pages then need neither a network nor vl-convert, which is 84 MB."""

from pathlib import Path
from typing import Any

import vl_convert
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ChartScript(BuildHookInterface[Any]):
    """Writes report/assets/vega.js before a wheel is built, or the checkout installed."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """See BuildHookInterface."""
        script = "src/loadstone/report/assets/vega.js"
        bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        # It stands in a script element of the pages, which it must not end.
        Path(self.root, script).write_text(
            bundle.replace("</script", "<\\/script"), encoding="utf-8"
        )
        build_data["artifacts"].append(script)
