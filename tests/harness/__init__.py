"""Plugins of pytest for the whole suite: the order of tests, the expected skips, the evidence of a failure."""
