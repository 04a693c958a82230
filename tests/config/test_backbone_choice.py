import torch

from fedfew.config.first_config import left_out


def test_every_label_is_predicted_from_other_folds_only() -> None:
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(40) % 2
    noise = torch.randn(40, 100, generator=rng).double()
    # more directions than images: a fit that saw an image would predict it. 20 ± 3.2 of 40 are right by chance
    assert 10 <= int(left_out(noise, labels).sum()) <= 30
    apart = noise + 20 * labels[:, None].double() / 10  # 2 in each of 100 directions: 20 deviations
    assert bool(left_out(apart, labels).all())
