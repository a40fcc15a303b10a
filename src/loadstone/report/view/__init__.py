"""The live page: run folders in a browser, read-only. `serve` starts it, `app` is the page, `guard`
its door."""
