"""The page at `/`: the ring as a picture, live, and a chat to try it.

`ring_view` makes what is shown of an engine's counters, pure; `feed` looks once a second, for all
who look, and not at all while nobody does; `assets` are the files; `router` puts them on HTTP. The
page itself is plain HTML, CSS and ES modules in `static/`, without a build step.
"""
