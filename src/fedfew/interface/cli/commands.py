"""Declares the commands of ``fedfew`` (those of ``fedfew deploy`` are in the next module): options and help texts."""

from pathlib import Path
from typing import Any

import click

from fedfew import __version__
from fedfew.interface.cli import options
from fedfew.interface.cli.group import Group, execute
from fedfew.interface.cli.options import PATH

AT_LEAST_0, AT_LEAST_1 = click.IntRange(min=0), click.IntRange(min=1)


@click.group(cls=Group, context_settings={"max_content_width": 110, "show_default": True})
@click.version_option(__version__, message="fedfew %(version)s")
def app() -> None:
    """Federated learning when only the server has labels, and only a few."""


@app.command()
@click.option(
    "--data", type=click.Choice(["photos", "digits"]), help="Default: photos if the extra pretrained is installed."
)
@options.seeds
@options.path("--out", "DIR", "Folder for runs and report.")
@options.as_json
def demo(**given: Any) -> None:
    """Compare methods on images included in fedfew.

    The images are photographs or digits; every method is compared with training on the labels alone.
    """
    execute("demo:demo", given)


@app.command("try")
@options.images
@options.overrides
@options.path("--out", "DIR", "Folder for the runs (default: runs/…).")
@options.allow_code
@options.as_json
def try_folder(**given: Any) -> None:
    """Find out what the sites' unlabeled images add.

    Checks the folder, chooses a method, trains with and without the sites' images, and reports the difference.
    """
    execute("verdict:try_folder", given)


@app.command()
@options.images
@options.path("--out", "FILE", "Default: FOLDER/fedfew.toml.")
@options.flag("--network", "The sites' images are on other machines.")
@options.flag("--force", "Overwrite an existing file.")
@options.as_json
def init(**given: Any) -> None:
    """Write a commented config for a folder of images."""
    execute("check:init", given)


@app.command()
@click.argument(
    "source", metavar="FOLDER|CONFIG", type=options.ConfigName(), help="A folder of images, a TOML file or a preset."
)
@options.path("--csv", "FILE", "List of files (default: check.csv in the folder).")
@options.overrides
@options.allow_code
@options.as_json
def check(**given: Any) -> None:
    """Check a folder of images or a config.

    Reports everything that is wrong; the exit status is 2 if a run would be refused.
    """
    execute("check:check", given)


@app.command()
@options.config
@options.scale
@options.overrides
@options.new_run
@options.flag("--with-baseline", "Then train server-only too, and report what the clients add.")
@options.as_json
def run(**given: Any) -> None:
    """Train a model. Any method, aggregator, model, dataset and partition can be combined."""
    execute("run:run", given)


@app.command()
@options.place("run", "RUN", "The run folder.")
@options.overrides
@options.anyway
@options.allow_code
@options.as_json
def resume(**given: Any) -> None:
    """Continue an interrupted run. The result is the same, bit for bit, as without the interruption."""
    execute("run:resume", given)


@app.command()
@options.finished
@click.argument(
    "folder", metavar="[FOLDER]", required=False, type=PATH, help="Labeled images: <class>/ folders, or a labels.csv."
)
@options.flag("--sites", "In a simulation: every client's class mix and accuracy too.")
@options.model
@options.allow_code
@options.as_json
def evaluate(**given: Any) -> None:
    """Measure how good a model is.

    Prints the confusion matrix, precision and recall of each class, AUROC and calibration.
    """
    execute("verdict:evaluate", given)


@app.command()
@options.finished
@click.argument("images", metavar="IMAGES…", nargs=-1, required=True, type=click.Path(), help="Image files or folders.")
@click.option(
    "--confident",
    default=0.0,
    type=click.FloatRange(0, 1),
    help="Mark images below this probability for a person to check.",
)
@options.flag("--calibrate", "Correct over-confidence with the temperature found on held-out labels.")
@options.flag("--adapt-prior", "Estimate the class mix of these images and predict with it.")
@options.model
@options.as_csv
@options.allow_code
@options.as_json
def predict(**given: Any) -> None:
    """Predict the classes of images with a run's model."""
    execute("model:predict", given)


