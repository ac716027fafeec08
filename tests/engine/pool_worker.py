"""What a worker of multiprocessing does; in a module of its own, which loads soon."""

from __future__ import annotations

from fumehood import get_sandbox


def work(number: int) -> str:
    with get_sandbox(isolation="sealed", require="sealed", store_code="never") as sandbox:
        return str(sandbox.execute(f"print({number} * 2)", timeout=280).stdout)
