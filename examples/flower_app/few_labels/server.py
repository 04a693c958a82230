"""The ServerApp: fedfew's rounds on the nodes of the project."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedfew.flower import run

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Fifty labels, two nodes, and as many rounds as pyproject.toml says."""
    parts = {"model.name": "few_labels.task:net", "dataset.name": "few_labels.task:few_digits"}
    method = {"method.name": "fedavg", "method.warmup": 50, "objective.name": "fixmatch"}
    sizes = {"clients": 2, "participation": 1.0, "rounds": context.run_config["rounds"]}
    steps = {"server.lr": 0.05, "client.lr": 0.02}
    run(grid, context.run_config["out"], parts | method | sizes | steps)
