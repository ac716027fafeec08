"""Plugins of pytest for the whole suite: order, expected skips, the evidence of a failure, a last sweep, attacks."""
