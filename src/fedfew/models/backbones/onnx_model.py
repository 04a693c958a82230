"""Your own encoder of images in an ONNX file, run by onnxruntime as a frozen backbone.

Its input is one batch of float images N×C×H×W (C is 1 or 3), its first output features N×d, or maps N×d×h×w, which are
averaged. Preprocessing travels with the file: as JSON in its metadata under ``preprocess`` (size, mean, std and
interpolation of ``Preprocess``), or in a preprocessor_config.json next to it. A graph is data: no code of it is run.
"""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from fedfew.core.errors import FedfewError
from fedfew.core.extras import require
from fedfew.core.settings import Doc
from fedfew.core.storage import digest
from fedfew.models.backbones.pretrained import Backbone, Preprocess, published
from fedfew.models.backbones.transformers_model import preprocess_of

WHERE, KEY = "model onnx", "preprocess"
CONFIG = "preprocessor_config.json"
File = Annotated[str, Doc("the ONNX file")]
LARGEST = 1024
OwnSize = Annotated[int, Ge(0), Le(LARGEST), Doc("pixels a side that images are scaled to; 0: as the file says")]


class Graph(nn.Module):
    """An ONNX graph as a module without parameters."""

    def __init__(self, content: bytes, path: Path) -> None:
        super().__init__()
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = settings.inter_op_num_threads = 1  # features are computed on threads of ours
        settings.log_severity_level = 4
        # there is nothing below a file, so no weights are read from another one, which the hash would not cover
        settings.add_session_config_entry("session.model_external_initializers_file_folder_path", f"{path}/none")
        try:
            self.session = onnxruntime.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has a type for each kind of fault
            if "External data" in str(error):
                message = f"{path} has weights in another file, which its hash would not cover"
                raise FedfewError(
                    "E121", WHERE, message, "Save it as one file: onnx.save(onnx.load(PATH), PATH)"
                ) from None
            message = f"{path} cannot be read as ONNX ({' '.join(str(error).split())[:200]})"
            raise FedfewError("E121", WHERE, message, "Export the encoder again") from None
        inputs = self.session.get_inputs()
        shape = list(inputs[0].shape)
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(shape) != 4 or shape[1] not in (1, 3):
            taken = ", ".join(f"{one.name} {one.type} {one.shape}" for one in inputs)
            message = f"{path} takes {taken}; one batch of float images N×C×H×W with 1 or 3 channels is needed"
            raise FedfewError("E123", WHERE, message, "Export the encoder for such a batch")
        self.name, self.output = inputs[0].name, self.session.get_outputs()[0].name
        self.grey, self.single, self.side = shape[1] == 1, shape[0] == 1, shape[2] if isinstance(shape[2], int) else 0
        self.about: dict[str, str] = self.session.get_modelmeta().custom_metadata_map

    def __deepcopy__(self, _: Any) -> "Graph":
        return self  # it never changes

    def forward(self, x: Tensor) -> Tensor:
        """Features N×d; a graph for single images gets them one by one."""
        x = x.mean(1, keepdim=True) if self.grey else x
        parts = [self._run(part) for part in (x.split(1) if self.single else [x])]
        features = torch.cat(parts)
        return (features.flatten(2).mean(2) if features.ndim > 2 else features).to(x.device)

    def _run(self, x: Tensor) -> Tensor:
        images = x.detach().cpu().contiguous().numpy()
        return torch.from_numpy(self.session.run([self.output], {self.name: images})[0])


@partial(published, frozen=True)
def onnx_model(*, source: File = "", size: OwnSize = 0) -> Backbone:
    """Your own encoder in an ONNX file, frozen, under a linear head; needs the extra ``export``."""
    require("export", WHERE)
    path = Path(source).expanduser()
    if not source or not path.is_file():
        raise FedfewError("E103", WHERE, f"model.source is {source!r}, which is no file", "Name an ONNX file")
    content = path.read_bytes()
    graph = Graph(content, path)
    look = _preprocess(graph, path, size)
    if graph.side and look.size != graph.side:
        message = f"{path} takes images of {graph.side}×{graph.side} pixels, not {look.size}"
        raise FedfewError("E123", WHERE, message, f"Set model.size = {graph.side}")
    return Backbone(f"onnx {path.name}", graph, look, file_hash=digest(content))


def _preprocess(graph: Graph, path: Path, size: int) -> Preprocess:
    """From the file's metadata, or from the image processor's settings next to it; E121 if there are neither."""
    described = path.with_name(CONFIG)
    try:
        if KEY in graph.about:
            known: dict[str, Any] = json.loads(graph.about[KEY])
            mean, std = (tuple(float(value) for value in known[name]) for name in ("mean", "std"))
            own, filter_ = int(known["size"]), str(known.get("interpolation", "bicubic"))
            look = Preprocess(size or graph.side or own, mean, std, filter_)
        elif described.is_file():
            known = json.loads(described.read_text("utf-8"))
            crop = known.get("crop_size") or known.get("size") or {}
            own = int(crop if isinstance(crop, int) else crop.get("height") or crop.get("shortest_edge") or 224)
            look = preprocess_of(known, str(described), size or graph.side or own)
        else:
            message = f"{path} does not say how images are prepared for it"
            example = '{"size": 224, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}'
            remedy = f"Add the metadata {KEY} = {example} to it, or put its {CONFIG} next to it"
            raise FedfewError("E121", WHERE, message, remedy)
        if look.interpolation not in ("bilinear", "bicubic", "nearest", "area") or len(look.mean) not in (1, 3):
            raise ValueError(f"mean {look.mean}, interpolation {look.interpolation}")
        if not 8 <= look.size <= LARGEST:
            raise ValueError(f"size {look.size}")
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FedfewError("E121", WHERE, f"the preprocessing of {path} cannot be used ({error!r})") from None
    return look
