"""Plans are executed here: `bench`, `simulate`, `offline`, `calibrate`, `selftest`, and the
preparations for them."""
