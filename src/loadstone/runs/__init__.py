"""What executes a plan: `bench`, `simulate`, `calibrate`, `selftest`, and the preparations for them."""
