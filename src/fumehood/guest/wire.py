"""What the host and the guest must agree on. Standard library only; the host's side may import this file alone."""

from __future__ import annotations

import struct

HEADER = struct.Struct("<Q")  # length of the program that follows
DONE = {0: 40, 1: 41}  # exit code: the real-time signal by which the program's interpreter says that it is done
