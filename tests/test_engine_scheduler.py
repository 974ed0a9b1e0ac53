"""The scheduler, without a model: any arrivals, cancels and lengths, and what always holds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ringline.engine.scheduler import Scheduler
from ringline.engine.slots import common_prefix
from ringline.engine.step import Limits, Step, Verdict
from ringline.engine.task import Task, TaskState
from ringline.errors import BusyError, CallerError

N_CTX = 12
#: two letters: prompts often begin alike.
PROMPTS = st.lists(st.integers(0, 1), min_size=1, max_size=N_CTX)


class Job(Task):
    """A task that ends by itself after `length` tokens, or when its context is full."""

    def __init__(self, prompt, length=1):
        super().__init__(prompt)
        self.length = length
        self.ids: list[int] = []

    @property
    def text(self):
        return [*self.prompt, *self.ids]


class Simulation:
    """Plays the contexts of all groups: what a step writes into their caches, and what comes out.

    A cache checks what libllama checks: that positions go on where the sequence ends.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.scheduler = Scheduler[Job](limits)
        self.caches = {(g, s): [] for g, n in enumerate(limits.slots) for s in range(n)}
        self.in_flight: dict[int, Step[Job]] = {}
        self.ended: list[Job] = []

    def submit(self, prompt, length=1) -> Job:
        job = Job(prompt, length)
        self.scheduler.submit(job)
        return job

    def cancel(self, job: Job) -> None:
        self.ended += self.scheduler.cancel(job)

    def plan(self, group: int) -> Step[Job] | None:
        decoding = {
            slot.task for slot in self.scheduler.groups[group].busy if slot.task.state == "decoding"
        }
        step = self.scheduler.plan(group)
        if step is None:
            assert not self.scheduler.groups[group].busy
            return None
        assert decoding <= {run.task for run in step.runs}
        assert [run.slot for run in step.runs] == sorted({run.slot for run in step.runs})
        assert step.n_tokens <= (self.limits.budget if decoding else self.limits.prompt_budget)
        self.in_flight[group] = step
        return step

    def decode(self, group: int) -> None:
        """Do what the group's step in flight says, and hand in what came of it."""
        step = self.in_flight.pop(group)
        for slot, position in step.trims:
            del self.caches[group, slot][position:]
        for run in step.runs:
            cache = self.caches[group, run.slot]
            assert run.position == len(cache)
            cache.extend(run.tokens)
            assert len(cache) <= self.limits.n_ctx
            assert cache == run.task.text[: len(cache)]
            assert run.logits == (len(cache) == len(run.task.text))
        verdicts = {run.task: self.verdict(run.task) for run in step.runs if run.logits}
        self.ended += self.scheduler.commit(step, verdicts)

    def fail(self, group: int) -> None:
        """The group's step fails in its middle: its caches hold something else now."""
        self.ended += self.scheduler.fail(self.in_flight.pop(group))
        for place in self.caches:
            if place[0] == group:
                self.caches[place] = ["unknown"]

    def verdict(self, job: Job) -> Verdict:
        full = len(job.text) >= self.limits.n_ctx
        if len(job.ids) >= job.length or full:
            return Verdict(end=TaskState.DONE)
        job.ids.append(len(job.ids) % 2)
        return Verdict(job.ids[-1])

    def step(self, group: int = 0) -> Step[Job]:
        step = self.plan(group)
        assert step is not None
        self.decode(group)
        return step

    def drain(self, n_most: int = 10_000) -> None:
        """Run until nobody has anything to do."""
        for _ in range(n_most):
            for group in list(self.in_flight):
                self.decode(group)
            steps = [self.plan(group) for group in range(len(self.limits.slots))]
            if not any(steps):
                return
        raise AssertionError("it does not come to an end")