@app.command("label-next")
@options.finished
@click.argument(
    "images",
    metavar="CLIENTFOLDER…",
    nargs=-1,
    required=True,
    type=click.Path(),
    help="Folders or files to choose from.",
)
@click.option("-n", "count", default=50, type=AT_LEAST_1, help="How many to choose.")
@options.as_csv
@options.allow_code
@options.as_json
def label_next(**given: Any) -> None:
    """Choose the images to label next.

    Chooses images that the model is uncertain about, no two alike, and gives a reason for each.
    """
    execute("model:label_next", given)


@app.command()
@options.finished
@click.option("--format", default="safetensors", help="safetensors, onnx, torch-export or huggingface (a folder).")
@options.path("--out", "PATH", "Default: RUN/export/model.safetensors, .onnx, .pt2, /huggingface.")
@options.model
@options.allow_code
@options.as_json
def export(**given: Any) -> None:
    """Export a model for use elsewhere.

    Writes the model with its preprocessing, class names and a model card, and compares its outputs with torch's.
    """
    execute("model:export", given)


@app.command("ls")
@click.argument("folder", type=PATH, default=Path("runs"), help="Folder with runs, or an archive.")
@options.as_json
def list_runs(**given: Any) -> None:
    """List runs with their state and accuracy."""
    execute("runs:ls", given)


@app.command()
@options.runs
@click.option(
    "--by", metavar="KEY,KEY", default="", help="Keys to group by, e.g. method,partition.mu (default: what differs)."
)
@options.flag("--partial", "Include unfinished runs as they are.")
@click.option(
    "--metric",
    "--measure",
    "measure",
    metavar="NAME",
    default="last",
    help="last, mean_last_10, best_by_validation, balanced_accuracy, auroc or ece.",
)
@options.path("--csv", "FILE", "Write the table as CSV.")
@options.path("--latex", "FILE", "Write it as LaTeX (booktabs).")
@options.path("--figure", "FILE", "Draw it: PNG, SVG or PDF.")
@options.as_json
def compare(**given: Any) -> None:
    """Compare runs over seeds, and with server-only training.

    Prints mean ± 95 % interval over seeds, and the paired difference from server-only training.
    """
    execute("compare:compare", given)


@app.command()
@options.config
@click.option("--grid", metavar="KEY=A,B,…", multiple=True, help="Values of a key; repeat for a grid.")
@click.option("--optuna", metavar="N", default=0, type=AT_LEAST_0, help="Search with N trials instead of all values.")
@click.option("--range", "ranges", metavar="KEY=LOW:HIGH[:log]", multiple=True, help="optuna: an interval to search.")
@options.scale
@options.overrides
@options.runs_folder
@options.jobs
@options.until
@options.anyway
@options.as_json
def sweep(**given: Any) -> None:
    """Run a config with many values of its keys.

    Runs every combination of the grid's values; finished runs are kept, interrupted ones are continued.
    """
    execute("sweep:sweep", given)


@app.command("learning-curve")
@click.argument(
    "source",
    metavar="FOLDER|PRESET|CONFIG.toml",
    type=options.ConfigName(),
    help="Images as for `fedfew try`, or a config.",
)
@click.option("--labels", metavar="N,N,…", default="", help="Numbers of labels (default: all, half, a quarter, …).")
@click.option("--seeds", default=1, type=AT_LEAST_1, help="Draw the labels and train this many times.")
@options.overrides
@options.runs_folder
@options.jobs
@options.as_json
def learning_curve(**given: Any) -> None:
    """Draw accuracy against the number of labels. Trains with the sites' images and without; finished runs are kept."""
    execute("sweep:learning_curve", given)


@app.command()
@options.place("path", "RUN|FOLDER", "A run folder, a folder of runs, or an archive.")
@options.path("--out", "FILE", "Where to write (default: report/index.html in it).")
@options.as_json
def report(**given: Any) -> None:
    """Write an HTML report of a run or a folder of runs.

    It contains accuracies, bounds, charts, command, config, versions and hashes.
    """
    execute("show:report", given)


