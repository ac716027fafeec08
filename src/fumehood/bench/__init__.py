"""Measures fumehood beside what a user would pick instead, in one run."""

from __future__ import annotations

from .run import Options, run_bench

__all__ = ["Options", "run_bench"]
