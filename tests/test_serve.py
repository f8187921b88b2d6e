"""`bertkit serve`: predictions over HTTP equal those of `predict`, and no request can break the server."""

import asyncio
import http.client
import importlib.util
import json
import logging
import os
import shutil
import signal
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import chromium
import pytest
import uvicorn
from conftest import ROW_MAKERS, make_ner_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from new_process import start_server
from prometheus_client import generate_latest
from starlette.testclient import TestClient

import bertkit
from bertkit.commands.configs import ServeConfig
from bertkit.errors import UserError
from bertkit.models.forward import compute_logits
from bertkit.run.predictor import load_predictor
from bertkit.run_directory import RunDir
from bertkit.serve import batcher as batcher_module
from bertkit.serve import models as models_module
from bertkit.serve import server
from bertkit.serve.app import RequestChecks, choose_hosts, create_app
from bertkit.serve.batcher import ComputationStoppedError, Job
from bertkit.serve.models import Metrics, ModelRegistry
from bertkit.serve.server import DrainingServer, make_uvicorn_config
from bertkit.training import scoring

pytestmark = pytest.mark.slow

JSON = {"content-type": "application/json"}
SECRET = "a secret text"


def make_rows(task, count=6):
    """Rows with the input columns of a task only."""
    gold = {"label", "tags", "answers", "id"}
    return [{key: row[key] for key in row if key not in gold} for row in ROW_MAKERS[task](count, seed=1)]


def make_config(delay_ms=0.0, max_tokens=100_000):
    return ServeConfig(run=["RUN"], max_batch_size=8, max_delay_ms=delay_ms, max_request_tokens=max_tokens)


def make_registry(runs, *tasks):
    registry = ModelRegistry({task: str(runs / task) for task in tasks}, make_config(10.0), Metrics())
    registry.load()
    return registry


@pytest.fixture(scope="module")
def registry(runs):
    return make_registry(runs, *ROW_MAKERS)


