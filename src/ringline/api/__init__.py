"""The server of `ringline api`: OpenAI's API over an engine in a process of its own.

This process speaks HTTP and never loads libllama; `engine.process` decodes. A request goes through
`routes` (what the path asks for), `requests` (its fields, read and checked), the engine that the
`supervisor` keeps running, and `answers` (what the client is told, as one object or as events).
"""
