"""deploy forget: the model of a run without one site's sums."""

import json
from pathlib import Path

import pytest
from tests.config.test_tables import drawn
from tests.deploy.test_deploy_commands import fedfew as command

import fedfew
from fedfew.core.errors import FedfewError
from fedfew.deploy.audit import events
from fedfew.deploy.plan import make_network
from fedfew.methods.fedmoments.share import Share
from fedfew.runs.run import Run


def test_the_model_is_made_again_without_a_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedfew.methods.fedmoments.server.judged_share", lambda *_: Share(1.0, 1.0, 1.0))
    clients = [drawn(80, 10 + k, (k, (k + 1) % 4))[0] for k in range(3)] + [drawn(80, 20)[0][:, ::-1].copy()]
    config = fedfew.from_arrays(drawn(24, 1), clients, drawn(300, 2), path=tmp_path / "x")
    plan = make_network(tmp_path / "net", ["a", "b", "c", "odd"])
    chosen = {"rounds": 4, "fleet.kind": "inline"}
    run = fedfew.run(config, chosen | {"method.name": "fedmoments"}, out=tmp_path / "run", progress=False)
    where = (tmp_path / "net", "--run")
    about = json.loads(command("forget", "odd", *where, run.path, "--json"))
    assert about["model_before"] == run.summary["model_sha256"] != about["model"]
    assert about["sites_left"] == ["a", "b", "c"] and about["accuracy_before"] == pytest.approx(
        run.accuracy(), abs=1e-5
    )
    probabilities = fedfew.predict(tmp_path / "run-without-odd" / "model.safetensors", drawn(300, 2)[0])
    right = float((probabilities.argmax(1).numpy() == drawn(300, 2)[1]).mean())
    assert right == pytest.approx(about["accuracy"], abs=0.03)
    assert [event["event"] for event in events(plan.folder)] == ["forgotten"]
    assert Run.open(run.path).summary["model_sha256"] == about["model_before"], "the run stays as it is"
    with pytest.raises(FedfewError, match="E103"):
        command("forget", "nobody", *where, run.path)
    other = fedfew.run(config, chosen | {"rounds": 1, "method.name": "fedavg"}, out=tmp_path / "other", progress=False)
    with pytest.raises(FedfewError, match="E515"):
        command("forget", "odd", *where, other.path)
