"""Stored accounts of executions, chained so that a missing or changed one shows."""

from .chain import Entry, Problem, Pruned
from .pruning import prune
from .read import Report, load_all, verify
from .record import build, failed
from .search import find
from .store import POLICIES, Store

__all__ = [
    "POLICIES",
    "Entry",
    "Problem",
    "Pruned",
    "Report",
    "Store",
    "build",
    "failed",
    "find",
    "load_all",
    "prune",
    "verify",
]
