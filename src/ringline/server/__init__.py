"""Lend this machine's devices: the node behind `ringline serve`.

    node          put it together, print the banner        options    what the person chose
    probe         describe the devices, in a child         policy     whom the node may dial
    gatekeeper    the loop: accept, HELLO, route           handshake  the first bytes, pure
    roster        the live sessions, and room for more
    pool          fork, hand over, reap                    handover   the message with a socket
    session       a session process                        connection one thread, one client
    handlers/     one function per command                 context    what a handler may use
    buffers       handles, addresses, lifetime             regions    a tensor record, checked
    graphs        graph bodies, checked and built          execution  turns on a device
    peers         hidden states to other nodes

The gatekeeper never computes and never touches a device, so that it may fork at any time. A session
process owns everything of one client and gives it back by ending.
"""
