import pytest
import torch
from benchmarks.secure_sums import EXCHANGES, measure, open_round, secure_round

VECTORS = torch.randn(10, 500, generator=torch.Generator().manual_seed(0))


def test_an_open_round_sends_every_site_the_model_and_gets_one_back() -> None:
    assert open_round(VECTORS)["bytes"] == 10 * 500 * 4 * 2


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_sites_that_leave_before_the_third_answer_are_not_in_the_sum_and_later_ones_are(exchange: int) -> None:
    assert secure_round(VECTORS, exchange)["in_the_sum"] == (7 if exchange <= 3 else 10)


def test_words_of_64_bits_make_at_least_half_as_many_bytes_again() -> None:
    rows = measure(4, 20_000, 1)
    assert len(rows) == 2 + len(EXCHANGES) and rows["open"]["times_open_bytes"] == 1
    assert 1.5 <= rows["secure"]["times_open_bytes"] < 1.55  # (4 + 8) / (4 + 4) bytes a number, and keys
    assert all(row["cpu_seconds"] > 0 for row in rows.values())
