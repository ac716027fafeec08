"""Why something that lies in a sandbox cannot be read. A listing says which; these are the words for it."""

from __future__ import annotations

OTHER = "not a regular file"
FILE = "a file, not a directory"
UNREADABLE = "a file that may not be opened"
MORE = "more is there than one listing takes"
WHYS = {
    "": "",
    "link": "a symbolic link, which is never followed",
    "pipe": "a named pipe",
    "socket": "a socket",
    "device": "a device",
    "other": OTHER,
    "file": FILE,
    "unreadable": UNREADABLE,
    "closed": "a directory that cannot be looked into",
    "deep": "a directory too deep to be looked into",
    "more": MORE,
    "many": "more than 1,000 links, pipes and the like are in it",
}