class AnyOrder(RuleBasedStateMachine):
    """Submits, cancels, plans and commits in any order."""

    @initialize(
        slots=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        room=st.integers(0, 8),
        reuse=st.booleans(),
        queue=st.none() | st.integers(0, 3),
    )
    def begin(self, slots, room, reuse, queue):
        budget = max(slots) + room
        limits = Limits(tuple(slots), N_CTX, budget, budget + room, reuse=reuse, queue=queue)
        self.play = Simulation(limits)
        self.jobs: list[Job] = []

    @rule(prompt=PROMPTS, length=st.integers(0, 6))
    def submit(self, prompt, length):
        try:
            self.jobs.append(self.play.submit(prompt, length))
        except BusyError:
            assert len(self.play.scheduler.queue) == self.play.limits.queue

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data):
        self.play.cancel(data.draw(st.sampled_from(self.jobs)))

    @rule(data=st.data())
    def plan(self, data):
        idle = set(range(len(self.play.limits.slots))) - set(self.play.in_flight)
        if idle:
            self.play.plan(data.draw(st.sampled_from(sorted(idle))))

    @precondition(lambda self: self.play.in_flight)
    @rule(data=st.data())
    def decode(self, data):
        self.play.decode(data.draw(st.sampled_from(sorted(self.play.in_flight))))

    @precondition(lambda self: self.play.in_flight)
    @rule(data=st.data(), seldom=st.integers(0, 9))
    def fail(self, data, seldom):
        if seldom == 0:
            self.play.fail(data.draw(st.sampled_from(sorted(self.play.in_flight))))

    @rule(seldom=st.integers(0, 9))
    def close(self, seldom):
        if seldom == 0:
            self.play.ended += self.play.scheduler.fail()

    @invariant()
    def a_task_is_in_one_place_and_the_queue_waits_only_for_full_slots(self):
        scheduler = self.play.scheduler
        slots = [slot for group in scheduler.groups for slot in group.slots]
        placed = [slot.task for slot in slots if slot.task] + list(scheduler.queue)
        assert len(placed) == len(set(placed))
        assert set(placed) == {job for job in self.jobs if not job.state.ended}
        assert not scheduler.queue or all(slot.task for slot in slots)
        assert [job.number for job in scheduler.queue] == sorted(j.number for j in scheduler.queue)

    @invariant()
    def every_job_that_ended_was_told_once(self):
        assert len(self.play.ended) == len(set(self.play.ended))
        assert set(self.play.ended) == {job for job in self.jobs if job.state.ended}

    def teardown(self):
        if hasattr(self, "play"):
            self.play.drain()
            assert all(job.state.ended for job in self.jobs)
            self.every_job_that_ended_was_told_once()
            whole = [j for j in self.jobs if j.state is TaskState.DONE and j.length]
            assert all(j.ids or len(j.prompt) == N_CTX for j in whole)


AnyOrder.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def play(*slots, budget=4, prompt_budget=None, n_ctx=64, **more):
    prompt_budget = budget if prompt_budget is None else prompt_budget
    return Simulation(Limits(slots or (2,), n_ctx, budget, prompt_budget, **more))


def rows(step):
    return [(run.slot, len(run.tokens)) for run in step.runs]


def test_a_chunk_of_a_prompt_is_whole_pieces():
    simulation = play(3, budget=12, prompt_budget=22, piece=4)
    simulation.submit(range(30), 20)
    assert [rows(simulation.step()) for _ in range(2)] == [[(0, 20)], [(0, 10)]]
    simulation.submit(range(100, 130), 5)
    # Beside a text one token goes with it in the first piece.
    steps = [rows(simulation.step()) for _ in range(4)]
    assert steps == [[(0, 1), (1, 9)]] * 3 + [[(0, 1), (1, 3)]]


def test_a_prompt_that_goes_on_shares_no_step_with_another_prompt():
    simulation = play(3, budget=12, prompt_budget=10, piece=4)
    simulation.submit(range(30), 5)
    simulation.submit(range(100, 130), 5)
    assert [rows(simulation.step()) for _ in range(3)] == [[(0, 8)]] * 3
    # The last six leave room for a part of the next.
    assert rows(simulation.step()) == [(0, 6), (1, 4)]


def test_a_long_prompt_goes_beside_the_streams_in_chunks():
    simulation = play(3, budget=5)
    simulation.submit([1, 2], 20)
    simulation.submit([3], 20)
    simulation.step()
    simulation.submit(range(100, 111), 5)
    steps = [rows(simulation.step()) for _ in range(5)]
    assert steps == [
        [(0, 1), (1, 1), (2, 3)],
        [(0, 1), (1, 1), (2, 3)],
        [(0, 1), (1, 1), (2, 3)],
        [(0, 1), (1, 1), (2, 2)],
        [(0, 1), (1, 1), (2, 1)],
    ]


def test_prompts_alone_may_take_a_larger_step():
    simulation = play(2, budget=4, prompt_budget=8)
    simulation.submit(range(10), 5)
    assert [rows(simulation.step()) for _ in range(3)] == [[(0, 8)], [(0, 2)], [(0, 1)]]


def test_the_prompt_that_came_first_is_finished_first():
    simulation = play(3, budget=4)
    first, second = simulation.submit(range(6), 5), simulation.submit(range(10, 16), 5)
    assert rows(simulation.step()) == [(0, 4)]
    assert rows(simulation.step()) == [(0, 2), (1, 2)]
    assert (first.state, second.state) == (TaskState.DECODING, TaskState.PROMPT)


def test_those_who_wait_get_a_slot_in_the_order_of_arrival():
    simulation = play(1)
    jobs = [simulation.submit([n], 0) for n in range(4)]
    simulation.drain()
    assert simulation.ended == jobs


def test_a_job_goes_to_the_group_with_room():
    simulation = play(2, 2)
    for length in (9, 3, 3, 3):
        simulation.submit(range(length), 5)
    groups = [[len(s.task.prompt) for s in g.busy] for g in simulation.scheduler.groups]
    # Equal numbers of tasks: the third goes where fewer tokens are.
    assert groups == [[9, 3], [3, 3]]


