"""The leak card tells an answer that gives its images away from one that does not."""

import torch
from benchmarks.leaks import measured, of_model, of_survey


def test_the_survey_of_few_images_names_them_and_noise_for_single_images_hides_them() -> None:
    x = torch.randn(600, 40, generator=torch.Generator().manual_seed(0)).double()
    auc, rate, nearest = measured(of_survey(0.0), x, 5, 0)
    assert auc > 0.99 and rate > 0.99 and nearest > 0.5
    assert measured(of_survey(50.0), x, 5, 0)[0] < 0.7


def test_a_linear_head_that_saw_one_image_is_that_image() -> None:
    x = torch.randn(600, 40, generator=torch.Generator().manual_seed(0)).double()
    auc, _, nearest = measured(of_model(torch.nn.Linear(40, 10).double()), x, 1, 0)
    assert auc > 0.9 and nearest > 0.99
