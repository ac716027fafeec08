"""What the host and the guest must agree on. Standard library only; the host's side may import this file alone.

A stateful interpreter hears and speaks frames: a length, then a JSON object.
host:  {"op": "run", "id": n, "code": str}
guest: {"id": n, "event": "display", "data": {mime: form}} in order, any number, then once
       {"id": n, "event": "done", "exit_code": 0..255, "error": exception type | null, "interrupted": bool}
"""

from __future__ import annotations

import struct

HEADER = struct.Struct("<Q")  # length of the program that follows
DONE = {0: 40, 1: 41}  # exit code: the real-time signal by which the program's interpreter says that it is done

FRAME = struct.Struct("<I")  # length of the JSON that follows
MAX_FRAME = 16 << 20
RESULTS_BYTES = 8 << 20  # all that one run may show
RESULTS_COUNT = 1000  # and in how many bundles
BUNDLE_BYTES = 4 << 20
BUNDLE_FORMS = 32
