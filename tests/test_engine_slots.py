"""Which slot a task gets, without a model: neighbours together, and caches that are found again."""

from __future__ import annotations

import random

from ringline.engine.slots import Slot, SlotGroup, choose_slot
from ringline.engine.task import Task

N_SLOTS, N_TEXTS = 32, 8


class Traffic:
    """Texts that come and go in a group of slots; no two begin alike unless they are the same."""

    def __init__(self) -> None:
        self.group = SlotGroup(0, [Slot[Task](index) for index in range(N_SLOTS)])
        self._ends = 0

    def begin(self, *prompt: int) -> Slot[Task]:
        task = Task(prompt)
        place = choose_slot([self.group], task, reuse=True)
        assert place is not None
        place.slot.take(task, place.n_kept)
        place.slot.cached += prompt[place.n_kept :]
        return place.slot

    def end(self, slot: Slot[Task]) -> None:
        self._ends += 1
        slot.task, slot.freed_at = None, self._ends

    @property
    def pieces(self) -> int:
        """Into how many pieces libllama cuts a step of all texts: runs of neighbours."""
        taken = [slot.index for slot in self.group.busy]
        return sum(index - 1 not in taken for index in taken)


def test_a_few_texts_in_many_slots_lie_together_however_long_they_take():
    draw, traffic = random.Random(1), Traffic()
    slots = [traffic.begin(number) for number in range(N_TEXTS)]
    pieces = []
    for number in range(N_TEXTS, 2000):
        traffic.end(slots.pop(draw.randrange(N_TEXTS)))
        slots.append(traffic.begin(number))
        pieces.append(traffic.pieces)
    # Eight places at random make 6.2 pieces, and so does the slot freed longest ago each time.
    assert sum(pieces) / len(pieces) < 5


def test_a_chat_finds_its_cache_though_others_have_come_and_gone_meanwhile():
    traffic = Traffic()
    slot = traffic.begin(1, 2, 3, 4)
    traffic.end(slot)
    for number in range(N_SLOTS // 2):
        traffic.end(traffic.begin(1000 + number))
    again = traffic.begin(1, 2, 3, 4, 5)
    assert (again, again.task and again.task.n_reused) == (slot, 4)


def test_caches_that_share_as_much_leave_the_choice_to_age():
    traffic = Traffic()
    for slot in [traffic.begin(7, number) for number in range(N_SLOTS)]:
        traffic.end(slot)
    assert traffic.begin(7, 1000).index == 0
