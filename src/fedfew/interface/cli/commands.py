"""Declares the commands of ``fedfew``: options and help texts."""

from pathlib import Path

import click

from fedfew import __version__
from fedfew.interface.cli.declare import (
    ALLOW_CODE,
    ANYWAY,
    CONFIG,
    CONFIG_NAME,
    ERROR_CODE,
    NEW_RUN,
    OVERRIDES,
    argument,
    command,
    flag,
    group,
    number,
    path,
    setting,
    text,
)  # fmt: skip
from fedfew.interface.cli.deploy import DEPLOY, LEDGER

CSV = flag("--csv", "Print a CSV table.")
SCALE = text("--scale", "full|laptop", "CIFAR-10: ResNet-9 of width 64 and 55,000 images, or 16 and 11,000.")
RUNS_FOLDER = path("--out", "DIR", "Folder of the runs.")
KEEP_SETTINGS = flag(
    "--keep-settings", "A method that you name keeps the config's settings and aggregator; else it is as published."
)
JOBS = number("--jobs", 0, 0, "Runs at a time, one process each; 0: one run at a time on all cores.")
UNTIL = number("--until", 0, 0, "Pause every run after this round; call again to continue.", metavar="ROUND")
MODEL = text("--model", "last|best", "Model after the last round, or with the best validation.", default="last")
RUNS = argument("runs", "RUN…", "Run folders, folders of runs, or archives.", nargs=-1, required=True)
GROUPS = r"Images of one patient by their file names, e.g. '(\w+)_'; or labels.csv's column group."
GROUP = setting("--group", "PATTERN", GROUPS, "dataset.group")
BY = text("--by", "KEY,KEY", "Keys to group by, e.g. method,partition.mu (default: what differs).", default="")
AGAINST = text("--against", "METHOD", "The method that the others are compared with.", default="server-only")
METRIC = text(
    "--metric", "NAME", "last, mean_last_10, best_by_validation, balanced_accuracy, auroc, ece or worst_clients.",
    "--measure", "measure", default="last",
)  # fmt: skip
FINISHED = argument("run", "RUN", "Folder of a finished run.")
DATA_PATH = argument(
    "folder", "PATH",
    "Images or texts in server/<class>/, clients/<site>/, test/<class>/; or a table (CSV, parquet, NPZ), or several.",
)  # fmt: skip
COLUMNS = (
    setting("--label", "COLUMN", "Tables: the column with the classes.", "dataset.label"),
    setting("--site", "COLUMN", "Tables: the column with the site of each row.", "dataset.site"),
    setting("--text", "COLUMN", "Tables: the column with texts.", "dataset.text"),
)