def test_a_prompt_that_begins_alike_is_decoded_from_where_it_differs():
    simulation = play(2)
    simulation.submit([1, 2, 3, 4, 5], 1)
    simulation.drain()
    follower = simulation.submit([1, 2, 3, 9], 1)
    step = simulation.step()
    assert (step.trims, step.runs[0].tokens, follower.n_reused) == (((0, 3),), (9,), 3)


def test_the_same_prompt_again_decodes_one_token():
    simulation = play(2, n_ctx=8)
    for _ in range(2):
        job = simulation.submit([1, 2, 3], 1)
        step = simulation.step()
        simulation.drain()
    assert (step.runs[0].tokens, job.n_reused) == ((3,), 2)


def test_without_reuse_every_prompt_starts_from_nothing():
    simulation = play(1, reuse=False)
    for _ in range(2):
        simulation.submit([1, 2, 3], 1)
        step = simulation.step()
        simulation.drain()
    assert (step.trims, len(step.runs[0].tokens)) == (((0, 0),), 3)


def test_a_chat_goes_back_to_its_slot_though_another_group_is_emptier():
    simulation = play(2, 2)
    chat = simulation.submit(range(10), 2)
    simulation.drain()
    simulation.submit([99], 50)  # takes group 0 as well
    assert simulation.scheduler.groups[0].busy
    again = simulation.submit([*chat.text, 7], 2)
    assert again.n_reused > 10
    other = simulation.submit([50, 51], 2)
    assert other in [slot.task for slot in simulation.scheduler.groups[1].busy]


def test_the_cache_that_nobody_asked_for_longest_is_given_up_first():
    simulation = play(3)
    for n in range(3):
        simulation.submit([n, n], 0)
        simulation.drain()
    simulation.submit([0, 0], 0)  # slot 0 was used again
    simulation.drain()
    simulation.submit([8, 8], 0)
    assert [slot.index for slot in simulation.scheduler.groups[0].busy] == [1]


def test_a_job_that_is_cancelled_in_a_step_ends_with_it():
    simulation = play(1)
    job, waiting = simulation.submit([1, 2], 9), simulation.submit([3], 1)
    simulation.plan(0)
    simulation.cancel(job)
    assert (job.state, simulation.ended) == (TaskState.PROMPT, [])
    simulation.decode(0)
    assert (job.state, simulation.ended) == (TaskState.CANCELLED, [job])
    assert waiting.state is TaskState.PROMPT


def test_a_job_that_is_cancelled_between_steps_or_in_the_queue_ends_at_once():
    simulation = play(1)
    job, waiting = simulation.submit([1, 2], 9), simulation.submit([3], 1)
    simulation.step()
    simulation.cancel(waiting)
    simulation.cancel(job)
    simulation.cancel(job)
    assert simulation.ended == [waiting, job]
    assert simulation.plan(0) is None


def test_a_failed_step_ends_all_jobs_at_once_but_for_those_in_other_steps():
    simulation = play(1, 1, 1)
    jobs = [simulation.submit([n], 9) for n in range(4)]
    simulation.plan(0)
    simulation.plan(1)
    simulation.fail(0)
    assert set(simulation.ended) == {jobs[0], jobs[2], jobs[3]}
    simulation.decode(1)
    assert [job.state for job in jobs] == [TaskState.FAILED] * 4


def test_a_full_queue_says_so_and_keeps_nothing():
    simulation = play(1, queue=1)
    simulation.submit([1], 1)
    simulation.submit([2], 1)
    with pytest.raises(BusyError, match="1 requests wait for a slot already"):
        simulation.submit([3], 1)
    simulation.drain()
    assert len(simulation.ended) == 2


def test_a_prompt_that_is_empty_or_too_long_is_refused():
    simulation = play(1, n_ctx=4)
    with pytest.raises(CallerError, match="the prompt is empty"):
        simulation.submit([])
    with pytest.raises(
        CallerError, match=r"5 tokens and exceeds .*: the context of one request holds 4"
    ):
        simulation.submit(range(5))


def test_a_step_must_have_room_for_all_slots():
    with pytest.raises(CallerError, match="3 tokens has no room for the 4 slots"):
        Limits((4,), 64, budget=3, prompt_budget=8)
    with pytest.raises(CallerError, match="each group needs at least 1"):
        Limits((2, 0), 64, budget=3, prompt_budget=8)


def test_a_task_ends_once():
    task = Task([1])
    task.enter(TaskState.CANCELLED)
    with pytest.raises(ValueError, match="cancelled cannot become done"):
        task.enter(TaskState.DONE)


def test_the_common_prefix():
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([1, 2], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == 0


@given(st.integers(0, 1000), st.integers(0, 5), st.integers(0, 5))
def test_the_common_prefix_of_long_prompts(alike, more, other):
    first = [*range(alike), *[-1] * more]
    second = (*range(alike), *[-2] * other)
    assert common_prefix(first, second) == common_prefix(second, first) == alike