@contextmanager
def open_client(registry, token=None, **settings):
    config = ServeConfig(run=["RUN"], **settings)
    with TestClient(create_app(registry, config, token), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def client(registry):
    with open_client(registry) as client:
        yield client


def post(client, content, **options):
    body = content if isinstance(content, bytes) else json.dumps(content)
    return client.post("/predict", content=body, headers=JSON, **options)


# ---- predictions


def assert_close(found, expected):
    """Numbers differ by at most 1e-5; everything else is equal."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-5)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            assert_close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_close(*pair)
    else:
        assert found == expected


@pytest.mark.parametrize("task", ROW_MAKERS)
@pytest.mark.parametrize("all_scores", [False, True])
def test_responses_are_the_records_of_predict(client, runs, task, all_scores):
    rows, params = make_rows(task), {"model": task, "all_scores": all_scores}
    predicted = list(bertkit.predict(runs / task, data=rows, all_scores=all_scores))
    [alone] = bertkit.predict(runs / task, data=rows[:1], all_scores=all_scores)
    response = post(client, rows[0], params=params)
    assert (response.status_code, response.json()) == (200, json.loads(json.dumps(alone)))
    assert_close(post(client, rows, params=params).json(), json.loads(json.dumps(predicted)))


def test_concurrent_requests_are_computed_together_and_get_their_own_records(registry, client, runs):
    rows = make_rows("classify", 40)
    expected = list(bertkit.predict(runs / "classify", data=rows))
    with ThreadPoolExecutor(20) as pool:
        responses = list(pool.map(lambda row: post(client, row, params={"model": "classify"}).json(), rows))
    assert [record["text"] for record in responses] == [row["text"] for row in rows]
    for record, other in zip(responses, expected, strict=True):
        assert_close(record, json.loads(json.dumps({**other, "id": 0})))


def test_an_ensemble_is_served(runs, tmp_path):
    RunDir(tmp_path / "ensemble").write_members([runs / "classify", runs / "classify"])
    registry = ModelRegistry({"both": str(tmp_path / "ensemble")}, make_config(), Metrics())
    registry.load()
    [row] = make_rows("classify", 1)
    [expected] = bertkit.predict(tmp_path / "ensemble", data=[row])
    with open_client(registry) as client:
        assert post(client, row).json() == json.loads(json.dumps(expected))
        assert client.get("/info").json()["models"][0]["members"] == 2


@pytest.fixture(scope="module")
def document_run(tiny, tmp_path_factory):
    """A run of `ner --context document`, whose predictions depend on the other sentences."""
    rows = [row | {"document": index // 2} for index, row in enumerate(make_ner_rows(40))]
    folder = tmp_path_factory.mktemp("documents") / "run"
    bertkit.ner(data=rows, model=str(tiny), context="document", max_steps=2, output_dir=str(folder))
    return folder


def test_a_request_may_name_the_documents_of_its_sentences(document_run):
    predictor = load_predictor(str(document_run))
    rows = [{"tokens": ["a", "b"], "document": "1"}, {"tokens": ["bad", "film"], "document": "1"}]
    alone = list(bertkit.predict(document_run, data=rows, all_scores=True))
    registry = ModelRegistry({"ner": str(document_run)}, make_config(), Metrics())
    registry.load()
    with open_client(registry) as client:
        response = post(client, rows, params={"all_scores": True})
        assert (response.status_code, response.json()) == (200, json.loads(json.dumps(alone)))
        assert post(client, {"tokens": ["a", "b"]}).status_code == 200
    # The same name in two requests of a batch means two documents.
    jobs = [make_job(row) for row in rows]
    apart = [batcher_module.compute_jobs(predictor, [job])[0] for job in jobs]
    assert batcher_module.compute_jobs(predictor, jobs) == apart


def make_job(row):
    return Job([row], True, 0.0, Future())


def test_a_wrong_request_does_not_fail_the_others_of_its_batch(runs):
    registry = make_registry(runs, "swag")
    batcher = registry.models["swag"].batcher
    good, wrong = make_rows("swag", 1)[0], {"context": "it was", "endings": ["good"]}

    async def predict():
        requests = [batcher.predict([row]) for row in (good, wrong, good)]
        return await asyncio.gather(*requests, return_exceptions=True)

    first, error, last = asyncio.run(predict())
    assert first == last
    assert len(first) == 1
    assert isinstance(error, UserError)
    assert "row 1" in str(error)


def test_a_bug_fails_only_the_request_that_causes_it(runs, monkeypatch):
    predictor, predict_rows = load_predictor(str(runs / "classify")), batcher_module.predict_rows

    def predict_unless_bad(predictor, rows, *args):
        if {"text": "bad"} in rows:
            raise ZeroDivisionError
        return predict_rows(predictor, rows, *args)

    monkeypatch.setattr(batcher_module, "predict_rows", predict_unless_bad)
    jobs = [make_job({"text": text}) for text in ("good", "bad", "fine")]
    good, error, fine = batcher_module.compute_jobs(predictor, jobs)
    assert (good[0]["text"], type(error), fine[0]["text"]) == ("good", ZeroDivisionError, "fine")


def test_a_cancelled_batch_stops_between_forward_passes(runs, monkeypatch):
    predictor = load_predictor(str(runs / "classify")).use_batch_size(1)
    jobs = [make_job({"text": "good"}) for _ in range(5)]
    passes = []

    def count_pass(*_):
        passes.append(1)
        if len(passes) == 2:
            for job in jobs:
                job.result.cancel()

    predictor.model.register_forward_hook(count_pass)
    monkeypatch.setattr(scoring, "bind_logits", lambda model, _: partial(compute_logits, model))
    results = batcher_module.compute_jobs(predictor, jobs)
    assert [type(result) for result in results] == [ComputationStoppedError] * 5
    assert len(passes) == 2


def test_a_context_without_characters_has_the_empty_answer(client):
    response = post(client, {"question": "Where?", "context": "\0\u200b"}, params={"model": "qa"})
    assert (response.status_code, response.json()["answer"]) == (200, "")


# ---- invalid requests

INVALID = [
    (b"{", 400, "JSON"),
    (b"", 400, "JSON"),
    (b'{"text": NaN}', 400, "JSON"),
    (b'{"text": "\\ud800"}', 400, "half of a surrogate pair"),
    (b'{"text": "\\ud8', 400, "truncated"),
    (b'{"text": "a", "text": "b"}', 422, "twice"),
    ({"k" * 100: "a"}, 422, "kkk...; send"),
    (b'{"text": "\xff"}', 400, "UTF-8"),
    ("ab".encode("utf-16"), 400, "JSON"),
    (b"[" * 100_000, 422, "row 1"),
    ({"text": 1}, 422, "row 1: key 'text': expected 'str', got 'int'"),
    ([{"text": SECRET}, {"text": None}], 422, "row 2: key 'text'"),
    ({"text": SECRET, "label": SECRET}, 422, "unknown key 'label'"),
    ({"txt": SECRET}, 422, "unknown key 'txt'"),
    ({}, 422, "missing key 'text'"),
    ([], 422, "has no rows"),
    ([{"text": SECRET}] * 1025, 413, "1,025 rows"),
    (SECRET, 422, "expected 'object | array'"),
]


@pytest.mark.parametrize(("content", "status", "words"), INVALID)
def test_an_invalid_body_is_refused_without_repeating_it(client, content, status, words):
    response = post(client, content, params={"model": "classify"})
    assert (response.status_code, list(response.json())) == (status, ["error"])
    assert words in response.json()["error"]
    assert SECRET not in response.text


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/predict", 422, "classify, ner, nli, qa, swag"),
        ("/predict?model=clasify", 422, "did you mean 'classify'?"),
        ("/predict?model=classify&scores=all", 422, "'scores': is unknown"),
        ("/predict?model=classify&all_scores=maybe", 422, "'all_scores': has an invalid value"),
        ("/predict?model=classify&model=ner", 422, "'model': is repeated"),
        ("/nothing", 404, "does not exist"),
        ("/info", 405, "not allowed"),
    ],
)
def test_an_invalid_address_is_refused(client, path, status, words):
    response = client.post(path, content='{"text": "good"}', headers=JSON)
    assert (response.status_code, words in response.json()["error"]) == (status, True), response.text


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {},
        {"content-type": "application/json; charset=latin-1"},
        {**JSON, "content-encoding": "gzip"},
    ],
)
def test_other_types_than_json_are_refused(client, headers):
    assert client.post("/predict", content=b"{}", headers=headers).status_code == 415
    assert client.post("/nothing", content=b"{}", headers=headers).status_code == 404


@pytest.mark.parametrize("task", ["classify", "ner", "qa"])
def test_a_request_with_too_many_tokens_is_refused(runs, task):
    [row] = make_rows(task, 1)
    column = {"classify": "text", "ner": "tokens", "qa": "context"}[task]
    registry = ModelRegistry({task: str(runs / task)}, make_config(max_tokens=2000), Metrics())
    registry.load()
    with open_client(registry) as client:
        response = post(client, row | {column: "good " * 2500})
        assert (response.status_code, "send at most 2,000" in response.json()["error"]) == (413, True)
        assert post(client, row | {column: "good " * 60}).status_code == 200
        response = post(client, [row | {column: "good " * 60}] * 200)
        assert (response.status_code, "tokens" in response.json()["error"]) == (413, True)


def test_a_large_body_is_refused_even_if_its_size_is_not_announced(client):
    large = json.dumps({"text": "a" * 2_000_001}).encode()
    response = post(client, large)
    assert (response.status_code, "is larger than 2 MB" in response.json()["error"]) == (413, True)
    chunks = (large[start : start + 100_000] for start in range(0, len(large), 100_000))
    assert client.post("/predict", content=chunks, headers=JSON).status_code == 413


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values) | st.dictionaries(st.text() | st.just("text"), values),
    max_leaves=20,
)
BODIES = st.binary() | VALUES.map(lambda value: json.dumps(value).encode())


@settings(max_examples=75, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=BODIES, task=st.sampled_from(list(ROW_MAKERS)), position=st.integers(0, 400))
def test_no_body_causes_a_server_error(client, body, task, position):
    valid = json.dumps(make_rows(task, 2)).encode()
    for content in (body, valid[:position] + body + valid[position:]):
        response = post(client, content, params={"model": task})
        assert response.status_code in (200, 400, 413, 422)


def call_with_limits(receive, **options):
    """Send a request to the middleware alone; return the status of the response."""
    messages = []

    async def app(scope, receive, send):
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        messages.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/predict",
        "headers": [(b"content-type", JSON["content-type"].encode())],
    }
    middleware = RequestChecks(app, None, None, 100, **options)
    asyncio.run(middleware(scope, receive, send))
    return messages[0]["status"]


def test_a_slow_body_is_refused():
    async def receive():
        await asyncio.sleep(0.02)
        return {"type": "http.request", "body": b" ", "more_body": True}

    assert call_with_limits(receive, body_seconds=0.1) == 408


def exchange_bytes(registry, *exchanges, token=None):
    """Return what the server sends on a connection for each exchange, until it closes the connection.

    An exchange consists of parts; each part is sent after the response to the previous ones.
    """

    async def exchange():
        listener = server.bind_socket("127.0.0.1", 0)
        app = create_app(registry, ServeConfig(run=["RUN"]), token)
        http_server = DrainingServer(make_uvicorn_config(app), registry)
        started = asyncio.Event()
        http_server.on_started = started.set
        serving = asyncio.create_task(http_server.serve(sockets=[listener]))
        await started.wait()
        received = []
        for *parts, last in exchanges:
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            content = b""
            for part in parts:
                writer.write(part)
                content += await asyncio.wait_for(reader.read(1 << 16), 30)
            writer.write(last)
            received.append(content + await asyncio.wait_for(reader.read(), 30))
            writer.close()
        http_server.should_exit = http_server.force_exit = True
        await serving
        registry.is_draining = False
        return received

    return asyncio.run(exchange())


def test_a_server_that_shuts_down_is_not_ready(monkeypatch, registry):
    async def end(self, sockets=None):
        assert registry.is_draining

    monkeypatch.setattr(uvicorn.Server, "shutdown", end)
    draining = DrainingServer(uvicorn.Config("app"), registry)
    draining.servers, draining.force_exit = [], True
    with monkeypatch.context() as patch:
        patch.setattr(registry, "is_draining", False)
        asyncio.run(draining.shutdown())


def test_a_slow_head_ends_the_connection(monkeypatch, registry):
    monkeypatch.setattr(server, "MAX_SEND_SECONDS", 0.1)
    first, second = exchange_bytes(
        registry, [b"GET /healthz HTTP/1.1\r\nhost: a\r\n"], [b"\x16\x03 no HTTP\r\n\r\n"]
    )
    assert first == b""
    assert second.startswith(b"HTTP/1.1 400")
    assert b'{"error":"request: invalid http request received; send HTTP/1.1"}' in second


@pytest.mark.parametrize("rest", [b"1\r\na\r\n", b"no chunk\r\n"], ids=["slow", "invalid"])
def test_the_rest_of_a_refused_body_ends_the_connection(rest, monkeypatch, registry, caplog):
    monkeypatch.setattr(server, "MAX_SEND_SECONDS", 0.1)
    head = b"POST /predict HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    [received] = exchange_bytes(registry, [head, rest], token=b"s3cret")
    assert received.startswith(b"HTTP/1.1 401")
    assert received.count(b"HTTP/1.1") == 1
    assert not [record for record in caplog.records if record.name == "asyncio"]


# ---- access


def test_another_name_of_a_server_on_loopback_is_refused(registry):
    config = ServeConfig(run=["RUN"])
    app = create_app(registry, config, None, choose_hosts("127.0.0.2"))
    with TestClient(app, raise_server_exceptions=False) as client:
        for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:80", "[::1]", "[::1]:8000", "127.0.0.2:8000"):
            assert client.get("/info", headers={"host": host}).status_code == 200, host
        for host in ("attacker.example", "attacker.example:8000", "localhost.attacker.example", "", ":80"):
            assert client.get("/info", headers={"host": host}).status_code == 403, host
        assert client.get("/readyz", headers={"host": "attacker.example"}).status_code == 200


def test_a_token_is_required_except_for_probes_and_the_page(registry):
    with open_client(registry, token=b"s3cret") as client:
        assert [client.get(path).status_code for path in ("/", "/healthz", "/readyz")] == [200] * 3
        assert [client.head(path).status_code for path in ("/healthz", "/readyz")] == [200] * 2
        for path in ("/info", "/metrics", "/openapi.json", "/predict"):
            response = client.get(path)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        for value in ("Bearer wrong", "Basic s3cret", "Bearer", "Bearer s3cret\xff"):
            assert client.get("/info", headers={"authorization": value.encode("latin-1")}).status_code == 401
        assert client.get("/info", headers={"authorization": "Bearer s3cret"}).status_code == 200


def test_the_log_has_texts_only_with_the_flag(runs, caplog):
    caplog.set_level(logging.INFO, "bertkit.serve")
    for log_texts in (False, True):
        caplog.clear()
        with open_client(make_registry(runs, "classify"), log_texts=log_texts) as client:
            post(client, {"text": SECRET})
            client.get(f"/{SECRET}?{SECRET}")
        assert "POST /predict 200" in caplog.text
        assert (SECRET in caplog.text) == log_texts


def test_there_are_no_cors_headers_and_the_page_has_a_policy(client):
    response = client.get("/", headers={"origin": "http://example.com"})
    assert not any(name.startswith("access-control") for name in response.headers)
    assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    assert "connect-src 'self'" in response.text


@pytest.mark.parametrize(
    ("bug", "name"), [(lambda *_: 1 / 0, "ZeroDivisionError"), (lambda *_: {}["a"], "KeyError")]
)
def test_a_bug_is_500_and_its_traceback_is_logged(bug, name, runs, monkeypatch, caplog):
    monkeypatch.setattr(models_module, "compute_jobs", bug)
    registry = make_registry(runs, "classify")
    with open_client(registry) as client:
        response = post(client, {"text": SECRET})
    assert (response.status_code, SECRET in caplog.text) == (500, False)
    assert response.json() == {"error": "server: failed because of a bug; see its log"}
    assert name in caplog.text


# ---- description and measurements


def test_info_describes_each_model_without_paths(client, runs):
    models = client.get("/info").json()["models"]
    assert [model["name"] for model in models] == list(ROW_MAKERS)
    assert models[0]["columns"] == {"text": "text"}
    labels = {model["task"]: model["labels"] for model in models}
    assert labels["classify"] == ["negative", "positive"]
    assert labels["ner"] == ["MEAN", "NICE"]
    assert labels["qa"] == labels["swag"] == []
    assert models[0]["validation"]["accuracy"] >= 0
    assert str(runs.parent) not in json.dumps(models)


def test_openapi_describes_the_rows_of_each_model(client):
    body = client.get("/openapi.json").json()["paths"]["/predict"]["post"]["requestBody"]
    content = body["content"]["application/json"]
    assert content["examples"]["qa"]["value"] == {"question": "...", "context": "..."}
    rows = {schema["anyOf"][0]["title"]: schema["anyOf"][0] for schema in content["schema"]["anyOf"]}
    assert rows["classify"]["required"] == ["text"]
    assert rows["classify"]["additionalProperties"] is False


def test_openapi_describes_errors_and_the_token(registry):
    with open_client(registry, token=b"s3cret") as client:
        description = client.get("/openapi.json", headers={"authorization": "Bearer s3cret"}).json()
    operation = description["paths"]["/predict"]["post"]
    statuses = {"200", "400", "401", "403", "408", "413", "415", "422", "429", "500", "503"}
    assert operation["responses"].keys() == statuses
    for status in statuses - {"200"}:
        schema = operation["responses"][status]["content"]["application/json"]["schema"]
        assert schema["required"] == ["error"], status
    assert operation["security"] == [{"token": []}]
    assert description["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert "security" not in description["paths"]["/readyz"]["get"]
    assert "HTTPValidationError" not in json.dumps(description)


def test_measurements_count_requests_and_rows(runs):
    with open_client(make_registry(runs, "classify")) as client:
        post(client, [{"text": "good"}] * 3)
        post(client, {"txt": "good"})
        text = client.get("/metrics").text
    for line in (
        'bertkit_requests_total{path="/predict",status="200"} 1.0',
        'bertkit_requests_total{path="/predict",status="422"} 1.0',
        'bertkit_rows_total{model="classify"} 3.0',
        'bertkit_queue_rows{model="classify"} 0.0',
    ):
        assert line in text.splitlines()


def test_a_full_queue_is_429(runs):
    registry = make_registry(runs, "classify")
    registry.models["classify"].batcher._max_waiting_rows = 2
    with open_client(registry) as client:
        response = post(client, [{"text": "good"}] * 3)
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")


def test_changed_files_of_weights_do_not_change_a_served_model(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "classify", run)
    registry = ModelRegistry({"run": str(run)}, make_config(), Metrics())
    registry.load()
    with open_client(registry) as client:
        before = post(client, {"text": "good"}).json()
        weights = run / "model.safetensors"
        with weights.open("r+b") as file:  # in place: other ways create a new file
            file.seek(weights.stat().st_size // 2)
            file.write(bytes(weights.stat().st_size // 2))
        assert post(client, {"text": "good"}).json() == before


def test_a_damaged_run_is_named_by_its_path(runs, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(runs / "classify", run)
    (run / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=rf"^{run}: its weights cannot be loaded .*; train the run again$"):
        load_predictor(str(run))


# ---- reload


def raise_out_of_memory(*_):
    raise RuntimeError("out of memory")


def test_a_failed_reload_keeps_the_old_models(runs, tmp_path, caplog, monkeypatch):
    run = tmp_path / "run"
    run.symlink_to(runs / "classify")
    registry = ModelRegistry({"run": str(run)}, make_config(), Metrics())
    registry.load()
    old = registry.models["run"]
    run.unlink()
    asyncio.run(registry.reload())
    assert registry.models["run"] is old
    assert "the old models stay" in caplog.text
    run.symlink_to(runs / "classify")
    with monkeypatch.context() as patch:
        patch.setattr(models_module, "load_served_model", raise_out_of_memory)
        asyncio.run(registry.reload())
    assert registry.models["run"] is old
    assert "the old models stay: out of memory" in caplog.text
    assert 'bertkit_reloads_total{result="failed"} 2.0' in generate_latest(registry.metrics.registry).decode()
    asyncio.run(registry.reload())
    assert registry.models["run"] is not old


# ---- command


def refuse(cli, *args):
    status, out, err = cli("serve", *args)
    assert (status, out) == (2, ""), err
    return err.splitlines()[-1]


def test_mistakes_are_refused_in_one_line(cli, runs, tmp_path, monkeypatch):
    run, token = runs / "classify", tmp_path / "token"
    assert "is not a finished run" in refuse(cli, tmp_path / "none", "--port", 0)
    assert "does not predict rows" in refuse(cli, runs / "pretrain-mlm-nsp", "--port", 0)
    assert "2 runs" in refuse(cli, run, runs / "ner", "--name", "a")
    assert "two runs have the name 'classify'" in refuse(cli, run, run)
    for content in (b"", b"two words", b"\xff\xfe"):
        token.write_bytes(content)
        assert "does not contain one token" in refuse(cli, run, "--token-file", token)
    assert "cannot be read" in refuse(cli, run, "--token-file", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as used:
        assert "Address already in use" in refuse(cli, run, "--port", used.getsockname()[1])
    assert "--host" in refuse(cli, run, "--host", "203.0.113.1", "--port", 0)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find_spec(name)
    )
    assert "pip install 'bertkit[serve]'" in refuse(cli, run)


def test_two_servers_that_start_at_the_same_time_cannot_share_a_port():
    first = server.bind_socket("127.0.0.1", 0)
    port = first.getsockname()[1]
    second = server.bind_socket("127.0.0.1", port)
    with first, second:
        server.start_listening(first, "127.0.0.1", port)
        with pytest.raises(UserError, match=rf"--port {port}: cannot be used \(Address already in use\)"):
            server.start_listening(second, "127.0.0.1", port)


def send_until_refused(url, results, body=b'{"text": "very good"}'):
    """Send requests on one connection until the server does not accept connections."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    while True:
        try:
            connection.connect() if connection.sock is None else None
        except ConnectionRefusedError:
            return
        try:
            connection.request("POST", "/predict", body, JSON)
            response = connection.getresponse()
            results.append(response.status)
            response.read()
        except (OSError, http.client.HTTPException) as error:
            results.append(repr(error))
            return


def test_reloading_and_ending_under_load_loses_no_request(runs):
    results = []
    with start_server(runs / "classify") as (process, stderr, url):
        threads = [threading.Thread(target=send_until_refused, args=(url, results)) for _ in range(8)]
        for thread in threads:
            thread.start()
        os.kill(process.pid, signal.SIGHUP)
        while "reloaded classify" not in stderr.readline():
            pass
        before = len(results)
        drain = threading.Thread(target=stderr.read)
        drain.start()
        while len(results) < before + 20:
            time.sleep(0.01)
        process.terminate()
        for thread in (*threads, drain):
            thread.join(60)
        assert process.wait(60) == 0
    assert set(results) == {200}


def test_a_reload_waits_for_requests_whose_tokens_are_counted(runs, monkeypatch):
    registry = make_registry(runs, "classify")
    model, may_count = registry.models["classify"], threading.Event()
    count = model.token_limit._count
    monkeypatch.setattr(model.token_limit, "_count", lambda rows: may_count.wait(30) and count(rows))

    async def send_and_reload():
        async def send():
            with model.track_request():
                num_tokens = await model.token_limit.count_tokens([{"text": "good"}], 10**9)
                return await model.batcher.predict([{"text": "good"}], False, num_tokens)

        request = asyncio.ensure_future(send())
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(model.close())
        await asyncio.sleep(0.1)
        assert not closing.done()
        may_count.set()
        records = await asyncio.wait_for(request, 30)
        await closing
        return records

    assert len(asyncio.run(send_and_reload())) == 1


# ---- page


@chromium.needs_browser
def test_the_page_predicts_in_a_browser_and_requests_nothing_elsewhere(runs, tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    hostile = "<img src=x onerror='window.hacked = 1'> good"
    with (
        start_server(runs / "classify", runs / "ner", "--token-file", token) as (*_, url),
        chromium.open_chromium() as driver,
    ):
        chromium.set_viewport(driver, width=390, dark=True)
        chromium.get_requested_urls(driver)
        driver.get(url)
        find = driver.find_element
        driver.implicitly_wait(20)
        find("css selector", "#token-form:not([hidden]) input").send_keys("s3cret")
        find("css selector", "#token-form button").click()
        find("css selector", "#form:not([hidden]) textarea[name=text]").send_keys(hostile)
        find("id", "predict").click()
        assert len(find("css selector", "#result table").find_elements("tag name", "meter")) == 2
        find(
            "css selector", "select[name=model] option[value=ner], select[name=model] option:nth-child(2)"
        ).click()
        chromium.type_text(driver, find("css selector", "textarea[name=tokens]"), "the film was good 😀 good")
        find("id", "predict").click()
        assert find("css selector", "#result .field").text.startswith("the film was")
        assert driver.execute_script("return [window.hacked, document.documentElement.scrollWidth]") == [
            None,
            390,
        ]
        requested = {u.split("?")[0] for u in chromium.get_requested_urls(driver)}
        assert requested == {f"{url}/", f"{url}/info", f"{url}/predict"}
        logged = [entry for entry in driver.get_log("browser") if "401" not in entry["message"]]
        assert logged == []
