"""Settings of `bertkit serve`. Importing this module is fast."""

import dataclasses
from dataclasses import dataclass

from bertkit.common_settings import device_setting
from bertkit.setting import MODEL, OUTPUT, Settings, setting

SERVE_HELP = "Serve predictions of finished runs over HTTP, with a page to try them."

BATCHES, NETWORK = "Batches", "Network"


@dataclass(frozen=True, kw_only=True)
class ServeConfig(Settings):
    """Settings of `bertkit serve`."""

    run: list[str] = setting(
        dataclasses.MISSING, "Finished runs, exported models or ensembles.", MODEL,
        is_positional=True, completion="runs",
    )  # fmt: skip
    name: list[str] = setting(
        (), "Name of a run in requests. Repeat it for each run, in the same order.", MODEL,
        default_text="the directory's name",
    )  # fmt: skip
    device: str = device_setting()
    max_batch_size: int = setting(64, "Maximum number of rows that are computed together.", BATCHES, min=1)
    max_delay_ms: float = setting(
        10.0, "Maximum time in milliseconds that a row waits for other rows of its batch.", BATCHES, min=0
    )
    host: str = setting("127.0.0.1", "Address to listen on; 0.0.0.0 for all IPv4 addresses.", NETWORK)
    port: int = setting(8000, "Port to listen on; 0 for any free port.", NETWORK, min=0, max=65535)
    max_body_mb: int = setting(2, "Maximum size of a request in megabytes.", NETWORK, min=1, max=1000)
    max_request_tokens: int = setting(
        131_072, "Maximum number of tokens of a request, in all its rows and windows.", NETWORK, min=1
    )
    token_file: str | None = setting(
        None, "File with a token that requests must send: Authorization: Bearer TOKEN.", NETWORK, is_path=True
    )
    log_texts: bool = setting(False, "Also log the rows of requests.", OUTPUT)
