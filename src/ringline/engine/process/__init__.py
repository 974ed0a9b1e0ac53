"""An engine in a process of its own, behind a local socket.

The process that decodes does nothing else: an HTTP server beside it would take the interpreter's
lock from the threads that decode. `client.EngineProcess` starts one and talks to it; `messages` is
what they say, `channel` how, `server` the other end.
"""
