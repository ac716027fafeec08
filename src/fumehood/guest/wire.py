"""What the host and the guest must agree on. Standard library only; the host's side may import this file alone.

A stateful interpreter hears and speaks frames: a length, then a JSON object.
host:  {"op": "run", "id": n, "code": str}
guest: {"id": n, "event": "began"}, {"id": n, "event": "display", "data": {mime: form}} in order, any number, then once
       {"id": n, "event": "done", "exit_code": 0..255, "error": exception type | null, "interrupted": bool}

The first process of a container hears and speaks frames for many programs: a kind, whose it is, a length, the rest.
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

PROTOCOL = 1  # of a container; a host and an image that differ in it do not go together
MUX = struct.Struct("<BII")  # kind, id of the program or file verb, length of the payload
MAX_DATA = 1 << 20  # a payload of the kinds in DATA; MAX_FRAME of all others
WINDOW = 1 << 20  # bytes of INPUT to one program that may be on their way before TAKEN gives them back

# host to container; marshal in START and FILE, bytes in INPUT and PART, nothing in the others
START, INPUT, END_INPUT, KILL, INTERRUPT, TELL_USAGE, FILE, PART = b"SIEKCUFW"
# container to host; JSON in HELLO, NOT_STARTED and ANSWER
HELLO, LOCKED, NOT_STARTED, STDOUT, STDERR, CHANNEL, TAKEN, USED, EXITED, BODY, ANSWER = b"Hrnoedcuxbf"
DATA = frozenset({INPUT, PART, STDOUT, STDERR, CHANNEL, BODY})
CREDIT = struct.Struct("<I")  # bytes
USAGE = struct.Struct("<QQB")  # cpu_ns, max_rss_bytes, flags
EXIT = struct.Struct("<iQQB")  # status as wait() gives it, cpu_ns, max_rss_bytes, flags
DISK_FULL, OUT_OF_MEMORY, OUT_OF_PROCESSES = 1, 2, 4
