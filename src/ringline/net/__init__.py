"""Bytes on the move: endpoints, deadlines, streams, listeners. Knows no protocol.

Times are seconds, sizes bytes.
"""
