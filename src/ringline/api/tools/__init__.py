"""Calls of tools in what a model writes. Pure: text in, text and calls out."""
