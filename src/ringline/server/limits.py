"""Limits of a node. Sizes are bytes, times seconds."""

from __future__ import annotations

from typing import Final

#: connections that have not finished HELLO; each has settings.HELLO_TIMEOUT to do so. Where there
#: are more, the one that waited longest makes room, at the address that has most of them.
MOST_HALF_OPEN: Final = 128
#: the same, from one address.
MOST_HALF_OPEN_HERE: Final = 64
#: connections that said HELLO and no command yet; the one that waited longest makes room.
MOST_WAITING: Final = 128
#: sessions at once, unless --max-sessions says otherwise.
MOST_SESSIONS: Final = 64
#: connections of one session: the client's, those attached to it, and its peers'.
MOST_CONNECTIONS: Final = 64
#: buffers of one session; libllama makes a handful.
MOST_BUFFERS: Final = 65536
#: up to here malloc() may reuse memory of this process (M_MMAP_THRESHOLD at its highest); what is
#: larger comes fresh from the kernel, or from a larger buffer of the same session.
MOST_HEAP: Final = 32 << 20
#: tensor records whose place a session remembers; one step sets a few dozen.
MOST_REGIONS: Final = 4096
#: connections to other nodes that a session keeps for its next transfers.
MOST_LINKS: Final = 64
#: data that came before the command that waits for it, all tickets of a session together.
MOST_INBOX: Final = 256 << 20
#: tickets of a session, waited for or early.
MOST_TICKETS: Final = 4096
#: data that nobody claims is forgotten after this time.
EXPIRY: Final = 60.0
#: snapshots that wait to be sent to one destination; then SEND_TENSOR waits too.
MOST_QUEUED: Final = 256 << 20
#: the same for all destinations of a session together; then SEND_TENSOR is refused.
MOST_QUEUED_IN_ALL: Final = 1 << 30
#: graphs that a session stores to compute them again, all connections together.
MOST_GRAPHS: Final = 1 << 30
#: structures of graphs that a session remembers as checked: a dozen of a model's.
MOST_CHECKED: Final = 8 << 20
#: data of one GET_TENSORS, all reads together.
MOST_BATCH: Final = 1 << 30
#: rows of logits that a connection keeps for sampling.
MOST_KEPT: Final = 256 << 20
#: samplers of one connection.
MOST_SAMPLERS: Final = 4096
#: likeliest tokens that are named with one choice.
MOST_TOP: Final = 1024
#: the vocabulary of a session, with what its connections have sent of theirs.
MOST_VOCABULARY: Final = 64 << 20
#: data of a device without host memory passes through staging memory of this size.
STAGING: Final = 16 << 20
#: seconds of silence after which a client is dropped, unless --idle-timeout says otherwise; a
#: client of ringline says something every minute (settings.PING_INTERVAL).
IDLE_TIMEOUT: Final = 3600.0
#: bytes a second: who takes or sends a message more slowly is dropped, however steady it is.
SLOWEST: Final = 16 * 1024
#: idle session processes, ready for the next client.
WARM_PROCESSES: Final = 2
#: waiting for a device while other sessions compute on it.
EXECUTION_TIMEOUT: Final = 120.0
#: the pause of an address after its second crash in a row; each further one doubles it, up to the
#: longest; after so long without a crash all is forgiven (crashes.py).
CRASH_PAUSE: Final = 1.0
CRASH_LONGEST_PAUSE: Final = 60.0
CRASH_FORGIVEN: Final = 600.0
#: addresses whose crashes are remembered.
MOST_CRASHERS: Final = 1024
#: no idle process is forked ahead for so long after one has died, or a broken node would only fork.
FORK_PAUSE: Final = 1.0
#: asking the devices what they are; an accelerator's runtime may start meanwhile.
PROBE_TIMEOUT: Final = 60.0
#: what the session processes get to end after SIGTERM, before SIGKILL.
STOP_TIMEOUT: Final = 1.0
#: an error is the last word: so long we wait for the client to take it before we close.
FAREWELL_TIMEOUT: Final = 1.0
#: labels of one counter that have a value of their own; what goes beyond is counted together.
MOST_LABELS: Final = 32
#: tables of rows of one session, and their bytes together.
MOST_TABLES: Final = 16
MOST_TABLE_BYTES: Final = 4 << 30
#: elements of a row of a table.
MOST_ROW_WIDTH: Final = 1 << 20
