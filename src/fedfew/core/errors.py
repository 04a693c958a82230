"""Errors a person can act on: a code, the place, what was given and what to do; one table explains every code."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """What ``fedfew explain CODE`` says: the short name of the fault, its cause and its remedy."""

    title: str
    cause: str
    remedy: str


CODES: dict[str, Explanation] = {
    "E101": Explanation(
        "no such config",
        "The name is neither a preset nor a TOML file that can be read.",
        "Run `fedfew presets` for the presets, or give the path of a TOML file.",
    ),
    "E102": Explanation(
        "not TOML",
        "The file, or the value after `--set key=`, does not follow TOML's syntax.",
        "Correct the line and column named in the message; strings are quoted, lists are in brackets.",
    ),
    "E103": Explanation(
        "wrong type or value",
        "A key has a value of another type, or outside the range that makes sense.",
        "Give a value of the kind the message names.",
    ),
    "E104": Explanation(
        "unknown key",
        "Nothing reads a key of the config. It is refused because a misspelt key would silently keep the default.",
        "Use the suggested key, or remove the line. `fedfew methods NAME` lists the settings of a method.",
    ),
    "E105": Explanation(
        "unknown name",
        "A method, aggregator, model, dataset, partition or fleet of that name is not registered.",
        "Use one of the names listed in the message, or `package.module:Name` for something of your own.",
    ),
    "E106": Explanation(
        "weights of the mix",
        "FedMix needs α, β, γ ≥ 0 with α + β + γ = 1 (Eq. 9 of the paper).",
        "Change method.alpha, method.beta, method.gamma so that they sum to 1.",
    ),
    "E107": Explanation(
        "method and aggregator do not fit",
        "This aggregator cannot combine the method's replies in a meaningful way.",
        "Choose one of the aggregators listed in the message.",
    ),
    "E108": Explanation(
        "more clients than images",
        "Every image goes to exactly one client, so some clients would get none.",
        "Lower `clients`, or set partition.empty = true to allow clients without images.",
    ),
    "E109": Explanation(
        "more labels than the data has",
        "The server's labels, validation and test images are taken from the dataset before the clients get the rest.",
        "Lower `labels`, `dataset.validation` or `dataset.unlabeled`.",
    ),
    "E110": Explanation(
        "model does not fit the images",
        "The images are smaller than 8×8, or have neither 1 nor 3 channels.",
        "Resize the images, or name a model of your own as package.module:function.",
    ),
    "E111": Explanation(
        "cannot import",
        "A name of the form package.module:Name could not be imported or is not callable.",
        "Check the spelling; install the package, or for a file in this folder put PYTHONPATH=. before the command.",
    ),
    "E112": Explanation(
        "extra not installed",
        "A feature needs packages that are not part of the plain installation.",
        "Install the extra named in the message, e.g. pip install '.[flower]' in fedfew's folder.",
    ),
    "E113": Explanation(
        "setting does not fit the scenario",
        "Two settings exclude each other.",
        "Change one of the two keys named in the message.",
    ),
    "E114": Explanation(
        "runs that cannot be compared",
        "The runs were tested on different images, so their accuracies do not belong in one table.",
        "Compare runs of one dataset at a time, or group by the key named in the message.",
    ),
    "E115": Explanation(
        "custom code does not fit",
        "The object that package.module:Name points to cannot be used in this section of the config.",
        "Give it the parameters and members that the message names; the page on extending has an example of each kind.",
    ),
    "E116": Explanation(
        "no such device",
        "engine.device names a device that torch does not find on this machine.",
        "Use one of those in the message, or install the torch that is built for the device.",
    ),
    "E117": Explanation(
        "model not compiled",
        "engine.compile is on, and torch.compile failed: there is no compiler, or the model cannot be one graph.",
        "Install a C++ compiler (Triton for cuda), or set engine.compile = false: results are equal up to rounding.",
    ),
    "E118": Explanation(
        "circular base",
        "A config is its own base, directly or through other bases.",
        "Name another base, or remove the line `base = …` from one of the files.",
    ),
    "E119": Explanation(
        "not enough memory on this machine",
        "The weights of the model, their gradient and the copies that travel do not fit into memory, or something else "
        "that the config asks for does not.",
        "Lower model.width or model.depth, or the number that is too large, or use a machine with more memory.",
    ),
    "E120": Explanation(
        "bfloat16 crashes on this machine",
        "The processor says that it has AMX, but torch ends with an illegal instruction when it uses it. Some virtual "
        "machines show AMX and hide the table of its tiles, which torch's library oneDNN needs.",
        'Set engine.autocast = "off", or put ONEDNN_MAX_CPU_ISA=AVX512_CORE_FP16 before the command: then it works '
        "without AMX, which may be slower than float32.",
    ),
    "E121": Explanation(
        "backbone not found",
        "The weights of a pretrained backbone, or its preprocessing, cannot be found or read.",
        "Install or download what the message names, and give its folder as model.source.",
    ),
    "E122": Explanation(
        "backbone refused",
        "A weights file does not have the hash of what was published, or holds code: pickles can. Code is never run.",
        "Get the weights from their source again, as safetensors.",
    ),
    "E123": Explanation(
        "backbone gives no features",
        "The backbone does not return one finite vector per image, or it cannot take such images.",
        "Return a tensor N×d, e.g. pooled over the image; see the page on extending.",
    ),
    "E124": Explanation(
        "hub not reachable",
        "The weights are on a hub that this machine cannot reach, and were not downloaded before.",
        "Download the model on another machine, copy the folder here and give its path as model.source.",
    ),
    "E125": Explanation(
        "code from a file",
        "A model file, a run folder, a network's folder or a config that was found in a folder names code outside "
        "fedfew. Whoever wrote the file would decide what runs on this machine.",
        "If you trust that code, name it yourself: `--allow-code package.module:Name`, or `--allow-code "
        "package.module` for all that is defined in the module; in Python `allow_code=[...]`.",
    ),
    "E201": Explanation(
        "dataset not fetched",
        "The dataset has not been fetched to this machine.",
        "Run `fedfew data fetch NAME`, or `fedfew data fetch NAME --from PATH` with a local copy.",
    ),
    "E202": Explanation(
        "damaged data",
        "A data file does not have the checksum or the shape it must have.",
        "Delete the file named in the message and fetch the dataset again.",
    ),
    "E203": Explanation(
        "no source worked",
        "None of the dataset's sources could be reached from this machine.",
        "Download it elsewhere and use `fedfew data fetch NAME --from PATH`.",
    ),
    "E204": Explanation(
        "not that dataset",
        "The file or folder given does not hold what the dataset's reader expects.",
        "Give one of the files the message names.",
    ),
    "E205": Explanation(
        "unsafe archive",
        "An archive holds absolute names, `..`, links or devices, or would inflate far beyond its size.",
        "Get the archive from a source you trust.",
    ),
    "E206": Explanation(
        "no images found",
        "The folder is missing, or lacks the layout server/<class>/, clients/<site>/, test/<class>/ with images in it.",
        "Put the images there; `fedfew check FOLDER` shows what is found.",
    ),
    "E207": Explanation(
        "test images among the server's",
        "The same image is in server/ and in test/, so accuracy would be measured on training images.",
        "Remove one of each pair (check.csv lists them), or set dataset.allow_overlap = true.",
    ),
    "E208": Explanation(
        "class names do not fit",
        "Two class folders differ only by case, or server/ and test/ do not have the same classes.",
        "Rename or remove the folder named in the message.",
    ),
    "E209": Explanation(
        "not a usable image",
        "The file is damaged, of a format that is not read, or larger than the limits on bytes, pixels or frames.",
        "It was skipped. Convert it to PNG, JPEG, BMP, WebP or TIFF, make it smaller, or remove it.",
    ),
    "E210": Explanation(
        "the same image twice",
        "Files have the same pixels; copies count twice in training.",
        "Remove the copies listed in check.csv, unless they are intended.",
    ),
    "E211": Explanation(
        "site smaller than a batch",
        "A site has fewer images than client.batch, so it trains with one small step an epoch.",
        "Lower client.batch, merge small sites, or leave it as it is.",
    ),
    "E301": Explanation(
        "output folder in use",
        "The folder given with --out already holds files.",
        "Choose another folder, or continue with `fedfew resume FOLDER`.",
    ),
    "E302": Explanation(
        "not a run folder",
        "The folder does not hold run.toml and rounds.jsonl.",
        "Give the folder that `fedfew run` printed, see `fedfew ls`.",
    ),
    "E303": Explanation(
        "newest checkpoint damaged",
        "A file of the newest checkpoint is missing, or its bytes do not match their hash; the one before is used.",
        "Nothing to do: the lost round is computed again. Check the disk if it happens twice.",
    ),
    "E304": Explanation(
        "no checkpoint can be used",
        "Neither of the two saved checkpoints is intact.",
        "Start the run again; check the disk.",
    ),
    "E305": Explanation(
        "cannot write",
        "The disk is full, read-only or unavailable.",
        "Make room or give another --out; the last checkpoint is intact, and `fedfew resume` continues from it.",
    ),
    "E306": Explanation(
        "run folder is busy",
        "Another process is working on this run.",
        "Wait for it, or end it first.",
    ),
    "E307": Explanation(
        "foreign checkpoint",
        "The checkpoint belongs to another config or another model.",
        "Resume in the folder where it was written, or start a new run.",
    ),
    "E308": Explanation(
        "different environment",
        "The run was started with another version of torch or fedfew, number of threads or processor: bits may differ.",
        "Resume with the versions in environment.json, or accept it with --anyway.",
    ),
    "E309": Explanation(
        "run folder damaged",
        "A file of the run folder differs from what was written. A resume restores it from the checkpoint or a copy.",
        "Nothing to do if the message says it was restored; otherwise try `fedfew resume`, a backup, or a new run.",
    ),
    "E310": Explanation(
        "nothing to show yet",
        "The run has not finished its first round, or has no final model yet.",
        "Wait, or continue with `fedfew resume`.",
    ),
    "E311": Explanation(
        "spare checkpoint damaged",
        "The older of the two saved checkpoints is damaged; the newest is intact, and the run continues from it.",
        "Nothing to do: the next round writes a new one. Check the disk if it happens twice.",
    ),
    "E312": Explanation(
        "export differs from the model",
        "The exported file was read back and gave other logits or classes than the model, so it was discarded.",
        "Try another --format, or another version of the exporter named in the message.",
    ),
    "E313": Explanation(
        "different backbone",
        "A model file holds only what was trained, and the backbone found here is not the one it was trained on.",
        "Install the version of the backbone whose hash is in the message.",
    ),
    "E401": Explanation(
        "update with wrong names",
        "A client's reply lacks a tensor of the schema or has one too many.",
        "The update was left out. Check that the client runs the same version and config.",
    ),
    "E402": Explanation(
        "update with wrong shape", "A tensor of the reply has another shape than the schema.", "As E401."
    ),
    "E403": Explanation(
        "update with wrong type", "A tensor of the reply has another dtype than the schema.", "As E401."
    ),
    "E404": Explanation(
        "update not finite",
        "A reply holds NaN or infinity: the client's training diverged, or it is broken or malicious.",
        "The update was left out. If many clients do this, lower client.lr.",
    ),
    "E405": Explanation(
        "update too large", "The reply has more bytes than the schema allows.", "The update was left out."
    ),
    "E406": Explanation(
        "update outside the norm bound",
        "The reply is further from the global model than gate.max_norm or gate.max_growth allow, or it holds sums that "
        "no images and no mix of classes can give.",
        "The update was left out. Raise the bound if honest clients are hit.",
    ),
    "E407": Explanation(
        "update with an impossible count",
        "The number of examples a client claims is not a whole number from 0 to its known size (or gate.max_examples).",
        "The update was left out.",
    ),
    "E408": Explanation(
        "client failed", "The client's training raised an error.", "The round went on with the others."
    ),
    "E409": Explanation(
        "worker died",
        "The process that trained a client ended (killed, out of memory).",
        "The round went on with the others and the worker was started again. Lower fleet.workers if memory is short.",
    ),
    "E410": Explanation(
        "no answer in time", "The client did not answer before fleet.timeout.", "The round went on with the others."
    ),
    "E411": Explanation("client dropped out", "The simulation dropped this client.", "Set availability.dropout = 0."),
    "E412": Explanation(
        "update with bad indices",
        "A sparse reply's indices are out of range, repeated or unsorted.",
        "The update was left out.",
    ),
    "E413": Explanation(
        "answer came late",
        "A site's answer arrived after the deadline of its round (fleet.timeout); the round had ended without it.",
        "It was not used. Raise fleet.timeout if honest sites are that slow.",
    ),
    "E414": Explanation("second answer", "A site answered the same round twice.", "Only the first answer counts."),
    "E415": Explanation(
        "answer to another round",
        "An answer names another run or round than the one it was asked for: replayed, or from before a restart.",
        "It was not used.",
    ),
    "E416": Explanation(
        "site not reachable",
        "The site went offline before it answered.",
        "The round went on with the others. `fedfew deploy client` comes back by itself.",
    ),
    "E417": Explanation(
        "site does not fit the run",
        "The site runs another version of fedfew or torch, has other data, or asks for more privacy.",
        "The round went on with the others. Install equal versions; `fedfew deploy doctor` compares them.",
    ),
    "E418": Explanation(
        "too few updates",
        "The client answered, but fewer than min_updates clients did, so the round was skipped.",
        "Lower min_updates, or raise participation or fleet.timeout.",
    ),
    "E419": Explanation(
        "payload refused by the site",
        "What the server sent holds NaN, infinity or absurdly large numbers, or lacks a tensor: training on it could "
        "switch off the site's clipping or spoil its memory.",
        "The site sent nothing. If all sites do this, the server's model has diverged: lower server.lr or client.lr.",
    ),
    "E420": Explanation(
        "privacy budget spent",
        "Another update would bring the site's ε, over all runs it has taken part in, beyond its --max-epsilon.",
        "The site sent nothing. Its owner may raise --max-epsilon; privacy.json in the site's folder has the account.",
    ),
    "E421": Explanation(
        "harmful update",
        "A quarter of the client's change raises the loss on the server's labeled images by more than gate.max_harm "
        "and far more than other clients' changes do: the client is hostile or broken, or its training diverged.",
        "The update was left out. If honest clients are hit, lower client.lr, or raise gate.max_harm (0: no bound).",
    ),
    "E501": Explanation(
        "too many skipped rounds",
        "No usable update arrived for max_skipped rounds in a row; the model stays as it was and the run stops.",
        "Look at the reasons in rounds.jsonl, then continue with `fedfew resume`.",
    ),
    "E502": Explanation(
        "workers keep dying",
        "Worker processes ended again and again without finishing one client.",
        "The message has the end of a worker's log; lower fleet.workers if memory is short.",
    ),
    "E503": Explanation(
        "too few sites online",
        "Fewer sites than fleet.min_clients were online before fleet.wait ran out.",
        "Start the sites with `fedfew deploy client`, or lower fleet.min_clients; then continue with the same command.",
    ),
    "E504": Explanation(
        "port taken",
        "Another process listens on the port.",
        "End that process, or choose another port in server.toml.",
    ),
    "E505": Explanation(
        "certificate or key not usable",
        "A certificate is expired or not yet valid, a key is missing, or they do not belong together.",
        "Make new ones with `fedfew deploy init NAME --force` and hand out the new bundles; check the clock.",
    ),
    "E506": Explanation(
        "bundle of another network",
        "The folder belongs to another network or another site than the bundle.",
        "Give another --state folder, or the bundle this folder was made from.",
    ),
    "E507": Explanation(
        "no TLS off loopback",
        "Without TLS and keys anybody could read the updates and submit code, so only 127.0.0.1 is allowed then.",
        "Use a network made by `fedfew deploy init` without --insecure.",
    ),
    "E508": Explanation(
        "Flower did not start",
        "One of Flower's processes ended or did not get ready in time.",
        "The message has the end of its log; the full log is in the log folder.",
    ),
    "E509": Explanation(
        "site without images",
        "The data given to `deploy client` holds no image that can be used.",
        "Give a folder of images, or an NPZ with an array `images` (uint8, N×H×W or N×C×H×W).",
    ),
    "E510": Explanation(
        "server not reachable",
        "The server did not answer at its address, or not with the certificate of this network.",
        "Check address, firewall and that `fedfew deploy server` is running; see `fedfew deploy doctor client`.",
    ),
    "E511": Explanation(
        "not a network folder",
        "The folder or bundle was not made by `fedfew deploy init`, or is damaged.",
        "Run `fedfew deploy init`, or copy the bundle again.",
    ),
    "E512": Explanation(
        "every client failed in the same way",
        "In the first round no client gave a usable answer, and all failed for the same reason: the cause is the "
        "config or the code they share, not the clients.",
        "Read the reason in the message; `fedfew check CONFIG` looks at a config before it runs.",
    ),
}


class FedfewError(Exception):
    """A fault with a code; the text names place, value and remedy, so no traceback is needed to understand it."""

    def __init__(self, code: str, place: str, what: str, remedy: str | None = None) -> None:
        self.code, self.place, self.what = code, place, what
        self.remedy = CODES[code].remedy if remedy is None else remedy
        stop = "" if what.endswith((".", "?", "!")) else "."
        super().__init__(f"{code} {place}: {what}" + (f"{stop} {self.remedy}" if self.remedy else ""))


class ConfigErrors(FedfewError):  # noqa: N818 - it is several
    """All errors of a config at once."""

    def __init__(self, errors: Sequence[FedfewError]) -> None:
        first = errors[0]
        super().__init__(first.code, first.place, first.what, first.remedy)
        self.errors = list(errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)
