import os

from weir_client import Client

client = Client(
    os.environ["WEIR_URL"],
    os.environ["WEIR_KEY"],
    timeout_ms=50,
    on_failure="local",
    local_share=0.25,  # four processes share each limit
    batching=True,
)
