"""One poll serves all who look, none is made while nobody looks, and viewers are bounded."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import aclosing

import pytest

from ringline.api.errors import ApiError
from ringline.api.page.feed import Feed
from ringline.api.state import Condition, EngineState, LogEntry
from ringline.engine.metrics import EngineMetrics

TURN = 0.005


class Engineless:
    """A supervisor whose engine has not come yet; counts how often it is asked."""

    def __init__(self) -> None:
        self.state = EngineState(Condition.STARTING)
        self.about = None
        self.events: deque[LogEntry] = deque(maxlen=200)
        self.stopping = asyncio.Event()
        self.asked = 0

    async def metrics(self) -> EngineMetrics | None:
        self.asked += 1
        return None


def told(frames: bytes, kind: str) -> list[dict]:
    """What the events of one kind say."""
    events = [event.split("\n") for event in frames.decode().split("\n\n") if event]
    return [json.loads(data[6:]) for name, data in events if name == f"event: {kind}"]


async def until(condition) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(TURN)


def test_many_viewers_cost_one_poll_and_nobody_costs_none():
    async def scene():
        source = Engineless()
        feed = Feed(source, interval=TURN)
        assert not feed.looking
        streams = [feed.events() for _ in range(8)]
        for _ in range(5):
            frames = [await anext(stream) for stream in streams]
        assert len(set(frames)) == 1
        # Everybody saw five views, and nobody was asked for more than those and a few since.
        assert 5 <= source.asked < 5 * len(streams)
        for stream in streams:
            await stream.aclose()
        await until(lambda: not feed.looking)
        asked = source.asked
        await asyncio.sleep(20 * TURN)
        assert (source.asked, feed.viewers) == (asked, 0)

    asyncio.run(scene())


def test_looking_begins_again_with_the_next_viewer():
    async def scene():
        source = Engineless()
        feed = Feed(source, interval=TURN)
        for state in (Condition.STARTING, Condition.LOST):
            source.state = EngineState(state)
            async with aclosing(feed.events()) as stream:
                assert told(await anext(stream), "ring")[0]["state"] == state
            await until(lambda: not feed.looking)

    asyncio.run(scene())


def test_one_viewer_too_many_is_told_so():
    async def scene():
        feed = Feed(Engineless(), interval=TURN, most_viewers=1)
        async with aclosing(feed.events()) as stream:
            feed.check_room()
            await anext(stream)
            with pytest.raises(ApiError, match="1 viewers look at the ring already") as caught:
                feed.check_room()
            assert caught.value.status == 503
        feed.check_room()

    asyncio.run(scene())


def test_a_slow_viewer_misses_views_but_no_entry_of_the_log():
    async def scene():
        source = Engineless()
        feed = Feed(source, interval=TURN)
        async with aclosing(feed.events()) as stream:
            await anext(stream)
            for number in range(50):
                asked = source.asked
                source.events.append(LogEntry("info", f"event {number}"))
                await until(lambda: source.asked > asked + 1)  # noqa: B023
            frames = await anext(stream)
            assert len(told(frames, "ring")) == 1
            assert [e["text"] for e in told(frames, "log")] == [f"event {n}" for n in range(50)]
            assert told(await anext(stream), "log") == []

    asyncio.run(scene())


def test_entries_have_numbers_that_only_grow_and_the_name_of_their_server():
    async def scene():
        source = Engineless()
        source.events.extend([LogEntry("info", "one"), LogEntry("error", "two")])
        first, second = Feed(source, interval=TURN), Feed(source, interval=TURN)
        entries = []
        for feed in (first, second):
            async with aclosing(feed.events()) as stream:
                entries.append(told(await anext(stream), "log"))
        assert [entry["number"] for entry in entries[0]] == [1, 2]
        assert entries[0][0]["server"] != entries[1][0]["server"]

    asyncio.run(scene())


def test_streams_end_with_the_server():
    async def scene():
        source = Engineless()
        feed = Feed(source, interval=60)
        stream = feed.events()
        await anext(stream)
        source.state = EngineState(Condition.STOPPING)
        source.stopping.set()
        async with asyncio.timeout(30):
            frames = [frame async for frame in stream]
        assert told(frames[-1], "ring")[0]["state"] == "stopping"

    asyncio.run(scene())
