"""Pictures: from points and samples to Vega-Lite specifications, one for HTML, SVG and PNG
alike."""