@app.command()
@click.argument(
    "runs", metavar="[RUNS]", default=Path("runs"), type=PATH, help="A run folder, or a folder that contains runs."
)
@click.option("--host", default="127.0.0.1", help="Address to listen on; any but loopback requires a token.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port (default: 8765, or a free one).")
@options.flag("--open", "Open the page in the browser.", "open_")
@options.as_json
def watch(**given: Any) -> None:
    """Show runs in the browser as they advance."""
    execute("show:watch", given)


@app.command()
@options.runs
@click.option("--to", metavar="tensorboard|mlflow|wandb", required=True, help="Where to send the rounds.")
@click.option(
    "--out", metavar="DIR", default="tracking", help="Folder for the event files; mlflow: or a server's address."
)
@options.as_json
def track(**given: Any) -> None:
    """Send rounds to TensorBoard, MLflow or W&B.

    Only new rounds are sent, so the command can be repeated during the run.
    """
    execute("runs:track", given)


@app.command()
@options.place("source", "FOLDER|ARCHIVE", "A run, a folder of runs, or an archive to unpack.")
@click.option(
    "--to", metavar="FILE.jsonl.xz|DIR", required=True, type=PATH, help="The archive, or the folder to unpack into."
)
@options.as_json
def archive(**given: Any) -> None:
    """Put the records of runs into one file, or unpack it.

    An archive has no models and checkpoints, so it fits into a repository. An existing one keeps its other runs.
    compare, report and ls read it like a folder of runs.
    """
    execute("runs:archive", given)


@app.command()
@click.option("--dataset", default="cifar10", help="Dataset to partition among the clients.")
@click.option("--mu", default="0.1,1,10", help="μ of the Dirichlet kinds; several values separated by commas.")
@click.option("--kind", default="dirichlet", help="iid, dirichlet, dirichlet-by-class or shards.")
@click.option("--clients", default=100, help="K, the number of clients.")
@click.option("--skew", default=0.0, help="σ of log-normal client sizes; 0: equal sizes.")
@click.option("--out", metavar="DIR", default=Path("figures"), type=PATH, help="Folder for the figure.")
@options.overrides
@options.as_json
def partition(**given: Any) -> None:
    """Measure and draw how non-IID a partition is.

    Prints R (mean total variation between clients) and sizes, and draws Figure 3 as bubbles (PNG, SVG).
    """
    execute("data:partition", given)


@app.command()
@click.argument("name", default="", help="A method, aggregator, objective, model or preset, or package.module:Name.")
@options.as_json
def methods(**given: Any) -> None:
    """List methods, models, datasets and more, or explain one."""
    execute("catalog:methods", given)


@app.command()
@click.argument(
    "name",
    metavar="[PRESET|CONFIG.toml]",
    default="",
    type=options.ConfigName(),
    help="Show this one in full, as TOML.",
)
@options.as_json
def presets(**given: Any) -> None:
    """List the presets, or show one with all its defaults."""
    execute("catalog:presets", given)


@app.command()
@click.argument("code", default="", type=options.ErrorCode(), help="A code such as E104; without it, all are listed.")
@options.as_json
def explain(**given: Any) -> None:
    """Explain an error code."""
    execute("catalog:explain", given)


@app.command()
@options.as_json
def doctor(**given: Any) -> None:
    """Show facts about this machine and installation.

    Shows versions, torch build, threads, extras, cache folder and disk; the exit status is 2 if something is wrong.
    """
    execute("doctor:doctor", given)


@app.group()
def data() -> None:
    """Fetch datasets, and list them."""


@data.command()
@click.argument("name", help="cifar10, mnist or fashion-mnist.")
@click.option(
    "--from", "source", metavar="PATH", type=PATH, help="A local archive or folder, e.g. cifar-10-binary.tar.gz."
)
@options.as_json
def fetch(**given: Any) -> None:
    """Fetch a dataset from a local copy or from the internet.

    The first of the dataset's sources that answers is used.
    """
    execute("data:fetch", given)


@data.command("ls")
@options.as_json
def list_datasets(**given: Any) -> None:
    """List the datasets, fetched or not."""
    execute("data:ls", given)
