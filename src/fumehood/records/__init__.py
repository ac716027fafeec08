"""Stored accounts of executions, chained so that a missing or changed one shows."""

from .chain import Entry, Problem, Pruned
from .pruning import prune
from .read import Report, load_all, verify
from .record import build, failed
from .search import find
from .store import POLICIES, Store, count_together, lost, lost_by_all, takes

__all__ = [
    "POLICIES",
    "Entry",
    "Problem",
    "Pruned",
    "Report",
    "Store",
    "build",
    "count_together",
    "failed",
    "find",
    "load_all",
    "lost",
    "lost_by_all",
    "prune",
    "takes",
    "verify",
]
