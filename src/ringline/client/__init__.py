"""Use the devices of nodes: connection, remote devices and buffers, transfers, counters."""
