"""The stock ggml RPC server as a process of its own: llama.cpp's code, started from here.

    python -m tests.peers.stock_server --port 0 --threads 1 --device CPU

Prints `stock: ready on HOST:PORT` when it listens. The stock server cannot be told to take a free
port, so this script takes one and holds it, bound but not listening, while the server starts. Linux
lets a second socket with SO_REUSEADDR bind and listen there; nobody else gets the port meanwhile.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import sys
import threading
import time

from tests.peers import stock_library


def main() -> int:
    """Serve until a signal comes; the exit code is 1 when the server could not start."""
    options = parse_arguments()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python's handler would wait for C to return
    libraries = stock_library.load()
    devices = [find_device(libraries, name) for name in options.device.split(",")]
    if options.end_with_stdin:
        threading.Thread(target=end_with_stdin, daemon=True).start()
    with hold_port(options.host, options.port) as reservation:
        endpoint = f"{options.host}:{reservation.getsockname()[1]}"
        threading.Thread(target=announce, args=(options.host, endpoint), daemon=True).start()
        libraries.rpc.ggml_backend_rpc_start_server(
            endpoint.encode(),
            options.cache.encode() if options.cache else None,
            options.threads,
            len(devices),
            (ctypes.c_void_p * len(devices))(*devices),
        )
    print(f"stock: the server on {endpoint} gave up", file=sys.stderr)
    return 1


def parse_arguments() -> argparse.Namespace:
    """The command line, with the flags of ggml-rpc-server."""
    parser = argparse.ArgumentParser(description="run the stock ggml RPC server")
    parser.add_argument("--host", default="127.0.0.1", help="a numeric address")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="CPU", help="names, separated by commas")
    parser.add_argument("--cache", help="folder of the weight cache")
    parser.add_argument("--end-with-stdin", action="store_true", help="exit when stdin closes")
    return parser.parse_args()


def find_device(libraries: stock_library.StockLibraries, name: str) -> int:
    """The address of a local ggml device.

    Raises:
        SystemExit: there is no device of that name.
    """
    device: int | None = libraries.registry.ggml_backend_dev_by_name(name.encode())
    if not device:
        raise SystemExit(f"stock: no device is called {name!r}")
    return device


def hold_port(host: str, port: int) -> socket.socket:
    """Bind a port without listening on it, so that it stays ours until the server listens."""
    reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind((host, port))
    return reservation


def announce(host: str, endpoint: str) -> None:
    """Print the ready line once the port accepts a connection; ours is the only one it can be."""
    address = (host, int(endpoint.rpartition(":")[2]))
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            time.sleep(0.01)
        else:
            break
    # One write on a line of its own: the server prints to the same file, from C, at the same time.
    os.write(sys.stdout.fileno(), f"\nstock: ready on {endpoint}\n".encode())


def end_with_stdin() -> None:
    """Exit when whoever started us is gone: its end of our stdin closes with it."""
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
