"""A batch takes what fits and refuses the rest before C sees it."""

import pytest

from ringline.errors import CallerError
from ringline.llama.batch import Batch


def test_the_struct_points_to_the_tokens_that_were_added():
    batch = Batch(8, n_seq_max=2)
    assert batch.add(11, 4, (1, 0)) == 0
    assert batch.add_run([12, 13, 14], 7, 1, logits_last=True) == 3
    struct = batch.struct
    assert struct.n_tokens == len(batch) == 4
    assert struct.token[:4] == [11, 12, 13, 14]
    assert struct.pos[:4] == [4, 7, 8, 9]
    assert struct.n_seq_id[:4] == [2, 1, 1, 1]
    assert struct.seq_id[0][:2] == [1, 0]
    assert [struct.seq_id[i][0] for i in (1, 2, 3)] == [1, 1, 1]
    assert struct.logits[:4] == [0, 0, 0, 1]
    assert not struct.embd


@pytest.mark.parametrize(
    ("add", "message"),
    [
        (lambda batch: batch.add_run([1] * 5, 0), "room for 3 more, not 5"),
        (lambda batch: batch.add_run([], 0), "at least one"),
        (lambda batch: batch.add(-1, 1), "token -1 is out of range"),
        (lambda batch: batch.add(2**31, 1), "token 2147483648 is out of range"),
        (lambda batch: batch.add_run([1, 2**31], 1), "token 2147483648 is out of range"),
        (lambda batch: batch.add(1, -1), "position -1 is out of range"),
        (lambda batch: batch.add_run([1, 2], 2**31 - 1), "position 2147483649 is out of range"),
        (lambda batch: batch.add(1, 1, (-1,)), "sequence -1 is out of range"),
        (lambda batch: batch.add_run([1], 1, -1), "sequence -1 is out of range"),
        (lambda batch: batch.add(1, 1, ()), "belongs to 1 to 2 sequences, not 0"),
        (lambda batch: batch.add(1, 1, (0, 1, 2)), "belongs to 1 to 2 sequences, not 3"),
    ],
)
def test_a_batch_refuses_what_would_not_fit_and_stays_as_it_was(add, message):
    batch = Batch(4, n_seq_max=2)
    batch.add(1, 0)
    with pytest.raises(CallerError, match=message):
        add(batch)
    assert len(batch) == 1


@pytest.mark.parametrize("sizes", [(0, 1), (1, 0)])
def test_a_batch_without_room_is_refused(sizes):
    with pytest.raises(CallerError, match="holds none"):
        Batch(sizes[0], n_seq_max=sizes[1])
