"""The ServerApp: FewLabels stands where Flower's FedAvg stood."""

import torch
from few_labels.task import digits, net
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedfew.flower import FewLabels

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fifty labels, and as many rounds as pyproject.toml says."""
    settings = {"method.name": "fedavg", "method.warmup": 50, "objective.name": "fixmatch", "server.lr": 0.05}
    labeled = digits.train.take(torch.arange(50))
    strategy = FewLabels(net(), labeled, 10, settings | {"client.lr": 0.02})
    score = strategy.scorer(digits.test)
    start = ArrayRecord(net().state_dict())
    result = strategy.start(grid, start, num_rounds=context.run_config["rounds"], evaluate_fn=score)
    torch.save(result.arrays.to_torch_state_dict(), context.run_config["out"])