DATA = group(
    "data",
    "Fetch datasets, and list them.",
    command(
        "data:fetch",
        "Fetch a dataset, or a backbone's weights. From a local copy, or from the first source that answers.",
        argument("name", "NAME", "cifar10, mnist, fashion-mnist or resnet50.", str),
        path("--from", "PATH", "A local archive or folder, e.g. cifar-10-binary.tar.gz.", "source"),
    ),
    command(
        "data:sums",
        "Write the sums of a site's table. Counts, sums and squares of its columns of numbers, by which the server "
        'standardises where dataset.statistics = "sites"; a table of fewer than 20 rows is refused.',
        argument("table", "TABLE", "The site's table or vectors."),
        text("--columns", "NAME,NAME", "Columns to tell of (default: all but label, site, split).", default=""),
        path("--out", "FILE", "Where to write; the server puts it into sums/ next to server.csv.", required=True),
    ),
    command("data:ls", "List the datasets, fetched or not."),
)
app = group(
    "fedfew",
    "Federated learning when only the server has labels, and only a few.",
    command(
        "demo:demo",
        "Compare methods on images included in fedfew. The images are photographs or digits; every method is compared "
        "with training on the labels alone.",
        click.Option(
            ["--data"], type=click.Choice(["photos", "digits"]),
            help="Default: photos if the extra pretrained is installed.",
        ),
        number("--seeds", 1, 1, "Repeat with this many seeds."),
        path("--out", "DIR", "Folder for runs and report."),
    ),
    command(
        "own:try_folder",
        "Find out what the sites' unlabeled data add. Recognises images, tables, vectors and texts, checks them, "
        "chooses a method, trains with and without the sites' samples, and reports the difference.",
        DATA_PATH, *COLUMNS, GROUP, OVERRIDES,
        path("--out", "DIR", "Folder for the runs (default: runs/…)."), ALLOW_CODE,
        name="try",
    ),
    command(
        "own:init",
        "Write a commented config for your own data.",
        DATA_PATH, *COLUMNS,
        path("--out", "FILE", "Default: FOLDER/fedfew.toml, or TABLE.toml."),
        flag("--network", "The sites' data are on other machines."),
        flag("--force", "Overwrite an existing file."),
    ),
    command(
        "own:check",
        "Check your own data or a config. Reports everything that is wrong; the exit status is 2 if a run would "
        "be refused.",
        argument("source", "PATH|CONFIG", "Your data as for `fedfew try`, a TOML file or a preset.", CONFIG_NAME),
        *COLUMNS,
        path("--csv", "FILE", "List of files (default: check.csv in the folder)."),
        GROUP, OVERRIDES, ALLOW_CODE,
    ),
    command(
        "run:run",
        "Train a model. Any method, aggregator, model, dataset and partition can be combined. Server-only training "
        "follows, to say what the clients add.",
        CONFIG, SCALE, OVERRIDES, KEEP_SETTINGS, NEW_RUN,
        flag("--no-baseline", "Do not train server-only for comparison."),
    ),
    command(
        "run:resume",
        "Continue an interrupted run. The result is the same, bit for bit, as without the interruption.",
        argument("run", "RUN", "The run folder."),
        OVERRIDES, ANYWAY, ALLOW_CODE,
    ),
    command(
        "model:evaluate",
        "Measure how good a model is. Prints the confusion matrix, precision and recall of each class, AUROC and "
        "calibration.",
        FINISHED,
        argument(
            "folder", "[PATH]", "Labeled data: <class>/ folders, a labels.csv, or a table with the label column.",
            required=False,
        ),
        flag("--unlabeled", "PATH has no labels: their mix of classes, and whether some look like none of them."),
        text("--group", "PATTERN", GROUPS, default=""),
        flag("--sites", "In a simulation: every client's class mix and accuracy too."),
        MODEL, ALLOW_CODE,
    ),
    command(
        "model:predict",
        "Predict classes with a run's model.",
        FINISHED,
        argument("images", "PATH…", "Images or texts, folders, or tables.", click.Path(), nargs=-1, required=True),
        number("--confident", 0.0, 0, "Mark those below this probability for a person to check.", most=1),
        flag("--calibrate", "Correct over-confidence with the temperature found on held-out labels."),
        flag("--adapt-prior", "Estimate the class mix of these samples and predict with it."),
        MODEL, CSV, ALLOW_CODE,
    ),
    command(
        "model:label_next",
        "Choose what to label next. Chooses images, rows or texts that the model is uncertain about, no two alike, "
        "and gives a reason for each.",
        FINISHED,
        argument("images", "CLIENTFOLDER…", "Folders or files to choose from.", click.Path(), nargs=-1, required=True),
        number("-n", 50, 1, "How many to choose.", "count"),
        CSV, ALLOW_CODE,
    ),
    command(
        "model:export",
        "Export a model for use elsewhere. Writes the model with its preprocessing, class names and a model card, and "
        "compares its outputs with torch's.",
        FINISHED,
        text("--format", "NAME", "safetensors, onnx, torch-export or huggingface (a folder).", default="safetensors"),
        path("--out", "PATH", "Default: RUN/export/model.safetensors, .onnx, .pt2, /huggingface."),
        MODEL, ALLOW_CODE,
    ),
    command(
        "runs:ls",
        "List runs with their state and accuracy.",
        argument("folder", "[FOLDER]", "Folder with runs, or an archive.", default=Path("runs")),
    ),
    command(
        "compare:compare",
        "Compare runs over seeds, and with server-only training. Prints mean ± 95 % interval over seeds, and the "
        "paired difference from server-only training or another method, with p-values for all rows together.",
        RUNS,
        BY, AGAINST,
        flag("--partial", "Include unfinished runs as they are."),
        METRIC,
        path(
            "--out", "FILE", "Write the table (.csv, .parquet, .md, .tex) or draw it (.png, .svg, .pdf).",
            "files", multiple=True,
        ),
    ),
    command(
        "compare:card",
        "Write a table of results that others can run again. The card is Markdown: the table of `fedfew compare`, and "
        "configs, versions and hashes of its runs.",
        RUNS, BY, AGAINST, METRIC,
        path("--out", "FILE.md", "The card to write.", "file", required=True),
    ),
    command(
        "compare:rerun",
        "Run a row of a card again. Compares accuracies and hashes with those of the card.",
        argument("table", "CARD.md", "A card that `fedfew card` wrote."),
        number("--row", None, 1, "Row of the table.", required=True),
        OVERRIDES, RUNS_FOLDER, ALLOW_CODE,
    ),
    command(
        "sweep:sweep",
        "Run a config with many values of its keys. Runs every combination of the grid's values; finished runs are "
        "kept, interrupted ones are continued.",
        CONFIG,
        text("--grid", "KEY=A,B,…", "Values of a key; repeat for a grid.", multiple=True),
        number("--seeds", 0, 0, "Repeat everything with N seeds; each draws labels, clients, model and cohorts anew."),
        text("--fix", "data", "Hold labels and clients still; seeds then repeat the training alone.", default=""),
        KEEP_SETTINGS,
        number("--optuna", 0, 0, "Search with N trials for each method; --seeds then repeats each one's best."),
        text("--range", "KEY=LOW:HIGH[:log]", "optuna: an interval to search.", "ranges", multiple=True),
        SCALE, OVERRIDES, RUNS_FOLDER, JOBS, UNTIL, ANYWAY,
    ),
    command(
        "sweep:learning_curve",
        "Draw accuracy against the number of labels. Trains with the sites' data and without; finished runs are "
        "kept.",
        argument("source", "FOLDER|PRESET|CONFIG.toml", "Data as for `fedfew try`, or a config.", CONFIG_NAME),
        text("--labels", "N,N,…", "Numbers of labels (default: all, half, a quarter, …).", default=""),
        number("--seeds", 1, 1, "Draw the labels and train this many times."),
        OVERRIDES, RUNS_FOLDER, JOBS,
    ),
    command(
        "runs:report",
        "Write an HTML report of a run or a folder of runs. It contains accuracies, bounds, charts, command, config, "
        "versions and hashes.",
        argument("path", "RUN|FOLDER", "A run folder, a folder of runs, or an archive."),
        path("--out", "FILE", "Where to write (default: report/index.html in it)."),
    ),
    command(
        "runs:watch",
        "Show runs in the browser as they advance.",
        argument("runs", "[RUNS]", "A run folder, or a folder that contains runs.", default=Path("runs")),
        text("--host", "ADDRESS", "Address to listen on; any but loopback requires a token.", default="127.0.0.1"),
        number("--port", None, 0, "Port (default: 8765, or a free one).", most=65535),
        flag("--open", "Open the page in the browser.", "open_"),
    ),
    command(
        "runs:track",
        "Send rounds to TensorBoard, MLflow or W&B. Only new rounds are sent, so the command can be repeated during "
        "the run.",
        RUNS,
        text("--to", "tensorboard|mlflow|wandb", "Where to send the rounds.", required=True),
        text("--out", "DIR", "Folder for the event files; mlflow: or a server's address.", default="tracking"),
    ),
    command(
        "runs:archive",
        "Put the records of runs into one file, or unpack it. An archive has no models and checkpoints, so it fits "
        "into a repository; an existing one keeps its other runs. compare, report and ls read it like a folder.",
        argument("source", "FOLDER|ARCHIVE", "A run, a folder of runs, or an archive to unpack."),
        path("--to", "FILE.jsonl.xz|DIR", "The archive, or the folder to unpack into.", required=True),
    ),
    command(
        "data:partition",
        "Measure and draw how non-IID a partition is. Prints R (mean total variation between clients) and sizes, and "
        "draws Figure 3 as bubbles (PNG, SVG).",
        text("--dataset", "NAME", "Dataset to partition among the clients.", default="cifar10"),
        text("--mu", "N,N,…", "μ of the Dirichlet kinds; several values separated by commas.", default="0.1,1,10"),
        text("--kind", "NAME", "iid, dirichlet, dirichlet-by-class or shards.", default="dirichlet"),
        number("--clients", 100, 1, "K, the number of clients."),
        number("--skew", 0.0, 0, "σ of log-normal client sizes; 0: equal sizes."),
        path("--out", "DIR", "Folder for the figure.", default=Path("figures")),
        OVERRIDES,
    ),
    command(
        "catalog:methods",
        "List methods, models, datasets and more, or explain one.",
        argument("name", "[NAME]", "A method, model, preset, …, or package.module:Name.", str, default=""),
    ),
    command(
        "catalog:presets",
        "List the presets, or show one with all its defaults.",
        argument("name", "[PRESET|CONFIG.toml]", "Show this one in full, as TOML.", CONFIG_NAME, default=""),
    ),
    command(
        "catalog:explain",
        "Explain an error code.",
        argument("code", "[CODE]", "A code such as E104; without it, all are listed.", ERROR_CODE, default=""),
    ),
    command(
        "doctor:doctor",
        "Show facts about this machine and installation. Shows versions, torch build, threads, extras, cache folder "
        "and disk; the exit status is 2 if something is wrong.",
    ),
    DATA,
    DEPLOY,
    LEDGER,
    context_settings={"max_content_width": 110, "show_default": True},
    no_args_is_help=True,
)  # fmt: skip
click.version_option(__version__, message="fedfew %(version)s")(app)
